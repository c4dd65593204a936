#include "tools/gravure/command/table.h"

#include <llvm/ADT/StringRef.h>
#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>

namespace gravure::tool {
namespace {

std::string text(const Table::Cell& cell) {
  if (const auto* word = std::get_if<std::string>(&cell)) return *word;
  if (const auto* number = std::get_if<int64_t>(&cell)) return std::to_string(*number);
  std::string digits;
  llvm::raw_string_ostream os(digits);
  os << llvm::format("%.2f", std::get<double>(cell));
  return digits;
}

}  // namespace

void Table::print(llvm::raw_ostream& os) const {
  std::vector<size_t> widths;
  for (const std::string& name : head_) widths.push_back(name.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], text(row[i]).size());
  }
  auto line = [&](const std::vector<std::string>& cells, const std::vector<bool>& left) {
    std::string out;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string pad(widths[i] - cells[i].size(), ' ');
      out += (i ? "  " : "") + (left[i] ? cells[i] + pad : pad + cells[i]);
    }
    os << llvm::StringRef(out).rtrim(' ') << '\n';
  };
  std::vector<bool> left(head_.size(), true);
  if (!rows_.empty()) {
    for (size_t i = 0; i < head_.size(); ++i) {
      left[i] = std::holds_alternative<std::string>(rows_[0][i]);
    }
  }
  line(head_, left);
  for (const auto& row : rows_) {
    std::vector<std::string> cells;
    for (const Cell& cell : row) cells.push_back(text(cell));
    line(cells, left);
  }
}

void Table::printMarkdown(llvm::raw_ostream& os) const {
  for (const std::string& name : head_) os << "| " << name << ' ';
  os << "|\n";
  for (size_t i = 0; i < head_.size(); ++i) {
    const bool left = rows_.empty() || std::holds_alternative<std::string>(rows_[0][i]);
    os << (left ? "|---" : "|---:");
  }
  os << "|\n";
  for (const auto& row : rows_) {
    for (const Cell& cell : row) os << "| " << text(cell) << ' ';
    os << "|\n";
  }
}

}  // namespace gravure::tool
