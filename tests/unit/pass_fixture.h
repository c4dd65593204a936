#pragma once
// Runs one pass on a program text.

#include "ir/text/program_text.h"
#include "passes/pass.h"
#include "tests/unit/type_names.h"

#include <string>

namespace gravure::test {

/// Reads, runs and verifies.
struct PassRun {
  PassRun(void (*run)(Program&, PassContext&), void (*verify)(const Program&, const PassContext&),
          const std::string& text)
      : program(readProgram(expandTypes(text))) {
    run(program, context);
    verify(program, context);
  }
  std::string text() const { return programText(program); }

  Program program;
  PassContext context;
};

}  // namespace gravure::test
