#include "runtime/host/host_allocator.h"

#include "runtime/device/arena_session.h"
#include "runtime/device/call_faults.h"
#include "runtime/device/step_scope.h"
#include "runtime/host/host_slab.h"

#include <c10/util/Exception.h>

#include <mutex>

namespace gravure {
namespace {

c10::DeleterFnPtr forwardedDeleter = nullptr;

/// One deleter for arena and heap, told apart by address: raw_deallocate insists on context == data,
/// so a context of our own is not possible.
void hostDelete(void* address) {
  if (!address) return;
  ArenaSession::freed(address);
  if (ArenaMemory* arenas = hostArenasAt(address)) {
    arenas->release(address);
  } else {
    forwardedDeleter(address);
  }
}

class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    ArenaSession* session = ArenaSession::of(c10::kCPU);
    if (!session || bytes == 0) return forward(bytes);
    if (session->recording()) {
      c10::DataPtr memory = forward(bytes);
      session->noteAllocation(memory.get(), bytes);
      return memory;
    }
    if (void* planned = session->serve(bytes)) return hostArenaPtr(planned);
    return forward(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &hostDelete; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::DataPtr forward(size_t bytes) {
    if (StepScope::isInside()) passCall("an allocation of PyTorch's");
    c10::DataPtr memory = base_->allocate(bytes);
    void* address = memory.get();
    // The base's context is its data: it can be given back by its deleter alone.
    memory.release_context();
    return {address, address, &hostDelete, c10::Device(c10::kCPU)};
  }

  c10::Allocator* base_;
};

}  // namespace

void installHostAllocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* base = c10::GetAllocator(c10::kCPU);
    forwardedDeleter = base->raw_deleter();
    TORCH_CHECK(forwardedDeleter,
                "the installed CPU allocator gives no raw deleter; Gravure cannot ",
                "forward to it");
    hostBlocks();
    hostPages();                                // reserve addresses before the first free asks
    auto* allocator = new HostAllocator(base);  // storages remember it: never destroyed
    c10::SetAllocator(c10::kCPU, allocator, 255);
    TORCH_CHECK(
        c10::GetAllocator(c10::kCPU) == allocator,
        "another CPU allocator of the highest priority is installed; Gravure needs its own");
  });
}

c10::DataPtr hostArenaPtr(void* address) {
  hostArenasAt(address)->retain(address);
  return {address, address, &hostDelete, c10::Device(c10::kCPU)};
}

}  // namespace gravure
