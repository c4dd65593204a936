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
  /// Nodes by index, in the order of the whole's rows: two or more, of one depth.
  std::vector<int32_t> members;
  /// For each input of a member: the whole that replaces it, -1 if all members share the input.
  std::vector<int32_t> operands;
  int32_t result = -1;  // the whole that the batch makes
  int64_t rows = 0;     // of the wholes
  std::vector<LinearSum> pieceRows;
};

/// Depth: a node is one deeper than the deepest that it depends on; nodes that only make views, and
/// number nodes, are as deep as that. So of two nodes of one depth that are neither, none depends on the
/// other, and batches of nodes of one depth leave no circle.
struct PointwiseBatches {
  /// By depth, ascending. Invariant: an operand's whole comes before the batch's result.
  std::vector<PointwiseBatch> batches;
  std::vector<Whole> wholes;
  /// aten::cat nodes that put the pieces of a batch together, and its whole.
  std::vector<std::pair<int32_t, int32_t>> undone;
  std::vector<int32_t> depths;  // by node

  /// `terms` has learnt the entry. `sharing` is the program's, and learns what comes to lie in one
  /// memory. `alignment`: PassOptions::pieceAlignment. `device`: the program's.
  static PointwiseBatches find(const Entry& entry, const Dependences& dependences, SizeTerms& terms,
                               Sharing& sharing, int64_t alignment, c10::Device device);
};

}  // namespace gravure
