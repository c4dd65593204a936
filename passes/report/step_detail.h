#pragma once
// Every operator call and every buffer of a planned program, as JSON: what the page shows
// (python/gravure/page).

#include "ir/memory/memory_plan.h"
#include "passes/pass.h"

#include <cstdint>
#include <string>
#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure {

/// One operator call. Its index in the list is its position in Timeline, by which memory plans
/// count.
struct CallRow {
  size_t entry = 0;
  int64_t partition = -1;  // -1 on the host
  std::string op;          // "aten::mm"
  std::string result;      // "%mm_3", "" without one
  std::string type;    // of the first result: "Float[4, 16]", "" if it is no tensor of known sizes
  std::string source;  // "model.py:88"
  std::string module;  // "blocks.3.moe"
  std::string reason;  // of a call on the host; "" of a number node
};

/// `program` has passed emit-runtime-calls. Linear in nodes.
std::vector<CallRow> callRows(const Program& program);

/// Bytes that a step of the entry copies into buffers of its graphs, of those whose size the program says.
int64_t stagedBytes(const Entry& entry);

/// One JSON object:
///   entries   names
///   staged    stagedBytes, by entry
///   calls     one array a call: the fields of CallRow, in order
///   planned   the arena as planned from types: bytes, live_bytes, alignment, and buffers, one array
///             each: first call, one past the last call, bytes, offset, label
///   measured  the same of `measured`, as the runtime planned it from recorded runs; null where it is
///             null or empty
///   cures     by reason, what to do
/// `program` has passed emit-runtime-calls.
void printStepDetail(const Program& program, const PassOptions& options, const MemoryPlan* measured,
                     llvm::raw_ostream& os);

}  // namespace gravure
