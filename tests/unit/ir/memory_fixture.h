#pragma once
// Short programs over tensors of one kind, for tests of what ir/memory says.

#include <string>
#include <utility>

namespace gravure::test {

/// ": R" is a tensor of one dimension and 16 bytes, ": L" a list of tensors.
inline std::string withTensorTypes(std::string text) {
  const std::pair<std::string, std::string> types[] = {
      {": R", ": Float(4, strides=[1], device=cpu)"}, {": L", ": Tensor[]"}};
  for (const auto& [shorthand, type] : types) {
    for (size_t at = 0; (at = text.find(shorthand, at)) != std::string::npos; at += type.size()) {
      text.replace(at, shorthand.size(), type);
    }
  }
  return text;
}

}  // namespace gravure::test
