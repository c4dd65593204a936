#pragma once
// Constants in program text: numbers, strings, and ints that the schema knows by a name.

#include "ir/core/args.h"

#include <ATen/core/function_schema.h>
#include <llvm/ADT/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gravure {

/// What an int constant stands for, by the schema's word for its parameter.
enum class IntMeaning : uint8_t { Number, Dtype, Layout, MemoryFormat };

/// The meaning of ints in each parameter of `schema`.
llvm::SmallVector<IntMeaning, 8> intMeanings(const c10::FunctionSchema& schema);

/// The int that `torch.float32` stands for; nullopt for an unknown name.
std::optional<int64_t> namedInt(std::string_view name);

void appendInt(std::string& out, int64_t value);
/// The shortest digits that give the same double back, laid out as Python's repr without the last
/// zero: `1.`, `0.1`, `1e-05`, `inf`, `nan`.
void appendFloat(std::string& out, double value);
void appendString(std::string& out, std::string_view text);
/// A constant without values in it. Lists and tuples nest.
void appendConstant(std::string& out, const Arg& constant, IntMeaning meaning = IntMeaning::Number);

}  // namespace gravure
