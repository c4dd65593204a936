#include "runtime/cuda/cuda_end_of_life.h"

#include <c10/util/Exception.h>

namespace gravure {

bool isLost(cudaError_t error) {
  switch (error) {
    case cudaErrorCudartUnloading:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorExternalDevice:
    case cudaErrorTimeout:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

UnseenByCaptures::UnseenByCaptures() noexcept {
  exchanged_ = cudaThreadExchangeStreamCaptureMode(&before_) == cudaSuccess;
  if (!exchanged_) (void)cudaGetLastError();
}

UnseenByCaptures::~UnseenByCaptures() {
  if (exchanged_ && cudaThreadExchangeStreamCaptureMode(&before_) != cudaSuccess) {
    (void)cudaGetLastError();
  }
}

namespace {

void warn(const char* what, const char* why) noexcept {
  try {
    TORCH_WARN(what, " failed: ", why);
  } catch (...) {  // where warnings are errors: a destructor has nowhere to throw to
  }
}

}  // namespace

void warnAtEnd(const char* what, cudaError_t error) noexcept {
  (void)cudaGetLastError();
  if (error != cudaSuccess && !isLost(error)) warn(what, cudaGetErrorString(error));
}

void warnAtEnd(const char* what, const std::exception& error) noexcept {
  (void)cudaGetLastError();
  const auto* ofDevice = dynamic_cast<const c10::AcceleratorError*>(&error);
  if (ofDevice && isLost(static_cast<cudaError_t>(ofDevice->get_error_code()))) return;
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  warn(what, ours ? ours->what_without_backtrace() : error.what());
}

}  // namespace gravure
