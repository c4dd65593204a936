#include "runtime/program/number_code.h"

#include "ir/core/program.h"
#include "ir/facts/op_facts.h"
#include "ir/torch_private/tensor_prefetch.h"
#include "runtime/program/quick_call.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringSwitch.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

namespace gravure {
namespace {

double valueAt(const void* address, bool isFloat) {
  return isFloat ? static_cast<double>(*static_cast<const float*>(address))
                 : *static_cast<const double*>(address);
}

enum class CallKind : uint8_t { None, Binary, Negate, Read, Same, CountOne, CountAll };

}  // namespace

/// Numbers the values of one entry: what is computed in the same way of the same values is one value.
class NumberCompiler {
 public:
  NumberCompiler(const EntryCode& code, const std::vector<c10::IValue>& inputs,
                 const std::vector<int64_t>& watched)
      : code_(code), inputs_(inputs), watched_(watched), values_(code.slots, -1),
        cells_(code.slots, -1) {}

  std::optional<NumberCode> compile(std::string& why) {
    for (size_t i = 0; i < code_.inputs.size(); ++i) {
      if (!inputs_[i].isDouble()) continue;
      const int32_t at = leaf(inputs_[i].toDouble());
      made_.floats_.emplace_back(i, at);
      made_.inputs_.push_back(i);
      values_[code_.inputs[i]] = at;
    }
    std::vector<const Call*> calls;
    for (const Instruction& instruction : code_.instructions) {
      if (instruction.kind == Instruction::Kind::Launch) continue;
      if (instruction.kind != Instruction::Kind::Call) {
        why = "it stages inputs, copies results or branches";
        return std::nullopt;
      }
      const Call& call = code_.calls[instruction.index];
      if (!compile(call)) {
        why = describe(call.node) + " is no call on single numbers";
        return std::nullopt;
      }
      ++made_.calls_;
    }
    for (const Launch& launch : code_.launches) {
      for (const Slot slot : launch.operands) {
        if (values_[slot] >= 0) given_.insert(slot);
        if (cells_[slot] >= 0 && made_.cells_[cells_[slot]].last >= 0) {
          why = "a partition reads a tensor that is counted in";
          return std::nullopt;
        }
      }
    }
    for (const NumberCode::Cell& cell : made_.cells_) {
      if (cell.last < 0 && llvm::is_contained(code_.written, cell.input)) {
        why = "a partition counts in a tensor that is read";
        return std::nullopt;
      }
    }
    for (const int64_t input : watched_) {
      Operand operand;
      operand.kind = Operand::Kind::FromSlot;
      operand.slot = code_.inputs.at(input);
      if (!cellOf(operand)) {
        why = "a tensor that is branched on is no number of the host's";
        return std::nullopt;
      }
    }
    if (!code_.outputs.empty()) {
      why = "it has results";
      return std::nullopt;
    }
    return finish();
  }

 private:
  using Kind = NumberCode::Kind;
  using Operation = NumberCode::Operation;

  int32_t leaf(double value) {
    leaves_.push_back(value);
    return static_cast<int32_t>(leaves_.size() - 1);
  }
  int32_t constant(double value) {
    const auto [at, fresh] = constants_.try_emplace(std::bit_cast<uint64_t>(value), 0);
    if (fresh) at->second = leaf(value);
    return at->second;
  }
  /// Results are numbered from kFirst up, until it is known how many leaves there are.
  int32_t operation(Kind kind, int32_t a, int32_t b) {
    const auto [at, fresh] = known_.try_emplace(Operation{kind, a, b}, 0);
    if (fresh) {
      at->second = kFirst + static_cast<int32_t>(made_.operations_.size());
      made_.operations_.push_back({kind, a, b});
    }
    return at->second;
  }

  int32_t valueOf(const Operand& operand) {
    if (operand.kind == Operand::Kind::Constant)
      return operand.constant.isDouble() ? constant(operand.constant.toDouble()) : -1;
    return operand.kind == Operand::Kind::FromSlot ? values_[operand.slot] : -1;
  }

  /// nullptr where the operand is no tensor of one number among the inputs.
  NumberCode::Cell* cellOf(const Operand& operand) {
    if (operand.kind != Operand::Kind::FromSlot) return nullptr;
    int32_t& index = cells_[operand.slot];
    if (index < 0 && code_.sources[operand.slot] == SlotSource::Input)
      index = newCell(operand.slot);
    return index < 0 ? nullptr : &made_.cells_[index];
  }

  int32_t newCell(Slot slot) {
    const c10::IValue& value = inputs_[slot];
    if (!value.isTensor() || !isOneNumber(value.toTensor())) return -1;
    const at::Tensor& tensor = value.toTensor();
    NumberCode::Cell cell;
    cell.input = static_cast<uint32_t>(slot);
    cell.address = const_cast<void*>(tensor.const_data_ptr());
    cell.keys = tensor.key_set();
    cell.isFloat = tensor.scalar_type() == c10::kFloat;
    if (!addresses_.insert(cell.address).second) return -1;  // counted in by two names
    const double now = valueAt(cell.address, cell.isFloat);
    const auto& infos = code_.entry->inputs;
    const bool constant =
        cell.input < infos.size() && infos[cell.input].role == InputRole::Constant;
    const auto [at, fresh] =
        equal_.try_emplace({std::bit_cast<uint64_t>(now), cell.isFloat, constant}, 0);
    if (fresh) at->second = leaf(now);
    cell.first = at->second;
    cell.leads = fresh;
    made_.cells_.push_back(cell);
    made_.inputs_.push_back(cell.input);
    now_.push_back(cell.first);
    return static_cast<int32_t>(made_.cells_.size() - 1);
  }

  int32_t& nowOf(const NumberCode::Cell& cell) { return now_[&cell - made_.cells_.data()]; }

  /// What is added to a counter: a constant that Python's int became, or another tensor of one number.
  int32_t addend(const Operand& operand, bool toFloat) {
    if (operand.kind == Operand::Kind::Constant && operand.constant.isTensor()) {
      const at::Tensor& tensor = operand.constant.toTensor();
      const bool wrapped = tensor.defined() && tensor.is_cpu() && tensor.dim() == 0 &&
                           tensor.scalar_type() == c10::kLong &&
                           tensor.unsafeGetTensorImpl()->is_wrapped_number();
      if (wrapped) return constant(static_cast<double>(*tensor.const_data_ptr<int64_t>()));
    }
    const NumberCode::Cell* const other = cellOf(operand);
    return other && other->isFloat == toFloat ? nowOf(*other) : -1;
  }

  bool count(const Operand& operand, const Operand& by) {
    const NumberCode::Cell* const found = cellOf(operand);
    if (!found) return false;
    const auto index = found - made_.cells_.data();
    const int32_t what = addend(by, found->isFloat);  // may add cells
    if (what < 0) return false;
    NumberCode::Cell& cell = made_.cells_[index];
    const Kind kind = cell.isFloat ? Kind::CountFloat : Kind::Add;
    cell.last = now_[index] = operation(kind, now_[index], what);
    return true;
  }

  static CallKind kindOf(const std::string& name) {
    return llvm::StringSwitch<CallKind>(name)
        .Cases("aten::add.float", "aten::sub.float", "aten::mul.float", CallKind::Binary)
        .Cases("aten::div.float", "aten::pow.float", CallKind::Binary)
        .Case("aten::neg.float", CallKind::Negate)
        .Cases("aten::_local_scalar_dense.", "cudagraph::read_host.", CallKind::Read)
        .Case("aten::lift_fresh.", CallKind::Same)
        .Case("aten::add_.Tensor", CallKind::CountOne)
        .Case("aten::_foreach_add_.Tensor", CallKind::CountAll)
        .Default(CallKind::None);
  }
  static Kind binaryOf(const std::string& name) {
    return llvm::StringSwitch<Kind>(name)
        .Case("aten::add.float", Kind::Add)
        .Case("aten::sub.float", Kind::Sub)
        .Case("aten::mul.float", Kind::Mul)
        .Case("aten::div.float", Kind::Div)
        .Default(Kind::Pow);
  }

  bool compile(const Call& call) {
    const std::string name =
        std::string(call.node->kind().toQualString()) + "." + overloadOf(call.node);
    const CallKind kind = kindOf(name);
    if (kind == CallKind::None || call.rng != kNoSlot || call.unpacked) return false;
    const auto& operands = call.operands;
    const size_t outputs = call.outputs.size();
    switch (kind) {
      case CallKind::Binary: {
        const int32_t a = valueOf(operands[0]), b = valueOf(operands[1]);
        if (a < 0 || b < 0 || outputs != 1) return false;
        values_[call.outputs[0]] = operation(binaryOf(name), a, b);
        return true;
      }
      case CallKind::Negate: {
        const int32_t a = valueOf(operands[0]);
        if (a < 0 || outputs != 1) return false;
        values_[call.outputs[0]] = operation(Kind::Negate, a, a);
        return true;
      }
      case CallKind::Read: {
        const NumberCode::Cell* const cell = operands.size() == 1 ? cellOf(operands[0]) : nullptr;
        if (!cell || outputs != 1) return false;
        values_[call.outputs[0]] = nowOf(*cell);
        return true;
      }
      case CallKind::Same:
        if (outputs != 1 || !cellOf(operands[0])) return false;
        cells_[call.outputs[0]] = cells_[operands[0].slot];
        return true;
      case CallKind::CountOne:
        if (!isConstantOne(operands[2]) || !count(operands[0], operands[1])) return false;
        if (outputs == 1) cells_[call.outputs[0]] = cells_[operands[0].slot];
        return outputs <= 1;
      case CallKind::CountAll:
        if (operands[0].kind != Operand::Kind::List || outputs != 0 || !isConstantOne(operands[2]))
          return false;
        for (const Operand& member : operands[0].members)
          if (!count(member, operands[1])) return false;
        return true;
      case CallKind::None: break;
    }
    return false;
  }

  NumberCode finish() {
    const auto leaves = static_cast<int32_t>(leaves_.size());
    const auto placed = [&](int32_t& at) {
      if (at >= kFirst) at = at - kFirst + leaves;
    };
    for (Operation& each : made_.operations_) {
      placed(each.a);
      placed(each.b);
    }
    for (NumberCode::Cell& cell : made_.cells_) placed(cell.last);
    for (const int64_t input : watched_) {
      const NumberCode::Cell& cell = made_.cells_[cells_[code_.inputs[input]]];
      const std::pair<int32_t, int32_t> both(cell.first, cell.last < 0 ? cell.first : cell.last);
      if (!llvm::is_contained(made_.watched_, both)) made_.watched_.push_back(both);
    }
    for (const Slot slot : given_) {
      int32_t at = values_[slot];
      placed(at);
      made_.given_.emplace_back(slot, at);
    }
    made_.values_ = std::move(leaves_);
    made_.firstResult_ = made_.values_.size();
    made_.values_.resize(made_.firstResult_ + made_.operations_.size());
    return std::move(made_);
  }

  static constexpr int32_t kFirst = 1 << 30;

  const EntryCode& code_;
  const std::vector<c10::IValue>& inputs_;
  const std::vector<int64_t>& watched_;
  NumberCode made_;
  std::vector<int32_t> values_, cells_;  // by slot: a number; a tensor of one
  std::vector<int32_t> now_;             // by cell: its value so far
  std::vector<double> leaves_;
  std::map<uint64_t, int32_t> constants_;
  std::map<std::tuple<uint64_t, bool, bool>, int32_t> equal_;  // value, dtype, a constant
  std::map<Operation, int32_t> known_;
  llvm::DenseSet<const void*> addresses_;
  std::set<Slot> given_;
};

std::optional<NumberCode> NumberCode::of(const EntryCode& code,
                                         const std::vector<c10::IValue>& inputs,
                                         const std::vector<int64_t>& watched, std::string& why) {
  return NumberCompiler(code, inputs, watched).compile(why);
}

/// Whether a tensor is the one that the code was made for, as it was then.
bool NumberCode::holds(Cell& cell, const c10::TensorImpl& tensor) {
  const bool same = tensor.key_set() == cell.keys && tensor.dim() == 0 &&
                    tensor.dtype() == (cell.isFloat ? caffe2::TypeMeta::Make<float>()
                                                    : caffe2::TypeMeta::Make<double>()) &&
                    tensor.data() == cell.address;
  if (!same) return false;
  const bool plain = TensorFields::hasPlainLayout(tensor);
  cell.memory = plain ? tensor.unsafe_storage().data() : nullptr;
  cell.words = TensorFields::wordsOf(tensor);
  return true;
}

bool NumberCode::run(const std::vector<c10::IValue>& inputs, Frame& frame) {
  for (const auto& [input, at] : floats_) {
    if (!inputs[input].isDouble()) return false;
    values_[at] = inputs[input].toDouble();
  }
  const size_t count = cells_.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + kFarAhead < count) {
      prefetchTensor(inputs[cells_[i + kFarAhead].input]);
      __builtin_prefetch(cells_[i + kFarAhead].address, 1);
    }
    if (i + kNearAhead < count) prefetchStorage(inputs[cells_[i + kNearAhead].input]);
    Cell& cell = cells_[i];
    if (!inputs[cell.input].isTensor()) return false;
    const c10::TensorImpl& tensor = *inputs[cell.input].unsafeToTensorImpl();
    const c10::StorageImpl* const storage = TensorFields::storageOf(tensor);
    const bool known = cell.memory != nullptr && storage && storage->data() == cell.memory &&
                       TensorFields::layoutOf(tensor).size() == 0 &&
                       TensorFields::hasWords(tensor, cell.words);
    if (!known && !holds(cell, tensor)) return false;
    const double value = valueAt(cell.address, cell.isFloat);
    if (cell.leads) values_[cell.first] = value;
    if (std::bit_cast<uint64_t>(value) != std::bit_cast<uint64_t>(values_[cell.first]))
      return false;
  }
  double* result = values_.data() + firstResult_;
  for (const Operation& each : operations_) {
    const double a = values_[each.a], b = values_[each.b];
    switch (each.kind) {
      case Kind::Add: *result = a + b; break;
      case Kind::Sub: *result = a - b; break;
      case Kind::Mul: *result = a * b; break;
      case Kind::Div:
        if (b == 0) return false;
        *result = a / b;
        break;
      case Kind::Pow: *result = std::pow(a, b); break;
      case Kind::Negate: *result = -a; break;
      case Kind::CountFloat:
        *result = static_cast<double>(static_cast<float>(a) + static_cast<float>(b));
        break;
    }
    ++result;
  }
  for (const auto& [slot, at] : given_) frame[slot] = values_[at];
  return true;
}

std::vector<double> NumberCode::counts(bool behind) const {
  std::vector<double> found;
  found.reserve(watched_.size());
  for (const auto& [before, after] : watched_) found.push_back(values_[behind ? after : before]);
  return found;
}

void NumberCode::count() const {
  for (const Cell& cell : cells_) {
    if (cell.last < 0) continue;
    const double value = values_[cell.last];
    if (cell.isFloat) {
      *static_cast<float*>(cell.address) = static_cast<float>(value);
    } else {
      *static_cast<double*>(cell.address) = value;
    }
  }
}

}  // namespace gravure
