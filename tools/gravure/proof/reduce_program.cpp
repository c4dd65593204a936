#include "tools/gravure/proof/reduce_program.h"

#include "ir/check/verify.h"

#include <vector>

namespace gravure::tool {
namespace {

std::vector<Node*> nodesOf(const Program& program) {
  std::vector<Node*> nodes;
  const std::function<void(Block*)> visit = [&](Block* block) {
    for (Node* node : block->nodes()) {
      nodes.push_back(node);
      for (Block* inner : node->blocks()) visit(inner);
    }
  };
  for (const Entry& entry : program.entries) visit(entry.graph->block());
  return nodes;
}

/// Takes node `n` away: where it is used, one of its operands of that type is.
bool dropNode(Program& program, size_t n, size_t operand) {
  Node* node = nodesOf(program)[n];
  for (Value* output : node->outputs()) {
    if (output->uses().empty()) continue;
    size_t seen = 0;
    Value* instead = nullptr;
    for (Value* input : node->inputs()) {
      if (*input->type() == *output->type() && seen++ == operand) instead = input;
    }
    if (!instead) return false;
    output->replaceAllUsesWith(instead);
  }
  node->destroy();
  return true;
}

/// Takes output `o` of an entry away; a saved one with the input that reads it, if nothing uses that.
bool dropOutput(Program& program, size_t e, size_t o) {
  Entry& entry = program.entries[e];
  if (o >= entry.outputs.size() || entry.outputs.size() < 2) return false;
  const OutputInfo info = entry.outputs[o];
  entry.graph->eraseOutput(o);
  entry.outputs.erase(entry.outputs.begin() + static_cast<std::ptrdiff_t>(o));
  if (info.role != OutputRole::Saved) return true;
  for (Entry& reader : program.entries) {
    for (size_t i = 0; i < reader.inputs.size(); ++i) {
      if (reader.inputs[i].role != InputRole::Saved || reader.inputs[i].name != info.name) continue;
      if (reader.graph->inputs()[i]->hasUses()) return false;
      reader.graph->eraseInput(i);
      reader.inputs.erase(reader.inputs.begin() + static_cast<std::ptrdiff_t>(i));
      for (OutputInfo& output : reader.outputs)
        output.input -= output.input > static_cast<int64_t>(i);
      break;
    }
  }
  return true;
}

}  // namespace

Program reduced(Program program, const std::function<bool(const Program&)>& fails) {
  const auto keeps = [&](const std::function<bool(Program&)>& change) {
    Program smaller = program.clone();
    try {
      if (!change(smaller)) return false;
      verifyProgram(smaller);
      if (!fails(smaller)) return false;
    } catch (const std::exception&) {
      return false;
    }
    program = std::move(smaller);
    return true;
  };
  for (bool changed = true; changed;) {
    changed = false;
    if (program.entries.size() > 1) {
      changed |= keeps([](Program& p) { return p.entries.pop_back(), true; });
    }
    for (size_t e = program.entries.size(); e-- > 0;) {
      for (size_t o = program.entries[e].outputs.size(); o-- > 0;)
        changed |= keeps([&](Program& p) { return dropOutput(p, e, o); });
    }
    for (size_t n = nodesOf(program).size(); n-- > 0;) {
      for (size_t operand = 0; operand < 2; ++operand) {
        if (n >= nodesOf(program).size()) break;
        changed |= keeps([&](Program& p) { return dropNode(p, n, operand); });
      }
    }
  }
  return program;
}

}  // namespace gravure::tool
