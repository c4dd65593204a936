#include "python/csrc/process/interrupts.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace gravure {

bool isInterrupt(const std::exception& error) {
  if (dynamic_cast<const c10::Error*>(&error) != nullptr) return false;
  constexpr std::array<std::string_view, 3> kNames = {"KeyboardInterrupt", "SystemExit",
                                                      "GeneratorExit"};
  const std::string_view text = error.what();
  const std::string_view name = text.substr(0, text.find_first_of(":\n"));
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace gravure
