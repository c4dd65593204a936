#include "passes/batch_pointwise/pointwise_batches.h"

#include "ir/core/args.h"
#include "ir/facts/value_types.h"
#include "passes/analysis/partition_sections.h"
#include "passes/analysis/piece_rows.h"
#include "passes/batch_pointwise/batch_pointwise.h"

#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <tuple>

namespace gravure {
namespace {

c10::Symbol aten(const char* name) {
  return c10::Symbol::fromQualString(std::string("aten::") + name);
}

/// Operators with one rounding, or none: any loop over them gives the same bits.
bool roundsOnce(const Node* node) {
  static const llvm::DenseSet<uint32_t> kinds = [] {
    llvm::DenseSet<uint32_t> set;
    for (const char* name : {"_to_copy", "abs", "clone", "mul", "neg", "relu", "sub", "where"}) {
      set.insert(aten(name));
    }
    return set;
  }();
  if (node->kind() == aten("add")) {  // an alpha may be multiplied in before or after rounding
    const auto& args = argsOf(node).args;
    return args.size() < 3 || args[2].is<AbsentArg>();
  }
  return kinds.contains(static_cast<uint32_t>(node->kind()));
}

/// PyTorch's tag leaves _to_copy out, which may go to another device.
bool isCast(const Node* node) {
  if (node->kind() != aten("_to_copy") || node->inputs().size() != 1) return false;
  const auto to = deviceOf(node->output());
  return to && deviceOf(node->input(0)) == to;
}

/// True if each element of the only result follows from the operands' elements at its index, in the
/// same way wherever they lie.
bool isPointwiseAnywhere(const Node* node, const OpFacts& facts, c10::Device device) {
  if (!facts.handle) return false;
  if (!facts.handle->hasTag(at::Tag::pointwise) && !isCast(node)) return false;
  if (node->outputs().size() != 1 || !node->blocks().empty()) return false;
  const bool plain =
      !facts.random && !facts.writes && !facts.reason && !facts.effects && !facts.maybeAliases;
  return plain && (device.is_cuda() || roundsOnce(node));
}

class BatchFinder {
 public:
  BatchFinder(const Entry& entry, const Dependences& dependences, SizeTerms& terms,
              Sharing& sharing, int64_t alignment, c10::Device device, PointwiseBatches& plan)
      : entry_(entry), dependences_(dependences), numbering_(dependences.numbering()),
        accesses_(dependences.accesses()), terms_(terms), sharing_(sharing), alignment_(alignment),
        device_(device), plan_(plan), results_(resultStorages(entry, accesses_)) {}

  void run() {
    findDepths();
    collectClasses();
    if (classes_.empty()) return;
    collectWholes();
    for (auto& [key, classes] : classes_) {
      for (Class& members : classes) splitClass(members);
    }
    for (int32_t i = 0; i < numbering_.size(); ++i) findUndone(i);
  }

 private:
  /// Nodes of one operator and one depth that differ in their pieces alone.
  using Class = std::vector<int32_t>;
  using Key = std::tuple<int32_t, std::string, std::string>;  // depth, operator, overload

  void findDepths() {
    plan_.depths.assign(numbering_.size(), 0);
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      int32_t depth = 0;
      for (int32_t before : dependences_.before(i)) depth = std::max(depth, plan_.depths[before]);
      const OpFacts& facts = numbering_.facts(i);
      const bool makesNothing = facts.numbersOnly || isView(facts) ||
                                llvm::none_of(numbering_.node(i)->outputs(), isTensorValue);
      plan_.depths[i] = depth + (makesNothing ? 0 : 1);
    }
  }

  bool isCandidate(int32_t i) {
    const Node* node = numbering_.node(i);
    if (numbering_.isNested(i) || !isPointwiseAnywhere(node, numbering_.facts(i), device_)) {
      return false;
    }
    const Value* output = node->output();
    const auto row = rowOf(output);
    if (!row || row->back() % alignment_ != 0 || tensorTypeOf(output)->sizes()[0]) return false;
    if (!accesses_.isNeverWritten(output)) return false;
    if (results_.contains(accesses_.storageOf(output))) return false;
    return llvm::any_of(node->inputs(), [&](const Value* in) { return isPiece(in, output); });
  }

  /// True for an operand that has a row for each row of the result.
  bool isPiece(const Value* in, const Value* output) {
    const auto* type = tensorTypeOf(in);
    if (!type || type->dim() != tensorTypeOf(output)->dim() || !rowOf(in)) return false;
    return accesses_.isNeverWritten(in) &&
           terms_.areEqual((*terms_.sizesOf(in))[0], (*terms_.sizesOf(output))[0]);
  }

  /// True for an operand that takes no part in counting rows, so that members may share it.
  static bool isShared(const Value* in, const Value* output) {
    const auto* type = tensorTypeOf(in);
    if (!type) return !isTensorValue(in);
    if (!type->dim()) return false;
    return *type->dim() < *tensorTypeOf(output)->dim() || type->sizes()[0] == int64_t{1};
  }

  bool canJoin(const Node* first, const Node* node) {
    if (!(argsOf(first) == argsOf(node)) || !sameRow(first->output(), node->output())) return false;
    for (size_t k = 0; k < node->inputs().size(); ++k) {
      const Value *a = first->input(k), *b = node->input(k);
      if (isPiece(a, first->output()) && isPiece(b, node->output()) && sameRow(a, b)) continue;
      if (a != b || !isShared(a, first->output())) return false;
    }
    return true;
  }

  void collectClasses() {
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      if (!isCandidate(i)) continue;
      const Node* node = numbering_.node(i);
      auto& classes = classes_[{plan_.depths[i], node->kind().toQualString(), overloadOf(node)}];
      const auto fits = llvm::find_if(classes, [&](const Class& other) {
        return canJoin(numbering_.node(other.front()), node);
      });
      (fits != classes.end() ? *fits : classes.emplace_back()).push_back(i);
    }
  }

  /// Wholes that the entry has: what was split, and what was put together.
  void collectWholes() {
    static const auto split = aten("split_with_sizes"), cat = aten("cat");
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      const Node* node = numbering_.node(i);
      if (node->kind() == split && isFirst(node, 2) && rowOf(node->input(0)) &&
          accesses_.isNeverWritten(node->input(0))) {
        addWhole({{node->outputs().begin(), node->outputs().end()},
                  Whole::Origin::Value,
                  node->input(0)});
      } else if (node->kind() == cat && isFirst(node, 1) && rowOf(node->output()) &&
                 accesses_.isNeverWritten(node->output()) &&
                 llvm::all_of(node->inputs(),
                              [&](const Value* in) { return accesses_.isNeverWritten(in); })) {
        addWhole(
            {{node->inputs().begin(), node->inputs().end()}, Whole::Origin::Value, node->output()});
      }
    }
  }

  /// True if the argument, a dimension, is the first one, given or by default.
  static bool isFirst(const Node* node, size_t at) { return constantInt(node, at, 0) == 0; }

  int32_t addWhole(Whole whole) {
    const auto [at, isNew] =
        wholeOf_.try_emplace(whole.pieces, static_cast<int32_t>(plan_.wholes.size()));
    if (isNew) plan_.wholes.push_back(std::move(whole));
    return at->second;
  }

  /// A whole that can be had below `depth`, -1 if there is none.
  int32_t findWhole(const std::vector<const Value*>& pieces, int32_t depth) const {
    const auto found = wholeOf_.find(pieces);
    if (found == wholeOf_.end()) return -1;
    const Whole& whole = plan_.wholes[found->second];
    if (whole.origin != Whole::Origin::Value) return found->second;
    const int32_t definer = numbering_.definedBy(Numbering::indexOf(whole.value));
    return definer < 0 || plan_.depths[definer] < depth ? found->second : -1;
  }

  LinearSum rowsOf(int32_t i) { return (*terms_.sizesOf(numbering_.node(i)->output()))[0]; }

  /// A class may hold several nodes of one piece: the first of each piece are a batch, then the
  /// second, and so on.
  void splitClass(const Class& members) {
    std::vector<std::vector<std::pair<LinearSum, int32_t>>> rounds;
    for (int32_t i : members) {
      const LinearSum rows = rowsOf(i);
      const auto open = llvm::find_if(rounds, [&](const auto& round) {
        return llvm::none_of(round, [&](const auto& other) { return other.first == rows; });
      });
      (open != rounds.end() ? *open : rounds.emplace_back()).emplace_back(rows, i);
    }
    for (auto& round : rounds) {
      std::stable_sort(round.begin(), round.end(), [](const auto& a, const auto& b) {
        return a.first.terms() < b.first.terms();
      });
      tryBatch(round);
    }
  }

  void tryBatch(const std::vector<std::pair<LinearSum, int32_t>>& round) {
    if (round.size() < 2) return;
    PointwiseBatch batch;
    LinearSum total;
    for (const auto& [rows, i] : round) {
      total = total.plus(rows);
      batch.members.push_back(i);
      batch.pieceRows.push_back(rows);
    }
    const auto rows = terms_.constantOf(total);
    if (!rows || *rows < 1) return;
    batch.rows = *rows;
    if (!paysOff(batch)) return;
    std::vector<const Value*> results;
    for (int32_t i : batch.members) results.push_back(numbering_.node(i)->output());
    if (!sharing_.mayJoin(results)) return;
    sharing_.join(results);
    for (size_t k = 0; k < firstOf(batch)->inputs().size(); ++k) {
      batch.operands.push_back(isPieceOf(batch, k) ? wholeFor(batch, k) : -1);
    }
    wholeOf_.erase(results);  // a cat of them, which comes later and goes
    batch.result = addWhole({std::move(results), Whole::Origin::Batch, nullptr});
    plan_.batches.push_back(std::move(batch));
  }

  const Node* firstOf(const PointwiseBatch& batch) const {
    return numbering_.node(batch.members.front());
  }
  bool isPieceOf(const PointwiseBatch& batch, size_t k) {
    return isPiece(firstOf(batch)->input(k), firstOf(batch)->output());
  }
  std::vector<const Value*> piecesOf(const PointwiseBatch& batch, size_t k) const {
    std::vector<const Value*> pieces;
    for (int32_t i : batch.members) pieces.push_back(numbering_.node(i)->input(k));
    return pieces;
  }
  int32_t wholeFor(const PointwiseBatch& batch, size_t k) {
    auto pieces = piecesOf(batch, k);
    const int32_t found = findWhole(pieces, plan_.depths[batch.members.front()]);
    if (found >= 0) return found;
    wholeOf_.erase(pieces);  // one that comes too late
    return addWhole({std::move(pieces), Whole::Origin::Cat, nullptr});
  }

  /// Calls saved, less the calls and copies of putting wholes together.
  bool paysOff(const PointwiseBatch& batch) {
    int64_t worth = static_cast<int64_t>(batch.members.size() - 1) * kBytesPerCall;
    std::vector<std::vector<const Value*>> made;
    for (size_t k = 0; k < firstOf(batch)->inputs().size(); ++k) {
      auto pieces = piecesOf(batch, k);
      if (!isPieceOf(batch, k) || llvm::is_contained(made, pieces) ||
          findWhole(pieces, plan_.depths[batch.members.front()]) >= 0) {
        continue;
      }
      worth -= kBytesPerCall + batch.rows * rowOf(pieces.front())->back();
      made.push_back(std::move(pieces));
    }
    return worth > 0;
  }

  void findUndone(int32_t i) {
    static const auto cat = aten("cat");
    const Node* node = numbering_.node(i);
    if (node->kind() != cat || !isFirst(node, 1)) return;
    const auto found = wholeOf_.find({node->inputs().begin(), node->inputs().end()});
    if (found == wholeOf_.end() || plan_.wholes[found->second].origin != Whole::Origin::Batch) {
      return;
    }
    const bool returned = llvm::is_contained(entry_.graph->outputs(), node->output());
    if (!accesses_.isNeverWritten(node->output()) || returned) return;
    std::vector<const Value*> joined = plan_.wholes[found->second].pieces;
    joined.push_back(node->output());
    if (!sharing_.mayJoin(joined)) return;
    sharing_.join(joined);
    plan_.undone.emplace_back(i, found->second);
  }

  const Entry& entry_;
  const Dependences& dependences_;
  const Numbering& numbering_;
  const StorageAccesses& accesses_;
  SizeTerms& terms_;
  Sharing& sharing_;
  const int64_t alignment_;
  const c10::Device device_;
  PointwiseBatches& plan_;
  const llvm::DenseSet<int32_t> results_;      // storages
  std::map<Key, std::vector<Class>> classes_;  // by depth first
  std::map<std::vector<const Value*>, int32_t> wholeOf_;
};

}  // namespace

PointwiseBatches PointwiseBatches::find(const Entry& entry, const Dependences& dependences,
                                        SizeTerms& terms, Sharing& sharing, int64_t alignment,
                                        c10::Device device) {
  PointwiseBatches plan;
  BatchFinder(entry, dependences, terms, sharing, alignment, device, plan).run();
  return plan;
}

}  // namespace gravure
