#include "tools/gravure/proof/async_collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cstring>

namespace gravure::tool {
namespace {

AsyncCollectives* active = nullptr;

void activeKernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  active->call(op, *stack);
}

/// The bytes of a tensor at one time, in memory that no allocator of tensors gave: an arena is planned
/// by what operators allocate.
class Snapshot {
 public:
  explicit Snapshot(const at::Tensor& tensor)
      : bytes_(tensor.nbytes()),
        values_(at::from_blob(bytes_.data(), tensor.sizes(), tensor.options())) {
    values_.copy_(tensor);
  }
  const at::Tensor& values() const { return values_; }
  bool holds(const at::Tensor& tensor) const {
    const Snapshot now(tensor);
    return now.bytes_ == bytes_;
  }

 private:
  std::vector<char> bytes_;
  at::Tensor values_;
};

void poison(const at::Tensor& tensor) {
  Snapshot bytes(tensor);
  std::memset(bytes.values().mutable_data_ptr(), 0xff, bytes.values().nbytes());
  tensor.copy_(bytes.values());
}

bool shareStorage(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() > 0 && b.nbytes() > 0 && a.storage().data() == b.storage().data();
}

/// What each rank receives where all ranks give `given`.
at::Tensor received(std::string_view op, const at::Tensor& given, const std::string& reduction,
                    int64_t ranks, const at::Tensor& result) {
  const bool sums = reduction == "sum";
  if (op.starts_with("all_reduce")) return sums ? given.mul(2) : given.clone();
  if (op.starts_with("all_gather")) {
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < ranks; ++rank)
      parts.push_back(rank == 0 ? given : given.mul(rank + 1));
    return at::cat(parts);
  }
  if (op.starts_with("reduce_scatter")) {
    const at::Tensor part = given.narrow(0, 0, given.size(0) / ranks);
    return sums ? part.mul(ranks) : part.clone();
  }
  if (op.starts_with("all_to_all")) {
    const int64_t times =
        (result.size(0) + given.size(0) - 1) / std::max<int64_t>(given.size(0), 1);
    return at::cat(std::vector<at::Tensor>(std::max<int64_t>(times, 1), given))
        .narrow(0, 0, result.size(0));
  }
  return given.clone();  // broadcast
}

class DoneWork final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

/// Never called: the kernels above take its place. It says that its communicator is there.
class MadeUpBackend final : public c10d::Backend {
 public:
  MadeUpBackend() : Backend(0, 1) {}
  const std::string getBackendName() const override { return "made-up"; }
  uint64_t getSequenceNumberForGroup() override { return 1; }
};

}  // namespace

struct OpenCollective {
  struct Part {
    at::Tensor operand, result;
    Snapshot given, poisoned;
    bool isOpen = true;
    bool sameMemory() const { return shareStorage(operand, result); }
  };
  std::string op, name, reduction;
  int64_t ranks = 1;
  std::vector<Part> parts;
};

class AsyncCollectives::Group {
 public:
  explicit Group(std::string name) : name(std::move(name)) {
    group_->setGroupName(this->name);
    group_->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                       c10::make_intrusive<MadeUpBackend>());
    group_->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    c10d::register_process_group(this->name, group_);
  }
  ~Group() { c10d::unregister_process_group(name); }
  const std::string name;

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_ =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
};

AsyncCollectives::AsyncCollectives(CollectiveReads reads)
    : reads_(reads), kernels_(torch::Library::IMPL, "_c10d_functional", c10::DispatchKey::CPU,
                              __FILE__, __LINE__) {
  TORCH_INTERNAL_ASSERT(!active, "two emulations of collectives at a time");
  active = this;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("_c10d_functional::", 0) != 0 || !name.overload_name.empty()) continue;
    if (!c10::Dispatcher::singleton().findSchema(name)) continue;
    kernels_.impl(name.name.substr(18).c_str(),
                  torch::CppFunction::makeFromBoxedFunction<&activeKernel>());
  }
}

AsyncCollectives::~AsyncCollectives() { active = nullptr; }

void AsyncCollectives::addGroup(const std::string& name) {
  for (const auto& group : groups_) {
    if (group->name == name) return;
  }
  groups_.push_back(std::make_unique<Group>(name));
}

void AsyncCollectives::forget() {
  open_.clear();
  violations_.clear();
}

bool AsyncCollectives::isOpenResult(const at::Tensor& tensor) const {
  return !startOf(tensor).empty();
}

std::string AsyncCollectives::startOf(const at::Tensor& tensor) const {
  for (const auto& open : open_) {
    for (const auto& part : open->parts) {
      if (part.isOpen && shareStorage(part.result, tensor)) return open->name;
    }
  }
  return "";
}

void AsyncCollectives::look(const std::string& by) {
  for (auto& open : open_) {
    for (auto& part : open->parts) {
      if (!part.isOpen) continue;
      if (!part.poisoned.holds(part.result)) {
        addViolation(by + " writes the result of " + open->name + ", which was not waited for");
        part.poisoned = Snapshot(part.result);
      }
      if (!part.sameMemory() && !part.given.holds(part.operand)) {
        addViolation(by + " writes the operand of " + open->name + ", which was not waited for");
        if (reads_ == CollectiveReads::AtWait) part.given = Snapshot(part.operand);
      }
    }
  }
}

void AsyncCollectives::call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::string_view name = std::string_view(op.operator_name().name).substr(18);
  if (name == "wait_tensor") return wait(stack);
  start(name, stack);
}

void AsyncCollectives::start(std::string_view op, torch::jit::Stack& stack) {
  auto open = std::make_unique<OpenCollective>();
  open->op = op;
  open->name = name_;
  std::vector<at::Tensor> operands, results;
  for (const c10::IValue& value : stack) {
    if (value.isString() && open->reduction.empty()) open->reduction = value.toStringRef();
    if (value.isInt()) open->ranks = value.toInt();
  }
  const bool isList = stack[0].isTensorList();
  if (isList) {
    operands = stack[0].toTensorVector();
  } else {
    operands.push_back(stack[0].toTensor());
  }
  const bool isInPlace = op.ends_with('_'), isOut = op.ends_with("_out");
  for (const at::Tensor& operand : operands) {
    std::vector<int64_t> sizes = operand.sizes().vec();
    if (op.starts_with("all_gather")) sizes[0] *= open->ranks;
    if (op.starts_with("reduce_scatter")) sizes[0] /= open->ranks;
    if (op.starts_with("all_to_all")) {
      sizes[0] = 0;
      for (int64_t rows : stack[1].toDimVector()) sizes[0] += rows;
    }
    at::Tensor result = isOut       ? stack.back().toTensor()
                        : isInPlace ? operand
                                    : at::empty(sizes, operand.options());
    Snapshot given(operand);
    poison(result);
    Snapshot poisoned(result);
    open->parts.push_back({operand, result, std::move(given), std::move(poisoned)});
    results.push_back(std::move(result));
  }
  stack.clear();
  if (isList) {
    stack.emplace_back(results);
  } else {
    stack.emplace_back(results.front());
  }
  open_.push_back(std::move(open));
}

void AsyncCollectives::wait(torch::jit::Stack& stack) {
  const at::Tensor& waited = stack.back().toTensor();
  look("something");
  for (auto& open : open_) {
    for (auto& part : open->parts) {
      if (!part.isOpen || !shareStorage(part.result, waited)) continue;
      part.isOpen = false;
      const bool late = reads_ == CollectiveReads::AtWait && !part.sameMemory();
      part.result.copy_(received(open->op, late ? part.operand : part.given.values(),
                                 open->reduction, open->ranks, part.result));
    }
  }
  std::erase_if(open_, [](const auto& open) {
    return std::none_of(open->parts.begin(), open->parts.end(),
                        [](const auto& part) { return part.isOpen; });
  });
}

}  // namespace gravure::tool
