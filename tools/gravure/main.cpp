// gravure: one command-line tool with subcommands. docs/gravure.md

#include "ir/core/nearest_name.h"
#include "ir/text/program_text.h"
#include "tools/gravure/bench/bench.h"
#include "tools/gravure/command/command.h"
#include "tools/gravure/opt/opt.h"
#include "tools/gravure/plan/plan.h"
#include "tools/gravure/run/run.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/Support/raw_ostream.h>

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <regex>
#include <vector>

namespace gravure::tool {
namespace {

namespace cl = llvm::cl;

using Commands = std::vector<std::unique_ptr<Command>>;

constexpr const char* kOverview = "gravure: cuts a training step into CUDA graphs and runs it. "
                                  "gravure SUBCOMMAND --help says more.";

std::vector<std::string> namesOf(const Commands& commands) {
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command->sub().getName().str());
  return names;
}

/// The flags of one subcommand, or of the tool where `own` is nullptr, with a null for --help, -h and
/// --version. LLVM knows more, which print help, too.
using Flags = llvm::StringMap<cl::Option*>;
Flags flagsOf(cl::SubCommand& sub, const cl::OptionCategory* own) {
  Flags flags{{"help", nullptr}, {"h", nullptr}, {"version", nullptr}};
  for (const auto& [name, option] : cl::getRegisteredOptions(sub)) {
    if (own && llvm::is_contained(option->Categories, own)) flags[name] = option;
  }
  return flags;
}

/// Takes LLVM's other ways to print help from the flags of a subcommand, and from what --help lists.
void keepOneHelp(cl::SubCommand& sub) {
  for (const char* name :
       {"help-hidden", "help-list", "help-list-hidden", "print-options", "print-all-options"}) {
    if (cl::Option* option = cl::getRegisteredOptions(sub).lookup(name)) option->removeArgument();
  }
  cl::Option* help = cl::getRegisteredOptions(sub).lookup("help");
  if (help) help->setDescription("print this");
}

/// "; did you mean '--json'?" with the flag that begins as `word` does, or the nearest; "" if none does.
/// `value`: what stood behind the name.
std::string flagMeant(llvm::StringRef word, llvm::StringRef value, const Flags& flags) {
  std::vector<std::string> names;
  for (llvm::StringRef name : flags.keys()) {
    const cl::Option* option = flags.lookup(name);
    if (name == "h" || (option && option->getOptionHiddenFlag() == cl::ReallyHidden)) continue;
    names.push_back(name.str());
  }
  llvm::sort(names);
  const auto longer =
      llvm::find_if(names, [&](llvm::StringRef name) { return name.starts_with(word); });
  const std::string meant = longer != names.end() ? *longer : nearestName(word, names);
  return meant.empty() ? "" : "; did you mean '--" + meant + value.str() + "'?";
}

/// UsageError at the first word that begins with a dash and is no flag in full. LLVM alone would take any
/// word that begins with h for `-h` and more flags of one letter, and print the help.
void checkFlags(const Flags& flags, llvm::ArrayRef<const char*> words, const std::string& command) {
  for (size_t i = 0; i < words.size(); ++i) {
    const llvm::StringRef word(words[i]);
    if (word == "--") return;
    if (!word.starts_with("-") || word == "-") continue;
    llvm::StringRef name = word.split('=').first;
    if (!name.consume_front("--")) name.consume_front("-");
    const auto found = flags.find(name);
    if (found == flags.end()) {
      throw UsageError("unknown flag '" + word.str() + "'" +
                       flagMeant(name, word.substr(word.find('=')), flags) + " (gravure" +
                       (command.empty() ? "" : " " + command) + " --help lists all)");
    }
    const cl::Option* option = found->second;
    const bool takesNext = option && option->getValueExpectedFlag() == cl::ValueRequired;
    if (takesNext && !word.contains('=')) ++i;
  }
}

/// LLVM's words on a wrong command line, in one line of ours.
std::string oneLine(const std::string& said, const std::string& command) {
  const std::string more =
      " (gravure" + (command.empty() ? "" : " " + command) + " --help lists all)";
  std::smatch match;
  if (std::regex_search(said, match, std::regex("Too many positional arguments"))) {
    return command + ": too many arguments" + more;
  }
  if (std::regex_search(said, match, std::regex("for the (--\\S+) option: (.*)"))) {
    std::string what = match[2].str();
    std::smatch invalid;
    if (std::regex_search(what, invalid,
                          std::regex("'(.*)' value invalid for (\\w+)[ \\w]* argument"))) {
      const bool real = invalid[2] == "floating" || invalid[2] == "double";
      what = "'" + invalid[1].str() + "' is not a " + (real ? "" : "whole ") + "number";
    } else if (std::regex_search(what, invalid,
                                 std::regex("'(.*)' is invalid value for boolean"))) {
      what = "'" + invalid[1].str() + "' is neither true nor false";
    } else if (what.find("requires a value") != std::string::npos) {
      what = "expected a value";
    } else if (what.find("may only occur zero or one times") != std::string::npos) {
      what = "given more than once";
    }
    return match[1].str() + ": " + what + more;
  }
  llvm::StringRef first = llvm::StringRef(said).trim().split('\n').first;
  first.consume_front("gravure: ");
  return first.str() + more;
}

/// What LLVM says of a wrong command line: some of it goes to the stream that it is given, some of it
/// to standard error, come what may.
class CaughtErrors {
 public:
  CaughtErrors() {
    if (file_ && saved_ >= 0) dup2(fileno(file_), STDERR_FILENO);
  }
  ~CaughtErrors() {
    restore();
    if (saved_ >= 0) close(saved_);
    if (file_) fclose(file_);
  }
  std::string take() {
    restore();
    if (!file_) return "";
    rewind(file_);
    char buffer[2048];
    return std::string(buffer, fread(buffer, 1, sizeof(buffer), file_));
  }

 private:
  void restore() {
    if (saved_ >= 0) dup2(saved_, STDERR_FILENO);
  }
  FILE* file_ = tmpfile();
  int saved_ = dup(STDERR_FILENO);
};

Command& chosen(const Commands& commands, int argc, char** argv) {
  for (const auto& command : commands) {
    if (argc > 1 && command->sub().getName() == argv[1]) return *command;
  }
  const std::vector<std::string> names = namesOf(commands);
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  if (argc < 2) throw UsageError("expected a subcommand: " + list + " (gravure --help)");
  throw UsageError("there is no subcommand '" + std::string(argv[1]) + "'; there are " + list +
                   didYouMean(argv[1], names));
}

void parse(const Commands& commands, int argc, char** argv) {
  const bool global = argc > 1 && llvm::StringRef(argv[1]).starts_with("-");
  for (const auto& command : commands)
    cl::HideUnrelatedOptions(command->category(), command->sub());
  cl::HideUnrelatedOptions(commands.front()->category());
  keepOneHelp(cl::SubCommand::getTopLevel());
  cl::SetVersionPrinter([](llvm::raw_ostream& os) { os << "gravure, program text version 1\n"; });
  const llvm::ArrayRef<const char*> words(argv, argc);
  if (global) {
    checkFlags(flagsOf(cl::SubCommand::getTopLevel(), nullptr), words.drop_front(), "");
  } else {
    Command& command = chosen(commands, argc, argv);
    checkFlags(flagsOf(command.sub(), &command.category()), words.drop_front(2), argv[1]);
  }
  std::string said;
  llvm::raw_string_ostream os(said);
  CaughtErrors caught;
  if (!cl::ParseCommandLineOptions(argc, argv, kOverview, &os)) {
    throw UsageError(oneLine(said + caught.take(), global ? "" : argv[1]));
  }
  if (global) (void)chosen(commands, 1, argv);
}

int runTool(int argc, char** argv) {
  Commands commands;
  commands.push_back(makeOptCommand());
  commands.push_back(makePlanCommand());
  commands.push_back(makeRunCommand());
  commands.push_back(makeBenchCommand());
  argv[0] = const_cast<char*>("gravure");
  try {
    parse(commands, argc, argv);
    const int status = chosen(commands, argc, argv).run();
    llvm::outs().flush();
    if (!llvm::outs().has_error()) return status;
    const std::string why = llvm::outs().error().message();
    llvm::outs().clear_error();
    throw std::runtime_error("cannot write to standard output: " + why);
  } catch (const UsageError& error) {
    llvm::outs().flush();
    llvm::errs() << "gravure: " << error.what() << '\n';
    return kUsage;
  } catch (const std::exception& error) {
    llvm::outs().flush();
    const bool inFile = dynamic_cast<const TextError*>(&error) != nullptr ||
                        dynamic_cast<const FileError*>(&error) != nullptr;
    llvm::errs() << (inFile ? "" : "gravure: ") << messageOf(error) << '\n';
    return kFailed;
  }
}

}  // namespace
}  // namespace gravure::tool

int main(int argc, char** argv) { return gravure::tool::runTool(argc, argv); }
