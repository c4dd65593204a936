#include "passes/rewrite_limit.h"

#include "ir/core/program.h"

namespace gravure {

bool RewriteLimit::allowed(const char* pass, const char* what, const torch::jit::Node* at) {
  if (asked_ > *most_) return false;
  last_ = std::string(pass) + ": " + what;
  if (at) last_ += " " + describe(at);
  return true;
}

}  // namespace gravure
