#pragma once
// A table of words and numbers, in columns as wide as they need to be.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure::tool {

class Table {
 public:
  /// Words stand to the left of their column, whole numbers and real ones (two digits behind the
  /// point) to the right.
  using Cell = std::variant<std::string, int64_t, double>;

  explicit Table(std::vector<std::string> head) : head_(std::move(head)) {}
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  void print(llvm::raw_ostream& os) const;
  /// The same in Markdown.
  void printMarkdown(llvm::raw_ostream& os) const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace gravure::tool
