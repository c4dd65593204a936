#include "tools/gravure/opt/pass_tables.h"

#include "tools/gravure/command/table.h"

#include <llvm/ADT/MapVector.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

void printFacts(const char* title, FactSet facts, llvm::raw_ostream& os) {
  std::vector<std::string> names;
  facts.forEach([&](ProgramFact fact) { names.emplace_back(factName(fact)); });
  if (!names.empty()) os << "    " << title << ": " << llvm::join(names, ", ") << '\n';
}

}  // namespace

void printPasses(llvm::raw_ostream& os) {
  const PassOptions byDefault;
  for (const Pass& pass : allPasses()) {
    os << llvm::left_justify(pass.name, 24) << ' ' << pass.summary << '\n';
    printFacts("needs", pass.needs, os);
    printFacts("makes", pass.makes, os);
    printFacts("keeps", pass.keeps, os);
    for (const PassOption& option : pass.options) {
      os << "    {" << option.name << '=' << option.get(byDefault) << "}: " << option.expected
         << '\n';
    }
  }
}

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
