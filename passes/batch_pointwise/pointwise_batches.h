#pragma once
// Which pointwise nodes work on the pieces of one whole: the plan that batch-pointwise carries out.

#include "passes/analysis/dependences.h"
#include "passes/analysis/sharing.h"
#include "passes/analysis/size_terms.h"

#include <map>
#include <optional>
#include <vector>

namespace gravure {

/// A tensor whose rows the pieces are, in order.
struct Whole {
  enum class Origin : uint8_t { Value, Cat, Batch };
  std::vector<const Value*> pieces;
  Origin origin = Origin::Value;
  const Value* value = nullptr;  // Value: a tensor of the entry
};

struct PointwiseBatch {
  /// Nodes by number, in the order of the whole's rows: two or more, of one level.
  std::vector<int32_t> members;
  /// For each input of a member: the whole that takes its place, -1 if all members share the input.
  std::vector<int32_t> operands;
  int32_t result = -1;  // the whole that the batch makes
  int64_t rows = 0;     // of the wholes
  std::vector<LinearSum> pieceRows;
};

/// Levels: a node is one level above the highest that it depends on; nodes that only make views or
/// work on numbers stand on that level themselves. So of two nodes on one level that do neither, none
/// depends on the other, and batches of nodes of one level leave no circle.
struct PointwiseBatches {
  /// By level, ascending. Invariant: an operand's whole comes before the batch's result.
  std::vector<PointwiseBatch> batches;
  std::vector<Whole> wholes;
  /// aten::cat nodes that put the pieces of a batch together, and its whole.
  std::vector<std::pair<int32_t, int32_t>> undone;
  std::vector<int32_t> levels;  // by node

  /// `terms` has learnt the entry. `sharing` is the program's, and learns what comes to lie in one
  /// memory. `alignment`: PassOptions::pieceAlignment. `device`: the program's.
  static PointwiseBatches find(const Entry& entry, const Dependences& dependences, SizeTerms& terms,
                               Sharing& sharing, int64_t alignment, c10::Device device);
};

}  // namespace gravure
