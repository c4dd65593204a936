#include "runtime/program/transfers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace gravure {
namespace {

using c10::impl::VirtualGuardImpl;

/// The stream that copies of a device go on.
c10::Stream copyStream(c10::Device device) {
  static std::mutex mutex;
  static auto& streams = *new std::array<std::optional<c10::Stream>, 64>();
  const std::lock_guard lock(mutex);
  std::optional<c10::Stream>& stream = streams.at(static_cast<size_t>(device.index()));
  if (!stream) {
    const VirtualGuardImpl guard(device.type());
    stream = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  }
  return *stream;
}

c10::Stream currentStream(c10::Device device) {
  return VirtualGuardImpl(device.type()).getStream(device);
}

/// The ends of copies that nobody has waited for yet, by the address of what they make.
class Ends {
 public:
  static Ends& get() {
    static auto& ends = *new Ends();
    return ends;
  }
  void put(const at::Tensor& made, c10::Event end, c10::Device device) {
    const std::lock_guard lock(mutex_);
    ends_.insert_or_assign(made.const_data_ptr(), End{std::move(end), device});
  }
  void await(const at::Tensor& made) {
    const std::lock_guard lock(mutex_);
    const auto at = ends_.find(made.const_data_ptr());
    if (at == ends_.end()) {  // on the CPU it is there
      TORCH_CHECK(made.device().is_cpu(),
                  "ao::wait_tensor: no copy of this tensor is under way; each wait "
                  "follows one ao::offload or ao::reload");
      return;
    }
    at->second.event.block(currentStream(at->second.device));
    ends_.erase(at);
  }

 private:
  struct End {
    c10::Event event;
    c10::Device device;
  };
  std::mutex mutex_;
  std::unordered_map<const void*, End> ends_;
};

/// Whether copy_() makes no third tensor, whose memory would be free before the copy has ended.
bool copiesAtOnce(const at::Tensor& to, const at::Tensor& from) {
  const bool alike = to.strides() == from.strides() && from.is_non_overlapping_and_dense();
  return alike || (to.is_contiguous() && from.is_contiguous());
}

/// Copies on the stream for that, behind what the current one holds.
void copy(const at::Tensor& to, const at::Tensor& from, c10::Device device) {
  if (device.is_cpu()) {
    to.copy_(from);
    return;
  }
  const c10::Stream now = currentStream(device), aside = copyStream(device);
  c10::Event begin(device.type()), end(device.type());
  begin.record(now);
  begin.block(aside);
  {
    const c10::StreamGuard there(aside);
    to.copy_(from, /*non_blocking=*/true);
    end.record(aside);
  }
  if (!copiesAtOnce(to, from)) end.block(now);
  Ends::get().put(to, std::move(end), device);
}

void offload(torch::jit::Stack& stack) {
  const at::Tensor from = torch::jit::pop(stack).toTensor();
  const bool pinned = !from.device().is_cpu();
  const at::Tensor to =
      at::empty(from.sizes(), from.options().device(c10::kCPU).pinned_memory(pinned));
  copy(to, from, from.device());
  stack.emplace_back(to);
}

void reload(torch::jit::Stack& stack) {
  stack.resize(4);  // torch 2.12 gives no sizes and strides
  const at::Tensor from = stack[0].toTensor();
  const c10::Device device = stack[1].toDevice();
  const auto sizes = stack[2].isNone() ? from.sizes().vec() : stack[2].toIntVector();
  const auto strides = stack[3].isNone() ? from.strides().vec() : stack[3].toIntVector();
  const at::Tensor to =
      at::empty_strided(sizes, strides, from.options().device(device).pinned_memory(false));
  copy(to, from, device);
  stack.assign({to});
}

void await(torch::jit::Stack& stack) {
  stack.resize(1);
  Ends::get().await(stack[0].toTensor());
}

}  // namespace

std::function<void(torch::jit::Stack&)> transferOf(Transfer transfer) {
  switch (transfer) {
    case Transfer::ToHost: return offload;
    case Transfer::ToDevice: return reload;
    case Transfer::Wait: return await;
    case Transfer::None: break;
  }
  return {};
}

}  // namespace gravure
