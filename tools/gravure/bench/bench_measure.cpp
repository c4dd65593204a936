#include "tools/gravure/bench/bench_measure.h"

#include "ir/check/verify.h"
#include "ir/text/program_text.h"
#include "passes/pass.h"
#include "tools/gravure/bench/processor_time.h"
#include "tools/gravure/command/command.h"

#include <llvm/ADT/StringRef.h>
#include <llvm/Support/MemoryBuffer.h>

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace gravure::tool {
namespace {

/// A figure of /proc/self/status, in bytes; 0 where there is none.
int64_t statusBytes(llvm::StringRef key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    llvm::StringRef rest(line);
    int64_t kib = 0;
    if (rest.consume_front(key) && rest.consume_front(":") &&
        !rest.trim().split(' ').first.getAsInteger(10, kib)) {
      return kib * 1024;
    }
  }
  return 0;
}

/// Lets the peak of resident memory begin anew from what is resident now.
void resetPeak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}

BenchResult measureHere(const BenchShape& shape, int64_t nodes, int64_t repetitions) {
  BenchResult result{shape.name, nodes, 1e30, 1e30, 1e30, {}, 1e30, 0};
  result.passMs.assign(allPasses().size(), 1e30);
  const std::string text = shape.make(nodes);
  PipelineOptions quick;
  quick.verifyEach = false;
  for (int64_t i = 0; i < repetitions; ++i) {
    Program program;
    result.readMs = std::min(result.readMs, processorMs([&] { program = readProgram(text); }));
    std::string printed;
    result.printMs = std::min(result.printMs, processorMs([&] { printed = programText(program); }));
    printed = {};
    result.verifyMs = std::min(result.verifyMs, processorMs([&] { verifyProgram(program); }));
    PassContext context;
    // The first repetition also measures memory, which takes a trimmed heap: page faults slow it down.
    if (i == 0) resetPeak();
    const int64_t before = statusBytes("VmRSS");
    size_t pass = 0;
    double begin = 0;
    quick.beforePass = [&](const Pass&, const Program&) { begin = processorMs(); };
    quick.afterPass = [&](const Pass&, const Program&) {
      result.passMs[pass] = std::min(result.passMs[pass], processorMs() - begin);
      ++pass;
    };
    runPasses(program, context, {}, quick);
    if (i == 0) result.peakBytes = statusBytes("VmHWM") - before;
    program = readProgram(text);
    result.verifiedMs =
        std::min(result.verifiedMs, processorMs([&] { runPasses(program, context); }));
  }
  return result;
}

std::string written(const BenchResult& result) {
  std::ostringstream out;
  out.precision(17);
  out << result.readMs << ' ' << result.printMs << ' ' << result.verifyMs << ' '
      << result.verifiedMs << ' ' << result.peakBytes;
  for (double ms : result.passMs) out << ' ' << ms;
  return out.str();
}

}  // namespace

double BenchResult::passesMs() const {
  double sum = 0;
  for (double ms : passMs) sum += ms;
  return sum;
}

void BenchResult::keepLeast(const BenchResult& other) {
  readMs = std::min(readMs, other.readMs);
  printMs = std::min(printMs, other.printMs);
  verifyMs = std::min(verifyMs, other.verifyMs);
  verifiedMs = std::min(verifiedMs, other.verifiedMs);
  peakBytes = std::min(peakBytes, other.peakBytes);
  for (size_t i = 0; i < passMs.size(); ++i) passMs[i] = std::min(passMs[i], other.passMs[i]);
}

BenchResult measurePasses(const BenchShape& shape, int64_t nodes, int64_t repetitions) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("cannot make a pipe");
  fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot start a process");
  if (child == 0) {
    close(ends[0]);
    std::string said;
    try {
      said = written(measureHere(shape, nodes, repetitions));
    } catch (const std::exception& error) {
      said = "! " + messageOf(error);
    }
    for (size_t at = 0; at < said.size();) {
      const ssize_t sent = write(ends[1], said.data() + at, said.size() - at);
      if (sent <= 0) _exit(1);
      at += static_cast<size_t>(sent);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;)
    said.append(buffer, got);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  const std::string what = shape.name + " with " + std::to_string(nodes) + " nodes";
  if (status != 0) throw std::runtime_error("bench: " + what + ": the process died");
  if (llvm::StringRef(said).starts_with("!")) {
    throw std::runtime_error("bench: " + what + ": " + said.substr(2));
  }
  BenchResult result{shape.name, nodes, 0, 0, 0, {}, 0, 0};
  std::istringstream in(said);
  in >> result.readMs >> result.printMs >> result.verifyMs >> result.verifiedMs >> result.peakBytes;
  for (double ms = 0; in >> ms;) result.passMs.push_back(ms);
  return result;
}

}  // namespace gravure::tool
