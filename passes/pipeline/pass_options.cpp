#include "passes/pipeline/pass_options.h"

#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/ADT/StringRef.h>

#include <charconv>
#include <cmath>
#include <iterator>

namespace gravure {
namespace {

/// A whole number of at least `least`.
template <int64_t PassOptions::*member, int64_t least>
bool setCount(PassOptions& options, std::string_view value) {
  int64_t count = 0;
  if (llvm::StringRef(value).getAsInteger(10, count) || count < least) return false;
  options.*member = count;
  return true;
}

template <int64_t PassOptions::*member>
bool setPowerOfTwo(PassOptions& options, std::string_view value) {
  int64_t bytes = 0;
  const bool is =
      !llvm::StringRef(value).getAsInteger(10, bytes) && bytes > 0 && (bytes & (bytes - 1)) == 0;
  if (is) options.*member = bytes;
  return is;
}

template <int64_t PassOptions::*member>
std::string numberOf(const PassOptions& options) {
  return std::to_string(options.*member);
}

bool setShare(PassOptions& options, std::string_view value) {
  double share = 0;
  if (llvm::StringRef(value).getAsDouble(share) || !std::isfinite(share) || share < 0) return false;
  options.memoryGrowth = share;
  return true;
}

/// As few digits as tell it from all other numbers.
std::string shareOf(const PassOptions& options) {
  char text[32];
  return std::string(text, std::to_chars(text, std::end(text), options.memoryGrowth).ptr);
}

bool setOrder(PassOptions& options, std::string_view value) {
  if (value != "levels" && value != "program") return false;
  options.order = value == "levels" ? PartitionOrder::Levels : PartitionOrder::Program;
  return true;
}

std::string orderOf(const PassOptions& options) {
  return options.order == PartitionOrder::Levels ? "levels" : "program";
}

bool setHost(PassOptions& options, std::string_view value) {
  llvm::SmallVector<llvm::StringRef, 4> names;
  llvm::StringRef(value).split(names, ',', -1, /*KeepEmpty=*/false);
  options.hostRequests.clear();
  for (llvm::StringRef name : names) options.hostRequests.push_back(name.str());
  return true;
}

std::string hostOf(const PassOptions& options) { return llvm::join(options.hostRequests, ","); }

template <bool PassOptions::*member>
bool setFlag(PassOptions& options, std::string_view value) {
  if (value != "" && value != "true" && value != "false") return false;
  options.*member = value != "false";
  return true;
}

template <bool PassOptions::*member>
std::string flagOf(const PassOptions& options) {
  return options.*member ? "true" : "false";
}

constexpr PassOption kAccumulateGradients[] = {{"enabled", "true, false or no value",
                                                setFlag<&PassOptions::accumulateGradients>,
                                                flagOf<&PassOptions::accumulateGradients>}};
constexpr PassOption kPieces[] = {{"piece-alignment", "a power of two",
                                   setPowerOfTwo<&PassOptions::pieceAlignment>,
                                   numberOf<&PassOptions::pieceAlignment>}};
constexpr PassOption kClassifyCapturability[] = {
    {"host", "operators and module paths, with commas between", setHost, hostOf},
    {"write-numbers", "true, false or no value", setFlag<&PassOptions::writeNumbers>,
     flagOf<&PassOptions::writeNumbers>}};
constexpr PassOption kPartitionGraph[] = {
    {"order", "levels or program", setOrder, orderOf},
    {"min-size", "a whole number of at least 1", setCount<&PassOptions::minPartitionSize, 1>,
     numberOf<&PassOptions::minPartitionSize>},
    {"memory-growth", "a share of at least 0", setShare, shareOf},
    {"memory-slack", "a whole number of bytes", setCount<&PassOptions::memorySlack, 0>,
     numberOf<&PassOptions::memorySlack>}};
constexpr PassOption kPlanMemory[] = {{"alignment", "a power of two",
                                       setPowerOfTwo<&PassOptions::alignment>,
                                       numberOf<&PassOptions::alignment>}};

}  // namespace

llvm::ArrayRef<PassOption> accumulateGradientsOptions() { return kAccumulateGradients; }
llvm::ArrayRef<PassOption> pieceOptions() { return kPieces; }
llvm::ArrayRef<PassOption> classifyCapturabilityOptions() { return kClassifyCapturability; }
llvm::ArrayRef<PassOption> partitionGraphOptions() { return kPartitionGraph; }
llvm::ArrayRef<PassOption> planMemoryOptions() { return kPlanMemory; }

}  // namespace gravure
