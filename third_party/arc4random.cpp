// LLVM's archive, as Debian builds it, asks glibc 2.36 for arc4random, for names of temporary files. So
// that what links the archive runs with an older glibc, it gets one of ours, which nobody else sees.

#include <cstdint>
#include <random>

extern "C" __attribute__((visibility("hidden"))) uint32_t arc4random() noexcept;

uint32_t arc4random() noexcept { return std::random_device()(); }
