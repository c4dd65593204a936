#pragma once
// What every subcommand of gravure is, and how each reports what went wrong.
//
// Exit status: 0 all is well, 1 the program or the run is wrong, 2 the tool was called wrongly.

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/StringRef.h>
#include <llvm/Support/CommandLine.h>

#include <stdexcept>
#include <string>

namespace gravure::tool {

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;

/// The tool was called wrongly: its message is the one line that the user sees.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Something is wrong with what a file holds: its message begins with the file's name.
struct FileError : std::runtime_error {
  FileError(const std::string& file, const std::string& message)
      : std::runtime_error(file + ": " + message) {}
};

/// One subcommand with its flags. All of them are made before the command line is parsed.
class Command {
 public:
  Command(const char* name, const char* summary) : sub_(name, summary), category_(name, summary) {}
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  /// Returns the exit status. May throw UsageError and c10::Error.
  virtual int run() = 0;
  llvm::cl::SubCommand& sub() { return sub_; }
  llvm::cl::OptionCategory& category() { return category_; }

 private:
  llvm::cl::SubCommand sub_;
  llvm::cl::OptionCategory category_;
};

/// UsageError unless `value`, given to `flag`, is one of `known`.
void checkOneOf(llvm::StringRef flag, llvm::StringRef value, llvm::ArrayRef<std::string> known);

/// UsageError unless `value`, given to `flag`, lies from `least` to `most`.
void checkWithin(llvm::StringRef flag, int64_t value, int64_t least, int64_t most = INT64_MAX);

/// The whole of a file, or of standard input for "-". UsageError if it cannot be read.
std::string readText(const std::string& path);

/// The message of an exception: its first line, without a stack trace and PyTorch's lists of backends.
std::string messageOf(const std::exception& error);

}  // namespace gravure::tool
