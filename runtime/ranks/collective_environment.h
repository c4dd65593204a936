#pragma once
// Settings of the process that captured collectives cannot live with.

#include <functional>
#include <string>

namespace gravure {

/// The value of an environment variable, nullptr if it is not set.
using Environment = std::function<const char*(const char* name)>;

/// Whether a backend of this name runs NCCL's collectives. PyTorch has two: since 2.15 the group that a
/// user calls "nccl" says of itself that it is "nccl2", unless TORCH_DIST_USE_NCCL2=0.
bool isNccl(const std::string& backend);

/// Why collectives of this backend cannot be captured in this environment, with the cure; "" if they
/// can.
std::string refusedEnvironment(const std::string& backend, const Environment& environment);

/// True if NCCL would register the buffers of captured collectives. It may not: a registration holds
/// the pages behind an address, and those of an arena change between steps. Where the user has not
/// chosen, forbidNcclRegistration() does.
bool ncclWouldRegister(const std::string& backend, const Environment& environment);
/// Sets NCCL_GRAPH_REGISTER=0 for this process. NCCL reads it at the first capture.
void forbidNcclRegistration();

}  // namespace gravure
