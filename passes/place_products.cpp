#include "passes/place_products.h"

#include "ir/core/args.h"
#include "ir/core/fresh_name.h"
#include "ir/core/location.h"
#include "ir/facts/value_types.h"
#include "ir/memory/entry_memory.h"
#include "passes/analysis/piece_rows.h"
#include "passes/analysis/sharing.h"
#include "passes/analysis/size_terms.h"

#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {
namespace {

constexpr const char* kPass = "place-products";

const c10::Symbol kMm = c10::Symbol::fromQualString("aten::mm");
const c10::Symbol kCat = c10::Symbol::fromQualString("aten::cat");
const c10::Symbol kEmpty = c10::Symbol::fromQualString("aten::empty");
const c10::Symbol kSplit = c10::Symbol::fromQualString("aten::split_with_sizes");

/// A cat of products, each of which can be written where the cat would copy it to.
struct Placement {
  Node* cat = nullptr;
  Node* first = nullptr;     // of the products, in program order
  std::vector<Value*> rows;  // of each piece, defined before `first`
};

class PlacementFinder {
 public:
  PlacementFinder(const Entry& entry, std::shared_ptr<const EntryMemory> memory, SizeTerms& terms,
                  Sharing& sharing, int64_t alignment)
      : memory_(std::move(memory)), numbering_(*memory_->numbering), accesses_(memory_->accesses),
        terms_(terms), sharing_(sharing), alignment_(alignment),
        numbers_(terms.numbersByUnknown(*entry.graph)), results_(resultStorages(entry, accesses_)) {
  }

  /// In program order; no product is in two of them.
  std::vector<Placement> run() {
    std::vector<Placement> found;
    for (int32_t i = 0; i < numbering_.size(); ++i) {
      Node* node = numbering_.node(i);
      auto placement = node->kind() == kCat ? placementOf(node) : std::nullopt;
      if (!placement) continue;
      std::vector<const Value*> joined(node->inputs().begin(), node->inputs().end());
      joined.push_back(node->output());
      if (!sharing_.mayJoin(joined)) continue;
      sharing_.join(joined);
      placed_.insert(joined.begin(), joined.end());
      found.push_back(std::move(*placement));
    }
    return found;
  }

 private:
  std::optional<Placement> placementOf(Node* cat) {
    const Value* whole = cat->output();
    const auto row = rowOf(whole);
    if (!row || row->back() % alignment_ != 0) return std::nullopt;
    if (!tensorTypeOf(whole)->sizes()[0] || !accesses_.isNeverWritten(whole)) return std::nullopt;
    Placement placement{cat, nullptr, {}};
    int32_t first = numbering_.size();
    llvm::DenseSet<const Value*> pieces;
    for (const Value* piece : cat->inputs()) {
      if (!pieces.insert(piece).second || !isProduct(piece, whole)) return std::nullopt;
      first = std::min(first, numbering_.definedBy(Numbering::indexOf(piece)));
    }
    for (const Value* piece : cat->inputs()) {
      Value* rows = rowsBefore(piece, first);
      if (!rows) return std::nullopt;
      placement.rows.push_back(rows);
    }
    placement.first = numbering_.node(first);
    return placement;
  }

  /// True for a product that nobody can tell from a part of `whole`. Its rows are as wide, so they are
  /// what was put together.
  bool isProduct(const Value* piece, const Value* whole) const {
    const Node* node = piece->node();
    return node->kind() == kMm && overloadOf(node).empty() && sameRow(piece, whole) &&
           accesses_.isNeverWritten(piece) && !results_.contains(accesses_.storageOf(piece)) &&
           !placed_.contains(piece);
  }

  /// The number of rows of `piece`, if it is known at run time and there before node `first`;
  /// nullptr for all others.
  Value* rowsBefore(const Value* piece, int32_t first) {
    const auto unknown = (*terms_.sizesOf(piece))[0].unknown();
    const auto number = unknown ? numbers_.find(*unknown) : numbers_.end();
    if (number == numbers_.end()) return nullptr;
    return numbering_.definedBy(Numbering::indexOf(number->second)) < first ? number->second
                                                                            : nullptr;
  }

  const std::shared_ptr<const EntryMemory> memory_;
  const Numbering& numbering_;
  const StorageAccesses& accesses_;
  SizeTerms& terms_;
  Sharing& sharing_;
  const int64_t alignment_;
  const llvm::DenseMap<int32_t, Value*> numbers_;  // by unknown
  const llvm::DenseSet<int32_t> results_;          // storages
  llvm::DenseSet<const Value*> placed_;
};

class PlacementWriter {
 public:
  PlacementWriter(Graph& graph, const Placement& placement)
      : graph_(graph), cat_(placement.cat), placement_(placement) {}

  void run() {
    Node* whole = makeWhole();
    Node* split = makePlaces(whole->output());
    const std::vector<Value*> pieces(cat_->inputs().begin(), cat_->inputs().end());
    for (size_t p = 0; p < pieces.size(); ++p) place(pieces[p], split->output(p));
    cat_->output()->replaceAllUsesWith(whole->output());
    takeName(whole->output(), cat_->output());
    cat_->destroy();
  }

 private:
  Node* insert(c10::Symbol kind, const char* overload, llvm::ArrayRef<Value*> inputs,
               size_t outputs, c10::intrusive_ptr<ArgList> args, Node* like, Node* before) {
    Node* node = graph_.create(kind, inputs, outputs);
    if (*overload) setOverload(node, overload);
    setArgs(node, std::move(args));
    copyLocation(node, like);
    return node->insertBefore(before);
  }

  Node* makeWhole() {
    const c10::TensorType* type = tensorTypeOf(cat_->output());
    const auto dims = type->sizes().concrete_sizes();
    ListArg sizes;
    for (int64_t size : *dims) sizes.elements.emplace_back(size);
    auto args = c10::make_intrusive<ArgList>();
    args->args.emplace_back(std::move(sizes));
    args->args.emplace_back(static_cast<int64_t>(*type->scalarType()));
    args->args.emplace_back(AbsentArg{});
    args->args.emplace_back(*type->device());
    Node* whole = insert(kEmpty, "memory_format", {}, 1, std::move(args), cat_, placement_.first);
    whole->output()->setType(cat_->output()->type());
    return whole;
  }

  Node* makePlaces(Value* whole) {
    std::vector<Value*> inputs{whole};
    ListArg rows;
    for (Value* number : placement_.rows) {
      rows.elements.emplace_back(InputArg{static_cast<uint32_t>(inputs.size())});
      inputs.push_back(number);
    }
    auto args = c10::make_intrusive<ArgList>();
    args->args.emplace_back(InputArg{0});
    args->args.emplace_back(std::move(rows));
    return insert(kSplit, "", inputs, placement_.rows.size(), std::move(args), cat_,
                  placement_.first);
  }

  void place(Value* piece, Value* place) {
    Node* old = piece->node();
    place->setType(piece->type());
    nameAfter(place, piece, ".place");
    auto args = c10::make_intrusive<ArgList>(argsOf(old));
    std::vector<Value*> inputs(old->inputs().begin(), old->inputs().end());
    args->args.emplace_back(InputArg{static_cast<uint32_t>(inputs.size())});
    inputs.push_back(place);
    Node* product = insert(kMm, "out", inputs, 1, std::move(args), old, old);
    product->output()->setType(piece->type());
    piece->replaceAllUsesWith(product->output());
    takeName(product->output(), piece);
    old->destroy();
  }

  Graph& graph_;
  Node* cat_;
  const Placement& placement_;
};

bool joinsProducts(const Node* node) {
  return node->kind() == kCat && llvm::any_of(node->inputs(), [](const Value* piece) {
           return piece->node()->kind() == kMm;
         });
}

bool mayPlace(const Entry& entry) {
  return llvm::any_of(std::as_const(*entry.graph).nodes(), joinsProducts);
}

}  // namespace

void placeProducts(Program& program, PassContext& context) {
  context.unchanged = true;
  if (llvm::none_of(program.entries, mayPlace)) return;
  SizeTerms terms;
  Sharing sharing(program, context.analyses);
  for (Entry& entry : program.entries) {
    terms.learnAll(entry);
    std::vector<Placement> found;
    if (mayPlace(entry))
      found = PlacementFinder(entry, context.analyses.memoryOf(entry), terms, sharing,
                              context.options.pieceAlignment)
                  .run();
    terms.leave(entry);
    for (const Placement& placement : found) {
      if (!context.rewrites.next(kPass, "products of", placement.cat)) return;
      context.remarks.add(RemarkKind::Passed, kPass, "products-placed", placement.cat,
                          std::to_string(placement.rows.size()) +
                              " products are written where they were put together");
      PlacementWriter(*entry.graph, placement).run();
      context.unchanged = false;
    }
  }
}

}  // namespace gravure
