#include "ir/core/remark.h"

#include "ir/core/location.h"
#include "ir/core/program.h"

#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>

namespace gravure {

const char* kindName(RemarkKind kind) {
  switch (kind) {
    case RemarkKind::Passed: return "passed";
    case RemarkKind::Missed: return "missed";
    case RemarkKind::Analysis: return "analysis";
  }
  return "";
}

void Remark::print(llvm::raw_ostream& os) const {
  os << kindName(kind) << " [" << name << "]";
  if (!node.empty()) os << ' ' << node;
  if (!source.empty()) os << " at " << source;
  if (!module.empty()) os << " in " << module;
  os << ": " << message << '\n';
}

Remark& Remarks::add(RemarkKind kind, std::string pass, std::string name, std::string message) {
  remarks_.push_back({kind, std::move(pass), std::move(name), "", "", "", std::move(message)});
  return remarks_.back();
}

Remark& Remarks::add(RemarkKind kind, std::string pass, std::string name, const Node* node,
                     std::string message) {
  remarks_.push_back({kind, std::move(pass), std::move(name), describe(node), sourceOf(node),
                      std::string(moduleOf(node)), std::move(message)});
  return remarks_.back();
}

size_t Remarks::count(std::string_view name) const {
  return std::count_if(remarks_.begin(), remarks_.end(),
                       [&](const Remark& remark) { return remark.name == name; });
}

void Remarks::printText(llvm::raw_ostream& os) const {
  for (const Remark& remark : remarks_) remark.print(os);
}

void Remarks::printJson(llvm::raw_ostream& os) const {
  llvm::json::OStream json(os, 2);
  json.array([&] {
    for (const Remark& remark : remarks_) {
      json.object([&] {
        json.attribute("kind", kindName(remark.kind));
        json.attribute("pass", remark.pass);
        json.attribute("name", remark.name);
        json.attribute("node", remark.node);
        json.attribute("source", remark.source);
        json.attribute("module", remark.module);
        json.attribute("message", remark.message);
      });
    }
  });
  os << '\n';
}

}  // namespace gravure
