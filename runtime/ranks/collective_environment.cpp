#include "runtime/ranks/collective_environment.h"

#include <llvm/ADT/StringRef.h>

#include <cstdlib>

namespace gravure {
namespace {

/// PyTorch reads its switches so; NCCL's are numbers.
bool isOn(const char* value) {
  const llvm::StringRef text = value ? value : "";
  return text == "1" || text.equals_insensitive("true") || text.equals_insensitive("t") ||
         text.equals_insensitive("yes") || text.equals_insensitive("y");
}

struct Switch {
  const char* name;
  const char* effect;
};

/// Switches of ProcessGroupNCCL that must be off.
constexpr Switch kSwitches[] = {
    {"TORCH_NCCL_BLOCKING_WAIT",
     "a wait asks the device whether the collective is done, which no capture allows"},
    {"NCCL_BLOCKING_WAIT",
     "a wait asks the device whether the collective is done, which no capture allows"},
    {"TORCH_NCCL_NAN_CHECK",
     "its check would be captured with the collective and end the process in a replay, where "
     "nothing tells which collective it was"},
    {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
     "a step that runs uncaptured on one rank would use registered buffers, and a replay on "
     "another rank would not"},
};

}  // namespace

bool isNccl(const std::string& backend) { return backend == "nccl" || backend == "nccl2"; }

std::string refusedEnvironment(const std::string& backend, const Environment& environment) {
  const char* debug = environment("TORCH_DISTRIBUTED_DEBUG");
  if (debug && llvm::StringRef(debug).equals_insensitive("DETAIL")) {
    return "TORCH_DISTRIBUTED_DEBUG=DETAIL checks each collective on the host, which a replay "
           "passes by; use INFO or OFF";
  }
  if (!isNccl(backend)) return "";
  for (const auto& [name, effect] : kSwitches) {
    if (isOn(environment(name))) return std::string(name) + " is set: " + effect + "; unset it";
  }
  const char* registers = environment("NCCL_GRAPH_REGISTER");
  if (registers && llvm::StringRef(registers) != "0") {
    return std::string("NCCL_GRAPH_REGISTER=") + registers +
           ": NCCL would keep the pages behind captured buffers, and those of the arena (and of "
           "expandable segments) change; unset it, or set it to 0";
  }
  const char* mixing = environment("NCCL_GRAPH_MIXING_SUPPORT");
  if (mixing && llvm::StringRef(mixing) == "0") {
    return "NCCL_GRAPH_MIXING_SUPPORT=0: captured collectives and others on one communicator would "
           "not be kept in order; unset it";
  }
  return "";
}

bool ncclWouldRegister(const std::string& backend, const Environment& environment) {
  return isNccl(backend) && environment("NCCL_GRAPH_REGISTER") == nullptr;
}

void forbidNcclRegistration() { (void)setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0); }

}  // namespace gravure
