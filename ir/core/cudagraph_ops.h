#pragma once
// The cudagraph:: nodes: the only contract between passes and runtime.
//
// Written by partition-graph, refined by the passes after it:
//   %o… = cudagraph::partition[index=I, tags=[…]](%a, …)
//     block0(%a.I, …): … -> (%r, …)
//   An isolated block: it sees only its parameters, one an operand, in order.
// Written by emit-runtime-calls, read by the runtime:
//   %s… = cudagraph::stage(%x, …)           copies of the caller's values, at addresses of our own;
//                                           one batched copy a step, at the top of the entry; one more
//                                           before a partition whose operand a host node left at a new
//                                           address
//   %o… = cudagraph::launch[index=I, tags=[…]](%a, …)
//     block0(…): … -> (…)                   captured once, replayed each step; or run node by node
//   %r… = cudagraph::own(%v, …)             results moved out of the arena, in one batch
// Written by the importer:
//   %st : Byte(…) = cudagraph::save_rng_state("cpu")   state of that device's default generator
// Written by merge-host-reads:
//   %a : int, %b : int = cudagraph::read_host(%t)      all elements of a small tensor: one copy, one wait

#include "ir/core/program.h"
#include "ir/core/reason.h"

#include <optional>
#include <string>
#include <vector>

namespace gravure {

namespace cg {
extern const c10::Symbol partition;
extern const c10::Symbol stage;
extern const c10::Symbol launch;
extern const c10::Symbol own;
extern const c10::Symbol saveRngState;
extern const c10::Symbol readHost;
}  // namespace cg

namespace attr {
extern const c10::Symbol call;      // CallAttribute (never printed as an attribute)
extern const c10::Symbol overload;  // string, of a node whose operator was not looked up (likewise)
extern const c10::Symbol host;      // string: name of a HostReason
extern const c10::Symbol fate;      // int: nodes of one fate are captured together or not at all
extern const c10::Symbol index;     // int: of a partition, dense, in program order
extern const c10::Symbol tags;      // strings, one an operand of a partition: see OperandTag
/// ints, one an output: planned offset in bytes, -1 if it is not in the arena
extern const c10::Symbol arena;
/// ints, one an operand of a partition: planned offset of its staged copy, -1 if it has none; gone after
/// emit-runtime-calls
extern const c10::Symbol staging;

/// True for attributes that program text shows elsewhere than in `[…]`. Text cannot write their names.
inline bool isInternal(c10::Symbol name) { return name == call || name == overload; }
}  // namespace attr

/// How an operand of a partition keeps its address, and why.
enum class OperandKind : uint8_t {
  Static,    // the same address each step
  Staged,    // a caller's value: copied into a buffer of ours before a replay
  RngState,  // a generator
  Guarded,   // a number baked in at capture: another value means another path
};

struct OperandTag {
  OperandKind kind = OperandKind::Static;
  std::string why;  // "parameter", "buffer", "partition 3", "host node at a planned address", …

  bool operator==(const OperandTag&) const = default;
};

/// "static: parameter" and back.
std::string tagText(const OperandTag& tag);
std::optional<OperandTag> parseTag(std::string_view text);

/// Tags of a partition or launch node, one an operand; empty before tag-static-inputs ran.
std::vector<OperandTag> tagsOf(const Node* node);
void setTags(Node* node, const std::vector<OperandTag>& tags);

/// The reason written by classify-capturability, nullopt if the node may be captured.
std::optional<HostReason> hostReasonOf(const Node* node);
void setHostReason(Node* node, HostReason reason);
void clearHostReason(Node* node);

/// The fate written by group-collectives: nodes that share it are captured together or not at all.
std::optional<int64_t> fateOf(const Node* node);
void setFate(Node* node, int64_t fate);
void clearFate(Node* node);

/// True for cudagraph::partition and cudagraph::launch.
bool isPartition(const Node* node);
int64_t partitionIndex(const Node* node);

/// True if emit-runtime-calls has left something in it: launches, copies for them, or results moved out.
bool isEmitted(const Program& program);

/// List-of-string and list-of-int attributes, whatever kind a reader stored them as.
std::vector<std::string> stringsAttr(const Node* node, c10::Symbol name);
std::vector<int64_t> intsAttr(const Node* node, c10::Symbol name);

}  // namespace gravure
