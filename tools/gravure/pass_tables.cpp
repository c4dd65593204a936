#include "tools/gravure/pass_tables.h"

#include "tools/gravure/table.h"

#include <llvm/ADT/MapVector.h>
#include <llvm/ADT/StringExtras.h>

namespace gravure::tool {

void printPassStats(const std::vector<PassRecord>& records, const Remarks& remarks,
                    llvm::raw_ostream& os) {
  Table table({"pass", "rewrites", "remarks"});
  for (const PassRecord& record : records) {
    llvm::MapVector<llvm::StringRef, int64_t> counts;
    for (size_t i = record.firstRemark; i < record.firstRemark + record.remarks; ++i)
      ++counts[remarks.all()[i].name];
    std::vector<std::string> words;
    for (const auto& [name, count] : counts)
      words.push_back(name.str() + " " + std::to_string(count));
    table.add({record.pass->name, record.rewrites, llvm::join(words, ", ")});
  }
  table.print(os);
}

void printPassTimes(const std::vector<PassRecord>& records, llvm::raw_ostream& os) {
  double all = 0;
  for (const PassRecord& record : records) all += record.runMs;
  Table table({"pass", "ms", "verify ms", "% of passes"});
  for (const PassRecord& record : records) {
    table.add(
        {record.pass->name, record.runMs, record.verifyMs, all > 0 ? 100 * record.runMs / all : 0});
  }
  table.print(os);
}

}  // namespace gravure::tool
