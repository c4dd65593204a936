#include "ir/check/verify.h"

#include "ir/check/call_check.h"
#include "ir/check/defined_memory.h"
#include "ir/check/node_check.h"
#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/location.h"
#include "ir/core/nested_nodes.h"
#include "ir/facts/compiled_op.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "ir/text/program_text.h"
#include "ir/text/type_printer.h"
#include "ir/text/type_reader.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/ADT/StringSet.h>

#include <algorithm>
#include <optional>

namespace gravure {
namespace {

bool isRealNumber(const Value* value) {
  return isNumber(value) && value->type()->kind() != c10::TypeKind::ComplexType;
}

/// True for "cuda:0", for the paired state "cuda:0#1", and for a state without a name.
bool namesGenerator(std::string_view name) {
  return name.empty() || deviceFromText(name.substr(0, name.find('#')));
}

/// Rules of one entry; each check throws naming entry, node and source line.
class EntryVerifier {
 public:
  explicit EntryVerifier(const Entry& entry) : entry_(entry) {}

  void verify();

 private:
  void checkInputRoles();
  void checkOutputRoles();
  void checkName(const Value* value);
  void checkBlock(const Block* block, const Node* owner);
  void checkNode(const Node* node);
  void checkInputs(const Node* node);
  void checkUse(const Node* node, const Value* value, const char* what);
  void checkRng(const Node* node);
  void checkWaits();
  void checkDonated();
  void define(const Value* value);
  [[noreturn]] void fail(const Node* node, const std::string& message) const;
  [[noreturn]] void fail(const std::string& message) const;

  const Entry& entry_;
  /// The block that defines each value, by its index: blocks are numbered as they are entered.
  llvm::DenseMap<const Value*, uint32_t> scopeOf_;
  std::vector<bool> open_;     // by scope: its block has not ended
  uint32_t scope_ = 0;         // the current one
  uint32_t barrier_ = 0;       // values of scopes before this one are not seen
  bool communicates_ = false;  // starts a collective
  bool donates_ = false;       // gives compiled code operands for good
};

void EntryVerifier::fail(const std::string& message) const {
  TORCH_CHECK(false, "entry '", entry_.name, "': ", message);
}

void EntryVerifier::fail(const Node* node, const std::string& message) const {
  std::string described = describeWithSource(node);
  if (!moduleOf(node).empty()) described.append(" in ").append(moduleOf(node));
  fail(described + ": " + message);
}

void EntryVerifier::verify() {
  if (!entry_.graph) fail("it has no graph");
  checkInputRoles();
  checkOutputRoles();
  checkBlock(entry_.graph->block(), nullptr);
  if (communicates_) checkWaits();
  if (donates_) checkDonated();
}

void EntryVerifier::checkInputRoles() {
  const auto inputs = entry_.graph->inputs();
  if (entry_.inputs.size() != inputs.size()) {
    fail(std::to_string(inputs.size()) + " inputs have " + std::to_string(entry_.inputs.size()) +
         " roles");
  }
  llvm::StringSet<> saved;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputInfo& info = entry_.inputs[i];
    bool fits = true;
    switch (info.role) {
      case InputRole::Parameter:
      case InputRole::Buffer:
      case InputRole::Tangent: fits = tensorTypeOf(inputs[i]); break;
      case InputRole::SymInt: fits = isRealNumber(inputs[i]); break;
      case InputRole::RngState:
        fits = inputs[i]->type()->kind() == c10::TypeKind::GeneratorType;
        break;
      default: break;
    }
    if (!fits) {
      fail("the input %" + inputs[i]->debugName() + " is a " + roleName(info.role) +
           " and cannot be of type " + typeText(*inputs[i]->type()));
    }
    if (info.role == InputRole::Saved && !saved.insert(info.name).second) {
      fail("two inputs are saved '" + info.name + "'");
    }
    if (info.role == InputRole::RngState && !namesGenerator(info.name)) {
      fail("the input %" + inputs[i]->debugName() + " is the random state of '" + info.name +
           "', which is no device");
    }
  }
}

void EntryVerifier::checkOutputRoles() {
  const auto outputs = entry_.graph->outputs();
  const auto inputs = entry_.graph->inputs();
  if (entry_.outputs.size() != outputs.size()) {
    fail(std::to_string(outputs.size()) + " outputs have " + std::to_string(entry_.outputs.size()) +
         " roles");
  }
  llvm::StringSet<> saved;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const OutputInfo& info = entry_.outputs[i];
    const std::string output = "the output %" + outputs[i]->debugName();
    if (info.role == OutputRole::Mutation || info.role == OutputRole::Alias) {
      if (info.input < 0 || info.input >= static_cast<int64_t>(inputs.size())) {
        fail(output + " is a " + roleName(info.role) + " of input " + std::to_string(info.input) +
             ", which the entry does not have");
      }
      const Value* input = inputs[info.input];
      if (!tensorTypeOf(input)) {
        fail(output + " is a " + roleName(info.role) + " of %" + input->debugName() +
             ", which is no tensor but " + typeText(*input->type()));
      }
    } else if (info.input != -1) {
      fail(output + " names an input, but is no mutation and no alias");
    }
    if (info.role == OutputRole::Loss && !tensorTypeOf(outputs[i])) {
      fail(output + " is the loss and cannot be of type " + typeText(*outputs[i]->type()));
    }
    if (info.role == OutputRole::Saved && !saved.insert(info.name).second) {
      fail("two outputs are saved '" + info.name + "'");
    }
  }
}

void EntryVerifier::checkName(const Value* value) {
  if (!value->hasDebugName()) return;
  const std::string name = value->debugName();
  const bool valid = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) || c == '_' || c == '.');
  });
  if (!valid) fail("the value '%" + name + "' has a name with characters other than [A-Za-z0-9_.]");
}

void EntryVerifier::define(const Value* value) {
  checkName(value);
  if (!scopeOf_.try_emplace(value, scope_).second) {
    fail("the value %" + value->debugName() + " is defined twice");
  }
}

void EntryVerifier::checkBlock(const Block* block, const Node* owner) {
  const uint32_t outerScope = scope_, outerBarrier = barrier_;
  scope_ = static_cast<uint32_t>(open_.size());
  open_.push_back(true);
  if (owner && owner->kind() != c10::prim::If) barrier_ = scope_;
  for (const Value* input : block->inputs()) define(input);
  for (const Node* node : block->nodes()) checkNode(node);
  for (const Value* output : block->outputs()) {
    if (owner) {
      checkUse(owner, output, "its block ends with");
    } else {
      checkUse(block->return_node(), output, "it returns");
    }
  }
  open_[scope_] = false;
  scope_ = outerScope;
  barrier_ = outerBarrier;
}

void EntryVerifier::checkNode(const Node* node) {
  const OpFacts* facts = findOpFacts(node->kind(), overloadOf(node));
  if (!facts) {
    fail(node, "PyTorch knows no such operator; load the library that registers it, or check the "
               "overload's name");
  }
  checkInputs(node);
  checkRng(node);
  std::string wrong = checkAttributes(node);
  if (wrong.empty()) {
    wrong = facts->schema ? checkArguments(node, *facts->schema) : checkStructure(node);
  }
  if (wrong.empty() && facts->schema) wrong = checkOutputs(node, *facts->schema);
  if (wrong.empty() && facts->schema && !node->blocks().empty()) wrong = "it cannot have blocks";
  if (!wrong.empty()) fail(node, wrong);
  communicates_ |= facts->collective;
  donates_ |= !donatedOperands(node).empty();
  for (const Block* block : node->blocks()) checkBlock(block, node);
  for (const Value* output : node->outputs()) define(output);
}

/// Each input is a value that can be seen here, and stands somewhere in the arguments.
void EntryVerifier::checkInputs(const Node* node) {
  const auto inputs = node->inputs();
  for (const Value* input : inputs) {
    checkUse(node, input, "its argument is");
    if (input->node()->kind() == c10::prim::Constant) {
      fail(node, "its argument is %" + input->debugName() +
                     ", a constant; constants stand in place, among the arguments");
    }
  }
  if (!hasArgs(node)) return;
  const ArgList& list = argsOf(node);
  std::vector<bool> used(inputs.size(), false);
  const auto use = [&](int64_t index) {
    if (index >= static_cast<int64_t>(inputs.size())) {
      fail(node, "its arguments refer to input " + std::to_string(index) + " of " +
                     std::to_string(inputs.size()));
    }
    used[index] = true;
  };
  for (const Arg& arg : list.args) forEachInput(arg, [&](InputArg in) { use(in.index); });
  if (list.rng >= 0) use(list.rng);
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end()) {
    fail(node, "its input %" + inputs[unused - used.begin()]->debugName() +
                   " stands nowhere in its arguments");
  }
}

void EntryVerifier::checkUse(const Node* node, const Value* value, const char* what) {
  const auto at = scopeOf_.find(value);
  const std::string used = std::string(what) + " %" + value->debugName();
  const auto refuse = [&](const char* why) {
    if (node->kind() == c10::prim::Return) fail(used + why);
    fail(node, used + why);
  };
  if (at == scopeOf_.end()) refuse(", which is not defined before it");
  if (!open_[at->second]) refuse(", which belongs to a block that has ended");
  if (at->second < barrier_) {
    refuse(" from outside its block; a block of a cudagraph:: node sees only its parameters");
  }
}

void EntryVerifier::checkRng(const Node* node) {
  const Value* state = rngStateOf(node);
  if (!state) return;
  const auto* tensor = tensorTypeOf(state);
  const bool bytes = tensor && tensor->scalarType().value_or(at::kByte) == at::kByte;
  if (!bytes && state->type()->kind() != c10::TypeKind::GeneratorType) {
    fail(node, "its random state %" + state->debugName() + " is " + typeText(*state->type()) +
                   ", expected a Generator or a tensor of bytes that holds a saved state");
  }
}

/// Last, since it counts on all other rules.
void EntryVerifier::checkWaits() {
  const DefinedMemory memory(entry_);
  for (const DefinedCollective& collective : memory.collectives()) {
    if (collective.left.empty()) continue;
    fail(collective.start, "the collective's result %" + collective.left.front()->debugName() +
                               " is never waited for; add _c10d_functional::wait_tensor");
  }
}

/// Nobody needs what is donated behind the call, or has it but the program.
void EntryVerifier::checkDonated() {
  const DefinedMemory memory(entry_);
  llvm::DenseMap<int64_t, const Node*> last;  // by storage: who has it as an operand last
  forEachNode(entry_.graph->block(), [&](const Node* node) {
    for (const Value* operand : node->inputs()) last[memory.storageOf(operand)] = node;
  });
  forEachNode(entry_.graph->block(), [&](const Node* node) {
    for (const Value* donated : donatedOperands(node)) {
      const int64_t storage = memory.storageOf(donated);
      const auto isThere = [&](const Value* value) { return memory.storageOf(value) == storage; };
      const std::string what = "it is donated %" + donated->debugName() + ", ";
      if (last.lookup(storage) != node) {
        fail(node, what + "whose memory " + describe(last.lookup(storage)) + " has behind it");
      }
      if (llvm::count_if(node->inputs(), isThere) != 1)
        fail(node, what + "whose memory another operand has");
      if (llvm::any_of(entry_.graph->outputs(), isThere))
        fail(node, what + "whose memory the entry returns");
      size_t inputs = 0;
      for (size_t i = 0; i < entry_.inputs.size(); ++i) {
        if (!isThere(entry_.graph->inputs()[i])) continue;
        if (++inputs > 1 || entry_.inputs[i].role != InputRole::Saved)
          fail(node, what + "whose memory the caller has");
      }
    }
  });
}

/// Of a saved value that another entry donates: `saver` neither takes nor returns its memory as anything
/// else.
void checkDonatedValue(const Entry& saver, const std::string& name) {
  const DefinedMemory memory(saver);
  const auto outputs = saver.graph->outputs();
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (saver.outputs[o].role != OutputRole::Saved || saver.outputs[o].name != name) continue;
    const int64_t storage = memory.storageOf(outputs[o]);
    const auto isThere = [&](const Value* value) { return memory.storageOf(value) == storage; };
    const bool own =
        llvm::none_of(saver.graph->inputs(), isThere) && llvm::count_if(outputs, isThere) == 1;
    TORCH_CHECK(own, "entry '", saver.name, "': the output %", outputs[o]->debugName(),
                " is saved and donated, and its memory the caller or another saved value has");
  }
}

/// Compiled code is donated what is saved for it alone.
void checkDonatedValues(const Program& program) {
  for (const Entry& entry : program.entries) {
    llvm::DenseSet<int64_t> donated;
    std::optional<DefinedMemory> memory;
    forEachNode(entry.graph->block(), [&](const Node* node) {
      for (const Value* value : donatedOperands(node)) {
        if (!memory) memory.emplace(entry);
        donated.insert(memory->storageOf(value));
      }
    });
    for (size_t i = 0; memory && i < entry.inputs.size(); ++i) {
      if (!donated.contains(memory->storageOf(entry.graph->inputs()[i]))) continue;
      for (const Entry& saver : program.entries) {
        if (&saver != &entry) checkDonatedValue(saver, entry.inputs[i].name);
      }
    }
  }
}

/// What `forward` saves and `backward` takes agree by name and type.
void checkSavedValues(const Program& program) {
  const Entry* forward = program.find("forward");
  const Entry* backward = program.find("backward");
  if (!forward || !backward) return;
  llvm::StringMap<const Value*> saved;
  for (size_t i = 0; i < forward->outputs.size(); ++i) {
    if (forward->outputs[i].role == OutputRole::Saved) {
      saved[forward->outputs[i].name] = forward->graph->outputs()[i];
    }
  }
  for (size_t i = 0; i < backward->inputs.size(); ++i) {
    if (backward->inputs[i].role != InputRole::Saved) continue;
    const std::string& name = backward->inputs[i].name;
    const Value* input = backward->graph->inputs()[i];
    const auto found = saved.find(name);
    TORCH_CHECK(found != saved.end(), "entry 'backward': the input %", input->debugName(),
                " is saved '", name, "', which 'forward' does not save");
    const std::string given = typeText(*found->second->type());
    const std::string taken = typeText(*input->type());
    TORCH_CHECK(given == taken, "entry 'backward': the saved input %", input->debugName(), " is ",
                taken, ", but 'forward' saves '", name, "' as ", given);
  }
}

}  // namespace

void verifyProgram(const Program& program) {
  llvm::StringSet<> names;
  for (const Entry& entry : program.entries) {
    TORCH_CHECK(names.insert(entry.name).second, "two entries are called '", entry.name, "'");
    EntryVerifier(entry).verify();
  }
  checkSavedValues(program);
  checkDonatedValues(program);
}

}  // namespace gravure
