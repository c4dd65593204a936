#include "tools/gravure/command/pass_flags.h"

#include "passes/pipeline/piece_alignment.h"

#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {

namespace cl = llvm::cl;

PassFlags::PassFlags(Command& command)
    : host_("host", cl::value_desc("op,module"), cl::CommaSeparated,
            cl::desc("operators (aten::mm) and module paths (blocks.3.moe) to keep out of graphs"),
            cl::sub(command.sub()), cl::cat(command.category())),
      order_(
          "order", cl::value_desc("levels|program"), cl::init("levels"),
          cl::desc("how partitions are formed: reordered by levels (default), or in program order"),
          cl::sub(command.sub()), cl::cat(command.category())),
      minPartitionSize_("min-partition-size", cl::value_desc("N"),
                        cl::init(PassOptions{}.minPartitionSize),
                        cl::desc("partitions of fewer operator calls run on the host (default 2)"),
                        cl::sub(command.sub()), cl::cat(command.category())),
      memoryGrowth_(
          "memory-growth", cl::value_desc("SHARE"), cl::init(PassOptions{}.memoryGrowth),
          cl::desc("with levels: planned peak memory may grow by this share (default 0.1)"),
          cl::sub(command.sub()), cl::cat(command.category())),
      memorySlack_("memory-slack", cl::value_desc("BYTES"), cl::init(PassOptions{}.memorySlack),
                   cl::desc("with levels: or by this many bytes, if that is more (default 64 MiB)"),
                   cl::sub(command.sub()), cl::cat(command.category())),
      alignment_("alignment", cl::value_desc("BYTES"), cl::init(PassOptions{}.alignment),
                 cl::desc("alignment of planned buffers (default 512)"), cl::sub(command.sub()),
                 cl::cat(command.category())),
      accumulateGradients_("accumulate-gradients",
                           cl::desc("add gradients to buffers that the caller gives"),
                           cl::sub(command.sub()), cl::cat(command.category())) {}

PassOptions PassFlags::options() const {
  checkOneOf("--order", order_.getValue(), {"levels", "program"});
  checkWithin("--min-partition-size", minPartitionSize_, 1);
  if (!(memoryGrowth_ >= 0)) {
    std::string given;
    llvm::raw_string_ostream(given) << llvm::format("%g", memoryGrowth_.getValue());
    throw UsageError("--memory-growth: expected a share of at least 0, found " + given);
  }
  checkWithin("--memory-slack", memorySlack_, 0);
  if (alignment_ < 1 || (alignment_ & (alignment_ - 1)) != 0) {
    throw UsageError("--alignment: expected a power of two, found " +
                     std::to_string(alignment_.getValue()));
  }
  PassOptions options;
  options.hostRequests.assign(host_.begin(), host_.end());
  options.order = order_ == "program" ? PartitionOrder::Program : PartitionOrder::Levels;
  options.minPartitionSize = minPartitionSize_;
  options.memoryGrowth = memoryGrowth_;
  options.memorySlack = memorySlack_;
  options.alignment = alignment_;
  options.pieceAlignment = pieceAlignmentOfBlas();
  options.accumulateGradients = accumulateGradients_;
  return options;
}

std::vector<std::string> passNames() {
  std::vector<std::string> names;
  for (const Pass& pass : allPasses()) names.emplace_back(pass.name);
  return names;
}

}  // namespace gravure::tool
