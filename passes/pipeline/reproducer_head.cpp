#include "passes/pipeline/reproducer_head.h"

namespace gravure {

std::string reproducerHead(const Pipeline& pipeline, const PassOptions& options,
                           const std::vector<std::string>& flags, llvm::StringRef failure) {
  std::string text = "# A reproducer: gravure opt FILE\n";
  const auto line = [&](const std::string& flag) {
    text += kReproducerMark.str() + " " + flag + "\n";
  };
  line("--passes=" + pipelineText(withAllOptions(pipeline, options)));
  for (const std::string& flag : flags) line(flag);
  return text + "# fails: " + failure.split('\n').first.str() + "\n";
}

}  // namespace gravure
