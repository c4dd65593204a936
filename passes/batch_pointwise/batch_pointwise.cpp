#include "passes/batch_pointwise/batch_pointwise.h"

#include "ir/core/args.h"
#include "ir/core/fresh_name.h"
#include "ir/core/location.h"
#include "ir/core/tensor_type.h"
#include "ir/facts/value_types.h"
#include "passes/batch_pointwise/pointwise_batches.h"

#include <llvm/ADT/STLExtras.h>

#include <queue>

namespace gravure {
namespace {

constexpr const char* kPass = "batch-pointwise";

Arg inputList(size_t first, size_t count) {
  ListArg list;
  for (size_t i = 0; i < count; ++i)
    list.elements.emplace_back(InputArg{static_cast<uint32_t>(first + i)});
  return list;
}

/// What comes next in the new order: a node of the old one, the cat of a whole, or a batch.
struct Unit {
  std::vector<Node*> nodes;     // in order
  std::vector<int32_t> before;  // units
  int32_t position = 0;         // ready units come by position, then by index
};

/// Leaves out the batches that may not be made; true if there are any. Batches before them do not use
/// what they make.
bool leaveOut(PointwiseBatches& plan, const Numbering& numbering, RewriteLimit& rewrites) {
  const auto first = llvm::find_if(plan.batches, [&](const PointwiseBatch& batch) {
    return !rewrites.next(kPass, "batch of", numbering.node(batch.members.front()));
  });
  const bool any = first != plan.batches.end();
  plan.batches.erase(first, plan.batches.end());
  return any;
}

class BatchWriter {
 public:
  BatchWriter(Entry& entry, const Dependences& dependences, SizeTerms& terms,
              const PointwiseBatches& plan, Remarks& remarks)
      : graph_(*entry.graph), dependences_(dependences), numbering_(dependences.numbering()),
        terms_(terms), plan_(plan), remarks_(remarks), wholes_(plan.wholes.size(), nullptr),
        unitOfNode_(numbering_.size()), unitOfWhole_(plan.wholes.size(), -1) {}

  void run() {
    numbers_ = terms_.numbersByUnknown(graph_);
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      unitOfNode_[i] = i;
      units_.push_back({{numbering_.node(i)}, {}, i});
    }
    for (const PointwiseBatch& batch : plan_.batches) write(batch);
    for (const auto& [cat, whole] : plan_.undone) undo(cat, whole);
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      Unit& unit = units_[unitOfNode_[i]];
      for (int32_t before : dependences_.before(i)) unit.before.push_back(unitOfNode_[before]);
    }
    reorder();
    for (Node* node : llvm::reverse(gone_)) node->destroy();
    for (Node* split : splits_) {
      const bool used =
          llvm::any_of(split->outputs(), [](Value* piece) { return piece->hasUses(); });
      if (!used) split->destroy();
    }
  }

 private:
  int32_t unitOfValue(const Value* value) const {
    const int32_t definer = numbering_.definedBy(Numbering::indexOf(value));
    return definer < 0 ? -1 : unitOfNode_[definer];
  }
  void dependOn(Unit& unit, const Value* value) const {
    const int32_t before = unitOfValue(value);
    if (before >= 0) unit.before.push_back(before);
  }

  Node* create(const char* name, llvm::ArrayRef<Value*> inputs, size_t outputs, const Node* like) {
    Node* node =
        graph_.create(c10::Symbol::fromQualString(std::string("aten::") + name), inputs, outputs);
    copyLocation(node, like);
    return node;
  }

  c10::TypePtr wholeType(const Value* piece, int64_t rows) const {
    const auto* type = tensorTypeOf(piece);
    Dims sizes{rows};
    for (size_t d = 1; d < *type->dim(); ++d) sizes.push_back(type->sizes()[d]);
    return withSizes(*type, sizes);
  }

  static void name(Value* whole, const Value* piece) { nameAfter(whole, piece, ".whole"); }

  /// A tensor of the entry, or the piece that stands for it.
  Value* current(const Value* value) const {
    const auto piece = pieces_.find(value);
    return piece != pieces_.end() ? piece->second : const_cast<Value*>(value);
  }

  /// The tensor of a whole; puts it together if nothing has yet.
  Value* wholeOf(int32_t index, int64_t rows, Unit& user) {
    const Whole& whole = plan_.wholes[index];
    if (whole.origin == Whole::Origin::Value) {
      dependOn(user, whole.value);
      return current(whole.value);
    }
    if (!wholes_[index]) putTogether(index, rows);
    user.before.push_back(unitOfWhole_[index]);
    return wholes_[index];
  }

  void putTogether(int32_t index, int64_t rows) {
    const auto& pieces = plan_.wholes[index].pieces;
    std::vector<Value*> values;
    Unit unit;
    for (const Value* piece : pieces) {
      values.push_back(current(piece));
      dependOn(unit, piece);
      unit.position = std::max(unit.position, numbering_.definedBy(Numbering::indexOf(piece)));
    }
    Node* cat = create("cat", values, 1, pieces.front()->node());
    auto args = c10::make_intrusive<ArgList>();
    args->args.emplace_back(inputList(0, pieces.size()));
    setArgs(cat, std::move(args));
    cat->output()->setType(wholeType(pieces.front(), rows));
    name(cat->output(), values.front());
    unit.nodes.push_back(cat);
    wholes_[index] = cat->output();
    unitOfWhole_[index] = static_cast<int32_t>(units_.size());
    units_.push_back(std::move(unit));
  }

  void write(const PointwiseBatch& batch) {
    Node* first = numbering_.node(batch.members.front());
    remarks_.add(RemarkKind::Passed, kPass, "pointwise-batched", first,
                 std::to_string(batch.members.size()) + " calls on pieces of " +
                     std::to_string(batch.rows) + " rows became one on all");
    Unit unit;
    std::vector<Value*> inputs;
    for (size_t k = 0; k < batch.operands.size(); ++k) {
      const int32_t whole = batch.operands[k];
      inputs.push_back(whole < 0 ? first->input(k) : wholeOf(whole, batch.rows, unit));
    }
    Node* node = graph_.create(first->kind(), inputs, 1);
    node->copyAttributes(*first);
    copyLocation(node, first);
    node->output()->setType(wholeType(first->output(), batch.rows));
    name(node->output(), first->output());
    unit.nodes.push_back(node);
    addPieces(batch, node->output(), unit);

    wholes_[batch.result] = node->output();
    unitOfWhole_[batch.result] = static_cast<int32_t>(units_.size());
    for (int32_t i : batch.members) {
      unit.position = std::max(unit.position, i);
      unitOfNode_[i] = unitOfWhole_[batch.result];
      units_[i].nodes.clear();
      gone_.push_back(numbering_.node(i));
    }
    units_.push_back(std::move(unit));
  }

  /// The split that gives what used the members' results their pieces back.
  void addPieces(const PointwiseBatch& batch, Value* whole, Unit& unit) {
    std::vector<Value*> inputs{whole};
    const int32_t depth = plan_.depths[batch.members.front()];
    for (size_t p = 0; p < batch.members.size(); ++p) {
      inputs.push_back(rowsOf(batch, p, depth, unit));
    }
    const Node* first = numbering_.node(batch.members.front());
    Node* split = create("split_with_sizes", inputs, batch.members.size(), first);
    auto args = c10::make_intrusive<ArgList>();
    args->args.emplace_back(InputArg{0});
    args->args.emplace_back(inputList(1, batch.members.size()));
    setArgs(split, std::move(args));
    for (size_t p = 0; p < batch.members.size(); ++p) {
      Value* old = numbering_.node(batch.members[p])->output();
      split->output(p)->setType(old->type());
      old->replaceAllUsesWith(split->output(p));
      takeName(split->output(p), old);
      pieces_[old] = split->output(p);
    }
    splits_.push_back(split);
    unit.nodes.push_back(split);
  }

  /// How many rows piece `p` has: a number that is there below the batch's depth, or asked of an
  /// operand.
  Value* rowsOf(const PointwiseBatch& batch, size_t p, int32_t depth, Unit& unit) {
    const auto unknown = batch.pieceRows[p].unknown();
    const auto known = unknown ? numbers_.find(*unknown) : numbers_.end();
    if (known != numbers_.end()) {
      const int32_t definer = numbering_.definedBy(Numbering::indexOf(known->second));
      if (definer < 0 || plan_.depths[definer] < depth) {
        dependOn(unit, known->second);
        return known->second;
      }
    }
    Node* member = numbering_.node(batch.members[p]);
    const auto k = llvm::find_if(batch.operands, [](int32_t whole) { return whole >= 0; }) -
                   batch.operands.begin();
    Node* size = create("sym_size", {member->input(k)}, 1, member);
    setOverload(size, "int");
    setArgs(size, inputAndInt(0));
    size->output()->setType(c10::IntType::get());
    nameAfter(size->output(), member->output(), ".rows");
    unit.nodes.push_back(size);
    return size->output();
  }

  void undo(int32_t cat, int32_t whole) {
    if (!wholes_[whole]) return;  // its batch was left out
    Node* node = numbering_.node(cat);
    node->output()->replaceAllUsesWith(wholes_[whole]);
    units_[cat].nodes.clear();
    units_[cat].before.push_back(unitOfWhole_[whole]);
    gone_.push_back(node);
  }

  /// Of all units whose dependences are met, the one that stood first comes first.
  void reorder() {
    std::vector<int32_t> open(units_.size(), 0);
    std::vector<std::vector<int32_t>> behind(units_.size());
    for (size_t u = 0; u < units_.size(); ++u) {
      for (int32_t before : units_[u].before) {
        if (before == static_cast<int32_t>(u)) continue;
        behind[before].push_back(static_cast<int32_t>(u));
        ++open[u];
      }
    }
    using Ready = std::pair<int32_t, int32_t>;  // position, unit
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (open[u] == 0) ready.emplace(units_[u].position, static_cast<int32_t>(u));
    }
    size_t done = 0;
    for (; !ready.empty(); ++done) {
      const int32_t u = ready.top().second;
      ready.pop();
      for (Node* node : units_[u].nodes) {
        if (node->owningBlock()) {
          node->moveBefore(graph_.return_node());
        } else {
          node->insertBefore(graph_.return_node());
        }
      }
      for (int32_t next : behind[u]) {
        if (--open[next] == 0) ready.emplace(units_[next].position, next);
      }
    }
    TORCH_INTERNAL_ASSERT(done == units_.size(), "batches of one depth depend on each other");
  }

  Graph& graph_;
  const Dependences& dependences_;
  const Numbering& numbering_;
  SizeTerms& terms_;
  const PointwiseBatches& plan_;
  Remarks& remarks_;
  std::vector<Value*> wholes_;  // by whole
  std::vector<Unit> units_;     // nodes of the entry by index, then wholes and batches
  std::vector<int32_t> unitOfNode_;
  std::vector<int32_t> unitOfWhole_;
  llvm::DenseMap<int32_t, Value*> numbers_;      // by unknown
  llvm::DenseMap<const Value*, Value*> pieces_;  // by the result that they replace
  std::vector<Node*> gone_;
  std::vector<Node*> splits_;
};

bool hasPieces(const Entry& entry) {
  return llvm::any_of(entry.graph->nodes(), [](const Node* node) {
    return llvm::any_of(node->outputs(), [](const Value* output) {
      const auto* type = tensorTypeOf(output);
      return type && hasOpenSize(*type);
    });
  });
}

/// Writes the batches that `entry` has now; `terms` has learnt it. True if there were any, and there may
/// be more: a whole that one batch put together may make another one pay.
bool batchOnce(Program& program, Entry& entry, SizeTerms& terms, c10::Device device,
               PassContext& context) {
  if (!hasPieces(entry)) return false;
  Sharing sharing(program, context.analyses);
  const auto dependences = context.analyses.dependencesOf(entry);
  auto plan = PointwiseBatches::find(entry, *dependences, terms, sharing,
                                     context.options.pieceAlignment, device);
  const bool limited = leaveOut(plan, dependences->numbering(), context.rewrites);
  if (plan.batches.empty()) return false;
  BatchWriter(entry, *dependences, terms, plan, context.remarks).run();
  context.unchanged = false;
  context.analyses.forget(entry);
  return !limited;
}

}  // namespace

void batchPointwise(Program& program, PassContext& context) {
  context.unchanged = true;
  if (llvm::none_of(program.entries, hasPieces)) return;
  const c10::Device device = computeDevice(program);
  SizeTerms saved;  // of what earlier entries save
  for (Entry& entry : program.entries) {
    SizeTerms terms = saved;
    terms.learnAll(entry);
    while (batchOnce(program, entry, terms, device, context)) {
      terms = saved;
      terms.learnAll(entry);
    }
    terms.leave(entry);
    saved = std::move(terms);
  }
}

}  // namespace gravure
