#pragma once

#include <cstdint>
#include <string>

namespace gravure::tool {

/// "1.5 MiB"
std::string bytesText(int64_t bytes);

}  // namespace gravure::tool
