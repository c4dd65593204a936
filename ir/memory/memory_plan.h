#pragma once
// Offline placement of buffers in one arena (dynamic storage allocation).
//
// A buffer lives over the half-open interval [begin, end) of positions. Buffers that live together must
// not overlap in the arena. LOAD, the largest sum of bytes alive at one position, bounds every plan from
// below. Placement: in the order of time with best fit, forward and backward; and, while a fixed amount
// of work lasts, largest first at the lowest gap (Pisarchyk and Lee, "Efficient memory management for
// deep neural net inference", 2020) and two more orders; then those orders are mended, for as much work as
// the bytes over LOAD are worth. The smallest plan wins.

#include <cstdint>
#include <string>
#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure {

struct Buffer {
  int64_t begin = 0;
  int64_t end = 0;      // > begin
  int64_t bytes = 0;    // > 0
  int64_t offset = -1;  // multiple of the plan's alignment once placed
  std::string label;    // for print(): "%mm_3", "temporary 2 of %mm_3"
};

struct MemoryPlan {
  std::vector<Buffer> buffers;
  int64_t alignment = 512;
  int64_t bytes = 0;        // size of the arena: the largest offset + bytes, rounded up
  int64_t load = 0;         // peak live bytes, each buffer rounded up to the alignment
  int64_t comparisons = 0;  // of two buffers, that placing them at the lowest gap took

  /// bytes / load; 1 for an empty plan.
  double ratio() const;
  /// "" if every buffer is placed, aligned, inside the arena and apart from all that live with it;
  /// else one sentence naming the first two that clash. Knows nothing of how the plan was made.
  std::string verify() const;
  void print(llvm::raw_ostream& os) const;
};

/// Peak live bytes, each buffer rounded up to `alignment`. O(n log n), linear if positions are dense.
int64_t peakLoad(const std::vector<Buffer>& buffers, int64_t alignment);

/// Places `buffers`. Deterministic. Above `quadraticLimit` buffers only methods of O(n log n) run.
/// TORCH_CHECK for a buffer without life or bytes.
MemoryPlan planBuffers(std::vector<Buffer> buffers, int64_t alignment = 512,
                       size_t quadraticLimit = 20000);

}  // namespace gravure
