#pragma once
// Programs of any size and a few shapes, for measuring passes.

#include <cstdint>
#include <string>
#include <vector>

namespace gravure::tool {

struct BenchShape {
  std::string name;
  std::string summary;
  /// Program text of about `nodes` operator calls.
  std::string (*make)(int64_t nodes);
};

const std::vector<BenchShape>& benchShapes();

}  // namespace gravure::tool
