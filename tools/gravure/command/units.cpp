#include "tools/gravure/command/units.h"

#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

#include <array>

namespace gravure::tool {

std::string bytesText(int64_t bytes) {
  constexpr std::array<const char*, 4> units{"bytes", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  std::string text;
  llvm::raw_string_ostream os(text);
  os << llvm::format(unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

}  // namespace gravure::tool
