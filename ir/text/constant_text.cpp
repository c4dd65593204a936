#include "ir/text/constant_text.h"

#include "ir/core/program.h"

#include <ATen/core/jit_type.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/ADT/StringMap.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

namespace gravure {
namespace {

struct IntName {
  IntMeaning meaning;
  int64_t value;
  std::string name;
};

std::vector<IntName> intNames() {
  std::vector<IntName> names;
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    if (type == at::ScalarType::Undefined) continue;
    const auto [name, legacy] = c10::getDtypeNames(type);
    names.push_back({IntMeaning::Dtype, i, "torch." + std::string(name)});
    // torch.float is read as torch.float32.
    if (!legacy.empty()) names.push_back({IntMeaning::Dtype, i, "torch." + std::string(legacy)});
  }
  const auto layout = [&](c10::Layout value, const char* name) {
    names.push_back({IntMeaning::Layout, static_cast<int64_t>(value), name});
  };
  layout(c10::Layout::Strided, "torch.strided");
  layout(c10::Layout::Sparse, "torch.sparse_coo");
  layout(c10::Layout::SparseCsr, "torch.sparse_csr");
  layout(c10::Layout::SparseCsc, "torch.sparse_csc");
  layout(c10::Layout::SparseBsr, "torch.sparse_bsr");
  layout(c10::Layout::SparseBsc, "torch.sparse_bsc");
  layout(c10::Layout::Mkldnn, "torch._mkldnn");
  layout(c10::Layout::Jagged, "torch.jagged");
  const auto format = [&](c10::MemoryFormat value, const char* name) {
    names.push_back({IntMeaning::MemoryFormat, static_cast<int64_t>(value), name});
  };
  format(c10::MemoryFormat::Contiguous, "torch.contiguous_format");
  format(c10::MemoryFormat::Preserve, "torch.preserve_format");
  format(c10::MemoryFormat::ChannelsLast, "torch.channels_last");
  format(c10::MemoryFormat::ChannelsLast3d, "torch.channels_last_3d");
  return names;
}

/// "" if `value` has no name of that meaning.
std::string_view nameOfInt(IntMeaning meaning, int64_t value) {
  static const auto names = [] {
    std::array<std::vector<std::string>, 4> byMeaning;
    for (const IntName& known : intNames()) {
      auto& ofMeaning = byMeaning[static_cast<size_t>(known.meaning)];
      const auto at = static_cast<size_t>(known.value);
      if (ofMeaning.size() <= at) ofMeaning.resize(at + 1);
      if (ofMeaning[at].empty()) ofMeaning[at] = known.name;
    }
    return byMeaning;
  }();
  const auto& ofMeaning = names[static_cast<size_t>(meaning)];
  if (value < 0 || static_cast<size_t>(value) >= ofMeaning.size()) return "";
  return ofMeaning[static_cast<size_t>(value)];
}

IntMeaning meaningOf(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::ScalarTypeType: return IntMeaning::Dtype;
    case c10::TypeKind::LayoutType: return IntMeaning::Layout;
    case c10::TypeKind::MemoryFormatType: return IntMeaning::MemoryFormat;
    case c10::TypeKind::OptionalType:
      return meaningOf(*type.expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType: return meaningOf(*type.containedType(0));
    default: return IntMeaning::Number;
  }
}

void appendMembers(std::string& out, const std::vector<Arg>& members, IntMeaning meaning) {
  bool first = true;
  for (const Arg& member : members) {
    if (!first) out += ", ";
    first = false;
    appendConstant(out, member, meaning);
  }
}

}  // namespace

llvm::SmallVector<IntMeaning, 8> intMeanings(const c10::FunctionSchema& schema) {
  llvm::SmallVector<IntMeaning, 8> meanings;
  for (const c10::Argument& parameter : schema.arguments()) {
    meanings.push_back(meaningOf(*parameter.real_type()));
  }
  return meanings;
}

std::optional<int64_t> namedInt(std::string_view name) {
  static const auto byName = [] {
    llvm::StringMap<int64_t> map;
    for (const IntName& known : intNames()) map.try_emplace(known.name, known.value);
    return map;
  }();
  const auto found = byName.find({name.data(), name.size()});
  if (found == byName.end()) return std::nullopt;
  return found->second;
}

void appendInt(std::string& out, int64_t value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

void appendFloat(std::string& out, double value) {
  if (std::isnan(value)) {
    const auto bits = std::bit_cast<uint64_t>(value);
    constexpr auto plain = std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN());
    constexpr uint64_t sign = uint64_t{1} << 63;
    if ((bits & ~sign) == plain) {
      out += bits & sign ? "-nan" : "nan";
    } else {
      out += "nan(\"" + llvm::utohexstr(bits, true, 16) + "\")";
    }
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-inf" : "inf";
    return;
  }
  if (std::signbit(value)) out += '-';
  char text[40];
  const char* end =
      std::to_chars(text, text + sizeof(text), std::fabs(value), std::chars_format::scientific).ptr;
  // d[.ddd]e±xx, to be laid out anew
  std::string digits(1, text[0]);
  const char* at = text + 1;
  if (*at == '.') {
    for (++at; *at != 'e'; ++at) digits += *at;
  }
  int exponent = 0;
  std::from_chars(at + (at[1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(".").append(digits, 1);
    out.append(at, end);
  } else if (exponent < 0) {
    out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  } else {
    const size_t whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    out.append(digits, 0, whole).append(".").append(digits, whole);
  }
}

void appendString(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte != 0x7f) {
          out += c;
        } else {
          out += {'\\', 'x', llvm::hexdigit(byte >> 4, true), llvm::hexdigit(byte & 15, true)};
        }
      }
    }
  }
  out += '"';
}

void appendConstant(std::string& out, const Arg& constant, IntMeaning meaning) {
  if (constant.is<int64_t>()) {
    const auto name = nameOfInt(meaning, constant.as<int64_t>());
    if (name.empty()) {
      appendInt(out, constant.as<int64_t>());
    } else {
      out += name;
    }
  } else if (constant.is<double>()) {
    appendFloat(out, constant.as<double>());
  } else if (constant.is<bool>()) {
    out += constant.as<bool>() ? "True" : "False";
  } else if (constant.is<std::string>()) {
    appendString(out, constant.as<std::string>());
  } else if (constant.is<c10::complex<double>>()) {
    out += "complex(";
    appendFloat(out, constant.as<c10::complex<double>>().real());
    out += ", ";
    appendFloat(out, constant.as<c10::complex<double>>().imag());
    out += ')';
  } else if (constant.is<c10::Device>()) {
    out += "device(\"" + constant.as<c10::Device>().str() + "\")";
  } else if (constant.is<ListArg>()) {
    out += '[';
    appendMembers(out, constant.as<ListArg>().elements, meaning);
    out += ']';
  } else if (constant.is<TupleArg>()) {
    out += '(';
    appendMembers(out, constant.as<TupleArg>().elements, meaning);
    out += ')';
  } else {
    out += "None";
  }
}

}  // namespace gravure
