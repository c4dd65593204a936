#pragma once
// Short names for the types that tests use.

#include <cctype>
#include <string>
#include <utility>

namespace gravure::test {

/// T, C (column order), S (no dimensions), B (Bool), R (one dimension) are CPU tensor types; G is T on
/// a GPU, H is S on one.
inline std::string expandTypes(std::string text) {
  const std::pair<std::string, std::string> types[] = {
      {": T", ": Float(4, 4, strides=[4, 1], device=cpu)"},
      {": C", ": Float(4, 4, strides=[1, 4], device=cpu)"},
      {": S", ": Float(device=cpu)"},
      {": B", ": Bool(4, 4, strides=[4, 1], device=cpu)"},
      {": R", ": Float(4, strides=[1], device=cpu)"},
      {": G", ": Float(4, 4, strides=[4, 1], device=cuda:0)"},
      {": H", ": Float(device=cuda:0)"}};
  for (const auto& [shorthand, type] : types) {
    for (size_t at = 0; (at = text.find(shorthand, at)) != std::string::npos;) {
      const bool longer = at + shorthand.size() < text.size() &&
                          std::isalpha(static_cast<unsigned char>(text[at + shorthand.size()]));
      if (!longer) text.replace(at, shorthand.size(), type);
      at += longer ? shorthand.size() : type.size();
    }
  }
  return text;
}

}  // namespace gravure::test
