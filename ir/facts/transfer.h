#pragma once
// PyTorch's copies of activations to the host and back, which go on behind the node that starts them:
// ao::offload, ao::reload, and ao::wait_tensor for either (torch/_functorch/_activation_offloading).

#include <cstdint>

namespace torch::jit {
struct Value;
}

namespace gravure {

enum class Transfer : uint8_t {
  None,
  ToHost,    // starts a copy into pinned memory
  ToDevice,  // starts a copy out of it
  Wait,      // returns its first operand once the copy is done; the others stay until then
};

/// True for what lies on the host for such operators alone: no other node and no result of the entry is it.
/// A graph that copies it has it as memory of its own.
bool isOnHostForTransfers(const torch::jit::Value* value);

}  // namespace gravure
