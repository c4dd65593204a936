#include "python/csrc/autograd/gradient_buffers.h"

#include "python/csrc/autograd/gradients.h"
#include "runtime/results/loan_book.h"
#include "runtime/results/results.h"

#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <llvm/ADT/StringRef.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace gravure {

/// Memory that `.grad` of one tensor becomes where it is None.
struct GradientMemory {
  c10::weak_intrusive_ptr<c10::TensorImpl> owner;
  at::Tensor memory;
  std::shared_ptr<LoanBook> book;  // who holds it as a `.grad`, or as a view of one
};

namespace {

/// Another `.grad` so many times is a change of the caller's; once more, and it is one a step.
constexpr int64_t kMostMoves = 2;

/// As autograd lays a gradient out.
std::vector<int64_t> stridesOfGradient(const at::Tensor& owner) {
  if (owner.is_non_overlapping_and_dense()) return owner.strides().vec();
  std::vector<int64_t> strides(owner.dim(), 1);
  for (int64_t i = owner.dim() - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<int64_t>(owner.size(i + 1), 1);
  return strides;
}

at::Tensor memoryLike(const at::Tensor& owner) {
  return at::empty_strided(owner.sizes(), stridesOfGradient(owner), owner.options());
}

bool hasStridesOfGradient(const at::Tensor& grad, const at::Tensor& owner) {
  if (owner.is_non_overlapping_and_dense()) return grad.strides() == owner.strides();
  return grad.strides() == at::IntArrayRef(stridesOfGradient(owner));
}

/// True if a program can add to it in place, at any address.
bool fits(const at::Tensor& grad, const at::Tensor& owner) {
  const bool plain = grad.layout() == at::kStrided && !grad.requires_grad() &&
                     !grad.is_inference() && !grad.is_conj() && !grad.is_neg() &&
                     !grad.unsafeGetTensorImpl()->is_python_dispatch();
  return plain && grad.device() == owner.device() && grad.scalar_type() == owner.scalar_type() &&
         grad.sizes() == owner.sizes() && hasStridesOfGradient(grad, owner);
}

/// What is enqueued next comes after what these streams hold.
void follow(const std::vector<c10::Stream>& streams) {
  for (const c10::Stream& stream : streams) {
    c10::Event event(stream.device_type());
    event.record(stream);
    event.block(c10::impl::VirtualGuardImpl(stream.device_type()).getStream(stream.device()));
  }
}

/// False if another tensor has come to lie where its owner was, or the owner was given other data.
bool belongsTo(const GradientMemory& memory, const at::Tensor& owner) {
  return !memory.owner.expired() &&
         memory.owner._unsafe_get_target() == owner.unsafeGetTensorImpl() &&
         fits(memory.memory, owner);
}

/// The memory of all programs for the gradient of `owner`.
std::shared_ptr<GradientMemory> memoryOf(const at::Tensor& owner) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::unordered_map<const void*, std::weak_ptr<GradientMemory>>;
  static size_t most = 64;
  const std::lock_guard lock(*mutex);
  if (known->size() >= most) {  // models come and go
    std::erase_if(*known, [](const auto& each) { return each.second.expired(); });
    most = 2 * known->size() + 64;
  }
  auto& entry = (*known)[owner.unsafeGetTensorImpl()];
  std::shared_ptr<GradientMemory> found = entry.lock();
  if (found && belongsTo(*found, owner)) return found;
  c10::weak_intrusive_ptr<c10::TensorImpl> weak(owner.getIntrusivePtr());
  found.reset(new GradientMemory{std::move(weak), memoryLike(owner), std::make_shared<LoanBook>()});
  entry = found;
  return found;
}

}  // namespace

GradientBuffers::GradientBuffers(const Entry& entry) : bufferOf_(entry.inputs.size(), -1) {
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    llvm::StringRef name(entry.inputs[i].name);
    if (entry.inputs[i].role != InputRole::Buffer || !name.consume_back(".grad")) continue;
    const auto owner = std::find_if(entry.inputs.begin(), entry.inputs.end(),
                                    [&](const InputInfo& info) { return name == info.name; });
    if (owner == entry.inputs.end()) continue;
    bufferOf_[i] = static_cast<int64_t>(buffers_.size());
    Buffer& buffer = buffers_.emplace_back();
    buffer.input = i;
    buffer.owner = static_cast<size_t>(owner - entry.inputs.begin());
    buffer.name = name.str();
  }
  compared_.resize(entry.inputs.size());
}

void GradientBuffers::check(const std::vector<c10::IValue>& inputs, bool hooks) const {
  for (const Buffer& buffer : buffers_)
    checkGradientOf(inputs[buffer.owner].toTensor(), buffer.name, hooks);
}

void GradientBuffers::prepare(std::vector<c10::IValue>& inputs, Remarks& remarks) {
  const c10::AutoGradMode noGraph(false);
  begun_.clear();
  // Before any of them changes: abandon() goes by it, should this throw.
  for (Buffer& buffer : buffers_) buffer.none = !inputs[buffer.owner].toTensor().grad().defined();
  for (Buffer& buffer : buffers_)
    inputs[buffer.input] = choose(buffer, inputs[buffer.owner].toTensor(), remarks);
  separate(inputs, remarks);
  if (begun_.empty()) return;
  at::_foreach_zero_(begun_);
  at::_foreach_neg_(begun_);
}

at::Tensor GradientBuffers::choose(Buffer& buffer, const at::Tensor& owner, Remarks& remarks) {
  at::Tensor& grad = owner.mutable_grad();
  if (!buffer.apart.defined() && grad.defined()) {
    if (fits(grad, owner)) {
      const void* at = grad.const_data_ptr();
      const bool moved = buffer.last != nullptr && at != buffer.last;
      if (!moved || ++buffer.moves <= kMostMoves) {
        buffer.last = at;
        return grad;
      }
    }
    putApart(buffer, owner,
             fits(grad, owner) ? "its `.grad` is another tensor time and again"
                               : "its `.grad` is of another layout or kind",
             remarks);
  }
  if (!buffer.apart.defined()) {
    if (!buffer.ours || !belongsTo(*buffer.ours, owner)) buffer.ours = memoryOf(owner);
    if (buffer.ours->book->outstanding() == 0) {
      follow(buffer.ours->book->takeReaders());
      begun_.push_back(buffer.ours->memory);
      buffer.last = buffer.ours->memory.const_data_ptr();
      grad = Lender(nullptr).lend(buffer.ours->memory, buffer.ours->book);
      return grad;
    }
    putApart(buffer, owner, "its `.grad` was set to None and is still held", remarks);
  }
  begun_.push_back(buffer.apart);
  return buffer.apart;
}

void GradientBuffers::putApart(Buffer& buffer, const at::Tensor& owner, const std::string& why,
                               Remarks& remarks) {
  buffer.apart = memoryLike(owner);
  buffer.ours.reset();
  remarks.add(RemarkKind::Missed, "runtime", "gradient-apart",
              "\"" + buffer.name + "\": " + why +
                  "; from now on its gradient is computed in memory of the program's own and added "
                  "to `.grad` after the step");
}

/// Puts apart what shares memory with another input: the program knows nothing of that.
void GradientBuffers::separate(std::vector<c10::IValue>& inputs, Remarks& remarks) {
  for (const size_t input : findMeeting(inputs)) {
    Buffer& buffer = buffers_[bufferOf_[input]];
    if (buffer.apart.defined()) continue;
    const at::Tensor& owner = inputs[buffer.owner].toTensor();
    putApart(buffer, owner, "its `.grad` shares memory with another tensor of the program",
             remarks);
    inputs[input] = choose(buffer, owner, remarks);
    compared_[input] = buffer.apart.const_data_ptr();
  }
}

/// The buffers that share memory with another input. Only what moved since the last step is looked at.
std::vector<size_t> GradientBuffers::findMeeting(const std::vector<c10::IValue>& inputs) {
  std::vector<size_t> moved;
  bool all = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool lies = inputs[i].isTensor() && inputs[i].toTensor().has_storage();
    const void* at = lies ? inputs[i].toTensor().const_data_ptr() : nullptr;
    if (std::exchange(compared_[i], at) == at) continue;
    if (bufferOf_[i] >= 0) all = true;
    moved.push_back(i);
  }
  if (all) return meetingAmongAll(inputs);
  std::vector<size_t> meeting;
  for (const size_t i : moved) {
    const Span span = spanOf(inputs[i], i);
    for (auto at = std::lower_bound(spans_.begin(), spans_.end(), Span{span.end});
         at != spans_.begin() && std::prev(at)->end > span.begin; --at) {
      meeting.push_back(std::prev(at)->input);
    }
  }
  return meeting;
}

std::vector<size_t> GradientBuffers::meetingAmongAll(const std::vector<c10::IValue>& inputs) {
  std::vector<Span> spans;
  spans_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Span span = spanOf(inputs[i], i);
    if (span.begin == span.end) continue;
    spans.push_back(span);
    if (bufferOf_[i] >= 0) spans_.push_back(span);
  }
  std::sort(spans.begin(), spans.end());
  std::sort(spans_.begin(), spans_.end());
  std::vector<size_t> meeting;
  Span widest;  // of those that began before: the one that ends last
  for (const Span& span : spans) {
    if (span.begin < widest.end) {
      for (const size_t input : {span.input, widest.input}) {
        if (bufferOf_[input] >= 0) meeting.push_back(input);
      }
    }
    if (span.end > widest.end) widest = span;
  }
  std::sort(meeting.begin(), meeting.end());
  meeting.erase(std::unique(meeting.begin(), meeting.end()), meeting.end());
  return meeting;
}

GradientBuffers::Span GradientBuffers::spanOf(const c10::IValue& value, size_t input) {
  Span span;
  span.input = input;
  if (!value.isTensor() || !value.toTensor().has_storage()) return span;
  const at::Tensor& tensor = value.toTensor();
  if (tensor.numel() == 0) return span;
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  span.begin = static_cast<const char*>(tensor.const_data_ptr());
  span.end = span.begin + (last + 1) * static_cast<int64_t>(tensor.element_size());
  return span;
}

void GradientBuffers::finish(const std::vector<c10::IValue>& inputs) {
  const c10::AutoGradMode noGraph(false);
  begun_.clear();
  for (const Buffer& buffer : buffers_) {
    if (!buffer.apart.defined()) continue;
    const at::Tensor& owner = inputs[buffer.owner].toTensor();
    at::Tensor& grad = owner.mutable_grad();
    // It may not become `.grad` itself: no count of references allows that.
    torch::autograd::AccumulateGrad::accumulateGrad(
        owner, grad, buffer.apart, /*num_expected_refs=*/0,
        [&grad](at::Tensor&& sum) { grad = std::move(sum); });
  }
}

void GradientBuffers::abandon(const std::vector<c10::IValue>& inputs) {
  begun_.clear();
  for (const Buffer& buffer : buffers_) {
    if (buffer.none) inputs[buffer.owner].toTensor().mutable_grad() = at::Tensor();
  }
}

}  // namespace gravure
