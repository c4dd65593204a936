#include "python/csrc/error_kind.h"

#include <c10/util/Exception.h>

#include <utility>

namespace gravure {
namespace {

thread_local std::string noted;

template <typename Error>
bool is(const std::exception& error) {
  return dynamic_cast<const Error*>(&error) != nullptr;
}

std::string kindOf(const std::exception& error) {
  if (is<c10::IndexError>(error)) return "IndexError";
  if (is<c10::ValueError>(error)) return "ValueError";
  if (is<c10::TypeError>(error)) return "TypeError";
  if (is<c10::NotImplementedError>(error)) return "NotImplementedError";
  if (is<c10::OutOfMemoryError>(error)) return "OutOfMemoryError";
  if (is<c10::LinAlgError>(error)) return "LinAlgError";
  if (is<c10::DistBackendError>(error)) return "DistBackendError";
  if (is<c10::DistNetworkError>(error)) return "DistNetworkError";
  if (is<c10::DistStoreError>(error)) return "DistStoreError";
  return is<c10::DistError>(error) ? "DistError" : "";
}

}  // namespace

std::string takeErrorKind() { return std::exchange(noted, ""); }
void noteErrorKind(const std::exception& error) { noted = kindOf(error); }

}  // namespace gravure
