#pragma once
// The warm-ups' memory for graphs that Python runs before a program is made of them.

#include <string>

namespace gravure {

/// Between these, on one thread, what it allocates on `device` (as makeDevice() has it) comes from the pool in
/// which programs warm up, and so leaves no holes in PyTorch's cache. Entered again within, it stays there:
/// the first one's device. Errors: what Device::beginWarmUp() throws, and then it has not entered.
void enterWarmUpPool(const std::string& device);
void leaveWarmUpPool();

}  // namespace gravure
