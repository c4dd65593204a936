#include "tests/fuzz/program_text_fuzzer.h"

#include "ir/check/program_equality.h"
#include "ir/check/verify.h"
#include "ir/text/program_text.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace {

using namespace gravure;

[[noreturn]] void fail(const std::string& why) { throw std::logic_error(why); }

void checkPlace(const TextError& error, std::string_view text) {
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  if (error.line < 1 || error.line > lines || error.column < 1 || error.column > text.size() + 1) {
    fail(std::string("the place is outside the text: ") + error.what());
  }
}

void checkRoundTrip(const Program& program) {
  const std::string printed = programText(program);
  const Program again = readProgram(printed, "printed");
  std::string why;
  if (!equalPrograms(program, again, &why)) fail("what was printed differs: " + why);
  if (programText(again) != printed) fail("printing is no fixpoint:\n" + printed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const InputPart& part : splitInputs(text)) {
    Program program;
    try {
      program = readProgram(part.text, "input");
    } catch (const TextError& error) {
      checkPlace(error, part.text);
      continue;
    }
    try {
      verifyProgram(program);
    } catch (const c10::Error&) {
      // The rules of a program are not those of its text.
    }
    checkRoundTrip(program);
  }
  return 0;
}
