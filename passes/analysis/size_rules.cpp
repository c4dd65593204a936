#include "passes/analysis/size_rules.h"

#include "ir/facts/value_types.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLExtras.h>

#include <limits>

namespace gravure {
namespace {

bool isPointwise(const Node* node) {
  const OpFacts& facts = factsOf(node);
  return facts.handle && facts.handle->hasTag(at::Tag::pointwise);
}

bool isOne(const LinearSum& sum) { return sum.isConstant() && sum.constant() == 1; }

/// Wraps a negative dimension; nullopt if it is out of range.
std::optional<size_t> wrapped(int64_t dim, size_t dims) {
  if (dim < 0) dim += static_cast<int64_t>(dims);
  if (dim < 0 || dim >= static_cast<int64_t>(dims)) return std::nullopt;
  return static_cast<size_t>(dim);
}

}  // namespace

// Overloads share a rule; one whose arguments do not fit it finds no dimension or list, and ends in
// nullopt.
SizeRules::Rule SizeRules::ruleFor(c10::Symbol kind) {
  static const llvm::DenseMap<uint32_t, Rule> rules = [] {
    llvm::DenseMap<uint32_t, Rule> table;
    const auto add = [&](Rule rule, std::initializer_list<const char*> names) {
      for (const char* name : names) {
        table[c10::Symbol::fromQualString(std::string("aten::") + name)] = rule;
      }
    };
    add(&SizeRules::ofFirst,
        {"_log_softmax", "_softmax", "_to_copy", "alias", "contiguous", "cumsum", "detach",
         "dropout", "empty_like", "full_like", "index_add", "index_put", "native_dropout",
         "ones_like", "scatter", "scatter_add", "zeros_like"});
    add(&SizeRules::mm, {"mm"});
    add(&SizeRules::addmm, {"addmm"});
    add(&SizeRules::transpose, {"t", "transpose"});
    add(&SizeRules::unsqueeze, {"unsqueeze"});
    add(&SizeRules::squeeze, {"squeeze"});
    add(&SizeRules::select, {"select"});
    add(&SizeRules::expand, {"expand"});
    add(&SizeRules::firstList, {"empty", "full", "ones", "zeros"});
    add(&SizeRules::secondList,
        {"_unsafe_view", "new_empty", "new_full", "new_ones", "new_zeros", "reshape", "view"});
    add(&SizeRules::slice, {"slice"});
    add(&SizeRules::cat, {"cat"});
    add(&SizeRules::reduce, {"amax", "amin", "mean", "sum"});
    add(&SizeRules::index, {"index", "index_select"});
    return table;
  }();
  const auto found = rules.find(static_cast<uint32_t>(kind));
  return found == rules.end() ? nullptr : found->second;
}

std::optional<LinearSum> SizeRules::number() const {
  static const auto add = c10::Symbol::fromQualString("aten::add");
  static const auto sub = c10::Symbol::fromQualString("aten::sub");
  static const auto mul = c10::Symbol::fromQualString("aten::mul");
  static const auto symSize = c10::Symbol::fromQualString("aten::sym_size");
  static const auto size = c10::Symbol::fromQualString("aten::size");
  const c10::Symbol kind = node_->kind();
  if (kind == symSize || kind == size) {
    const auto sizes = sizesOfArg(0);
    const auto dim = sizes ? dimAt(1, sizes->size(), 0) : std::nullopt;
    return dim ? std::optional((*sizes)[*dim]) : std::nullopt;
  }
  if (kind != add && kind != sub && kind != mul) return std::nullopt;
  const auto a = numberAt(0), b = numberAt(1);
  if (!a || !b) return std::nullopt;
  if (kind != mul) return a->plus(*b, kind == add ? 1 : -1);
  if (!a->isConstant() && !b->isConstant()) return std::nullopt;
  const LinearSum& factor = a->isConstant() ? *a : *b;
  return LinearSum().plus(a->isConstant() ? *b : *a, factor.constant());
}

llvm::SmallVector<std::optional<SizeRules::Sizes>, 1> SizeRules::sizes() {
  static const auto splitWithSizes = c10::Symbol::fromQualString("aten::split_with_sizes");
  if (node_->kind() == splitWithSizes) return split();
  if (node_->kind().ns() != c10::Symbol::fromQualString("aten::_").ns()) return {};
  if (const Rule rule = ruleFor(node_->kind())) return {(this->*rule)()};
  if (isPointwise(node_) && node_->outputs().size() == 1) return {pointwise()};
  return {};
}

const Arg* SizeRules::arg(size_t at) const {
  const ArgList& list = argsOf(node_);
  if (at >= list.args.size() || list.args[at].is<AbsentArg>()) return nullptr;
  return list.args[at].is<NoneArg>() ? nullptr : &list.args[at];
}

const Value* SizeRules::valueOf(const Arg& arg) const {
  return arg.is<InputArg>() ? node_->input(arg.as<InputArg>().index) : nullptr;
}

std::optional<SizeRules::Sizes> SizeRules::sizesOfArg(size_t at) const {
  const Arg* tensor = arg(at);
  const Value* value = tensor ? valueOf(*tensor) : nullptr;
  return value ? terms_.sizesOf(value) : std::nullopt;
}

std::optional<LinearSum> SizeRules::numberOf(const Arg& arg) const {
  if (arg.is<int64_t>()) return LinearSum(arg.as<int64_t>());
  const Value* value = valueOf(arg);
  if (!value || value->type()->kind() != c10::TypeKind::IntType) return std::nullopt;
  return terms_.ofNumber(value);
}

std::optional<LinearSum> SizeRules::numberAt(size_t at) const {
  const Arg* number = arg(at);
  return number ? numberOf(*number) : std::nullopt;
}

std::optional<size_t> SizeRules::dimAt(size_t at, size_t dims, int64_t byDefault) const {
  const auto dim = constantInt(node_, at, byDefault);
  return dim ? wrapped(*dim, dims) : std::nullopt;
}

std::optional<SizeRules::Along> SizeRules::along(std::optional<size_t> at) const {
  auto sizes = sizesOfArg(0);
  if (!sizes) return std::nullopt;
  const auto dim = at ? dimAt(*at, sizes->size(), 0) : wrapped(0, sizes->size());
  if (!dim) return std::nullopt;
  return Along{std::move(*sizes), static_cast<std::ptrdiff_t>(*dim)};
}

std::optional<std::vector<size_t>> SizeRules::dimsAt(size_t at, size_t dims) const {
  const Arg* list = arg(at);
  if (!list || !list->elements()) return std::nullopt;
  std::vector<size_t> found;
  for (const Arg& element : *list->elements()) {
    const auto dim = element.is<int64_t>() ? wrapped(element.as<int64_t>(), dims) : std::nullopt;
    if (!dim) return std::nullopt;
    found.push_back(*dim);
  }
  return found;
}

/// A list of sizes. None may be a negative constant: -1 asks the operator to work the size out.
std::optional<SizeRules::Sizes> SizeRules::listAt(size_t at) const {
  const Arg* list = arg(at);
  if (!list || !list->elements()) return std::nullopt;
  Sizes sizes;
  for (const Arg& element : *list->elements()) {
    auto size = numberOf(element);
    if (!size || (size->isConstant() && size->constant() < 0)) return std::nullopt;
    sizes.push_back(std::move(*size));
  }
  return sizes;
}

std::optional<SizeRules::Sizes> SizeRules::ofFirst() const { return sizesOfArg(0); }
std::optional<SizeRules::Sizes> SizeRules::firstList() const { return listAt(0); }
std::optional<SizeRules::Sizes> SizeRules::secondList() const { return listAt(1); }

/// Broadcasts as PyTorch does. A size that is known and not 1 is the result's, whatever the others
/// are: they are that, or 1.
std::optional<SizeRules::Sizes> SizeRules::pointwise() const {
  Sizes result;
  for (const Value* input : node_->inputs()) {
    if (!tensorTypeOf(input)) continue;
    auto sizes = terms_.sizesOf(input);
    if (!sizes) return std::nullopt;
    if (sizes->size() > result.size()) {
      result.insert(result.begin(), sizes->size() - result.size(), LinearSum(1));
    }
    const size_t shift = result.size() - sizes->size();
    for (size_t d = 0; d < sizes->size(); ++d) {
      LinearSum &mine = result[shift + d], &other = (*sizes)[d];
      if (isOne(other) || terms_.areEqual(mine, other)) continue;
      if (!isOne(mine) && !other.isConstant()) {
        if (!mine.isConstant()) return std::nullopt;
        continue;
      }
      mine = other;
    }
  }
  return result;
}

std::optional<SizeRules::Sizes> SizeRules::mm() const {
  const auto a = sizesOfArg(0), b = sizesOfArg(1);
  if (!a || !b || a->size() != 2 || b->size() != 2) return std::nullopt;
  return Sizes{(*a)[0], (*b)[1]};
}

std::optional<SizeRules::Sizes> SizeRules::addmm() const {
  const auto a = sizesOfArg(1), b = sizesOfArg(2);
  if (!a || !b || a->size() != 2 || b->size() != 2) return std::nullopt;
  return Sizes{(*a)[0], (*b)[1]};
}

std::optional<SizeRules::Sizes> SizeRules::transpose() const {
  auto sizes = sizesOfArg(0);
  if (!sizes || sizes->size() < 2) return sizes;
  const auto a = dimAt(1, sizes->size(), 0), b = dimAt(2, sizes->size(), 1);
  if (!a || !b) return std::nullopt;
  std::swap((*sizes)[*a], (*sizes)[*b]);
  return sizes;
}

std::optional<SizeRules::Sizes> SizeRules::unsqueeze() const {
  auto sizes = sizesOfArg(0);
  const auto at = sizes ? dimAt(1, sizes->size() + 1, 0) : std::nullopt;
  if (!at || !arg(1)) return std::nullopt;
  sizes->insert(sizes->begin() + static_cast<int64_t>(*at), LinearSum(1));
  return sizes;
}

std::optional<SizeRules::Sizes> SizeRules::squeeze() const {
  auto from = along(1);
  if (!from || !arg(1) || !from->size().isConstant()) return std::nullopt;
  if (isOne(from->size())) from->sizes.erase(from->sizes.begin() + from->dim);
  return from->sizes;
}

std::optional<SizeRules::Sizes> SizeRules::select() const {
  auto from = along(1);
  if (!from || !arg(1)) return std::nullopt;
  from->sizes.erase(from->sizes.begin() + from->dim);
  return from->sizes;
}

std::optional<SizeRules::Sizes> SizeRules::expand() const {
  const auto from = sizesOfArg(0);
  const Arg* list = arg(1);
  if (!from || !list || !list->elements() || list->elements()->size() < from->size()) {
    return std::nullopt;
  }
  const size_t shift = list->elements()->size() - from->size();
  Sizes sizes;
  for (const Arg& element : *list->elements()) {
    auto size = numberOf(element);
    const size_t d = sizes.size();
    const bool kept = size && size->isConstant() && size->constant() == -1;
    if (!size || (kept && d < shift)) return std::nullopt;
    sizes.push_back(kept ? (*from)[d - shift] : std::move(*size));
  }
  return sizes;
}

/// Only with bounds that are proven to lie in the tensor, so that none is clamped or counted from the
/// end.
std::optional<SizeRules::Sizes> SizeRules::slice() const {
  auto from = along(1);
  if (!from || constantInt(node_, 4, 1) != int64_t{1}) return std::nullopt;
  const LinearSum size = from->size();
  const auto begin = arg(2) ? numberAt(2) : LinearSum(0);
  auto end = arg(3) ? numberAt(3) : size;
  if (!begin || !end) return std::nullopt;
  if (end->isConstant() && end->constant() == std::numeric_limits<int64_t>::max()) end = size;
  const bool inside = terms_.isNotNegative(*begin) && terms_.isNotNegative(end->minus(*begin)) &&
                      terms_.isNotNegative(size.minus(*end));
  if (!inside) return std::nullopt;
  from->size() = end->minus(*begin);
  return from->sizes;
}

/// Of tensors that have as many dimensions as the result; cat skips others if they are empty.
std::optional<SizeRules::Sizes> SizeRules::cat() const {
  const Arg* list = arg(0);
  if (!list || !list->elements()) return std::nullopt;
  Sizes result;
  size_t dim = 0;
  for (const Arg& element : *list->elements()) {
    const Value* value = valueOf(element);
    auto sizes = value ? terms_.sizesOf(value) : std::nullopt;
    if (!sizes || sizes->size() < 2) return std::nullopt;
    if (result.empty()) {
      const auto along = dimAt(1, sizes->size(), 0);
      if (!along) return std::nullopt;
      dim = *along;
      result = std::move(*sizes);
      continue;
    }
    if (sizes->size() != result.size()) return std::nullopt;
    result[dim] = result[dim].plus((*sizes)[dim]);
  }
  return result.empty() ? std::nullopt : std::optional(std::move(result));
}

std::optional<SizeRules::Sizes> SizeRules::reduce() const {
  auto sizes = sizesOfArg(0);
  const auto dims = sizes ? dimsAt(1, sizes->size()) : std::nullopt;
  if (!dims || dims->empty()) return std::nullopt;
  const bool keeps = arg(2) && arg(2)->is<bool>() && arg(2)->as<bool>();
  Sizes kept;
  for (size_t d = 0; d < sizes->size(); ++d) {
    if (!llvm::is_contained(*dims, d)) {
      kept.push_back((*sizes)[d]);
    } else if (keeps) {
      kept.emplace_back(1);
    }
  }
  return kept;
}

/// index_select(x, dim, i), and index(x, [i]) with one index of numbers: of the first dimension.
std::optional<SizeRules::Sizes> SizeRules::index() const {
  static const auto select = c10::Symbol::fromQualString("aten::index_select");
  const bool selects = node_->kind() == select;
  auto from = selects ? along(1) : along(std::nullopt);
  const Arg* indices = arg(selects ? 2 : 1);
  if (!from || !indices) return std::nullopt;
  if (!selects) {
    if (!indices->elements() || indices->elements()->size() != 1) return std::nullopt;
    indices = &indices->elements()->front();
  }
  const Value* value = valueOf(*indices);
  const auto* type = value ? tensorTypeOf(value) : nullptr;
  if (!type || (type->scalarType() != at::kLong && type->scalarType() != at::kInt)) {
    return std::nullopt;  // a mask, or what may be one
  }
  const auto count = terms_.sizesOf(value);
  if (!count || count->size() != 1) return std::nullopt;
  from->size() = count->front();
  return from->sizes;
}

llvm::SmallVector<std::optional<SizeRules::Sizes>, 1> SizeRules::split() {
  const auto whole = along(2);
  const Arg* list = arg(1);
  if (!whole || !list || !list->elements()) return {};
  llvm::SmallVector<std::optional<Sizes>, 1> pieces;
  LinearSum total;
  for (const Arg& element : *list->elements()) {
    const auto size = numberOf(element);
    if (!size) return {};
    // split_with_sizes throws at a negative one.
    if (const auto unknown = size->unknown()) terms_.notNegative_[*unknown] = true;
    total = total.plus(*size);
    Along piece = *whole;
    piece.size() = *size;
    pieces.push_back(std::move(piece.sizes));
  }
  terms_.addRelation(total.minus(whole->size()));
  return pieces;
}

}  // namespace gravure
