#pragma once
// Passes that are wrong, each in one way that a real one could be: the real pass on a program that was
// tampered with, or its result tampered with.

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "ir/memory/storage_accesses.h"
#include "passes/pass.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gravure::testing {

struct DamagedPass {
  std::string name;  // what it does wrong
  std::string pass;  // the one in whose place it runs
  std::function<void(Program&, PassContext&)> run;
};

/// True if node `b`, behind node `a`, must stay behind it.
using Dependence = std::function<bool(const StorageAccesses&, int32_t a, int32_t b)>;

inline bool touches(const StorageAccesses& accesses, int32_t node, int32_t storage) {
  for (const Value* input : accesses.numbering().node(node)->inputs()) {
    if (accesses.storageOf(input) == storage) return true;
  }
  return false;
}
inline bool isCalled(const Node* node, const char* name) {
  return node->kind() == c10::Symbol::fromQualString(name);
}

/// Moves every node that a dependence of this kind alone keeps behind another one in front of that one.
inline void dropDependence(Program& program, const Dependence& depends) {
  for (Entry& entry : program.entries) {
    const Numbering numbering(entry);
    const StorageAccesses accesses(numbering);
    std::vector<bool> moved(numbering.size(), false);
    for (int32_t b = 0; b < numbering.size(); ++b) {
      if (numbering.isNested(b)) continue;
      int32_t last = -1;  // the operand that is made last
      for (int32_t used : numbering.used(b)) last = std::max(last, numbering.definedBy(used));
      for (int32_t a = b - 1; a > last; --a) {
        if (moved[a] || !depends(accesses, a, b)) continue;
        numbering.node(b)->moveBefore(numbering.node(a));
        moved[b] = true;
        break;
      }
    }
  }
}

/// Moves every write behind the nodes that read what it wrote, but for those that use its result.
inline void delayWrites(Program& program, const std::function<bool(const Node*)>& isReader) {
  for (Entry& entry : program.entries) {
    const Numbering numbering(entry);
    const StorageAccesses accesses(numbering);
    for (int32_t a = numbering.size(); a-- > 0;) {
      Node* write = numbering.node(a);
      if (!numbering.facts(a).writes || numbering.isNested(a)) continue;
      const auto written = writtenInputs(write);
      int32_t end = numbering.size();
      for (Value* output : write->outputs()) {
        for (const auto& use : output->uses()) {
          for (int32_t i = a + 1; i < end; ++i) {
            if (numbering.node(i) == use.user) end = i;
          }
        }
      }
      for (int32_t b = end; --b > a;) {
        if (!isReader(numbering.node(b)) ||
            !touches(accesses, b, accesses.storageOf(written.front())))
          continue;
        write->moveAfter(numbering.node(b));
        break;
      }
    }
  }
}

inline void runReal(const char* pass, Program& program, PassContext& context) {
  findPass(pass)->run(program, context);
}

template <typename Visit>
void forEachNodeOf(Program& program, Visit&& visit) {
  const std::function<void(Block*)> all = [&](Block* block) {
    for (auto it = block->nodes().begin(); it != block->nodes().end();) {
      Node* node = *it++;
      for (Block* inner : node->blocks()) all(inner);
      visit(node);
    }
  };
  for (Entry& entry : program.entries) all(entry.graph->block());
}

/// place-products, without a look at what the caller gets.
inline void placeWhatIsReturned(Program& program, PassContext& context) {
  std::vector<std::vector<std::string>> names;
  for (Entry& entry : program.entries) {
    auto& mine = names.emplace_back();
    for (size_t o = entry.graph->outputs().size(); o-- > 0;) {
      mine.insert(mine.begin(), entry.graph->outputs()[o]->debugName());
      if (isCalled(entry.graph->outputs()[o]->node(), "aten::mm")) entry.graph->eraseOutput(o);
    }
  }
  std::vector<std::vector<OutputInfo>> roles;
  for (Entry& entry : program.entries) {
    roles.push_back(entry.outputs);
    entry.outputs.assign(entry.graph->outputs().size(), {});
  }
  runReal("place-products", program, context);
  for (size_t e = 0; e < program.entries.size(); ++e) {
    Entry& entry = program.entries[e];
    std::map<std::string, Value*> values;
    for (Value* input : entry.graph->inputs()) values[input->debugName()] = input;
    for (Node* node : entry.graph->nodes()) {
      for (Value* output : node->outputs()) values[output->debugName()] = output;
    }
    while (!entry.graph->outputs().empty()) entry.graph->eraseOutput(0);
    for (const std::string& name : names[e]) entry.graph->registerOutput(values.at(name));
    entry.outputs = roles[e];
  }
}

inline std::vector<DamagedPass> damagedPasses() {
  const auto before = [](const char* pass, std::function<void(Program&)> damage) {
    return [=](Program& program, PassContext& context) {
      damage(program);
      runReal(pass, program, context);
    };
  };
  const auto after = [](const char* pass, std::function<void(Program&)> damage) {
    return [=](Program& program, PassContext& context) {
      runReal(pass, program, context);
      damage(program);
    };
  };
  const auto withoutOrder = [=](Dependence depends) {
    return before("partition-graph", [=](Program& program) { dropDependence(program, depends); });
  };
  std::vector<DamagedPass> passes;

  passes.push_back({"partition-graph without the order of memory", "partition-graph",
                    withoutOrder([](const StorageAccesses& n, int32_t a, int32_t b) {
                      bool found = false;
                      const auto both = [&](int32_t writer, int32_t other) {
                        n.numbering().forEachWrittenValue(writer, [&](const Value* value) {
                          found |= touches(n, other, n.storageOf(value));
                        });
                      };
                      both(b, a);
                      both(a, b);
                      return found;
                    })});
  passes.push_back({"partition-graph without the order of draws", "partition-graph",
                    withoutOrder([](const StorageAccesses& n, int32_t a, int32_t b) {
                      return n.numbering().facts(a).random && n.numbering().facts(b).random;
                    })});
  passes.push_back({"partition-graph without the order of collectives", "partition-graph",
                    withoutOrder([](const StorageAccesses& n, int32_t a, int32_t b) {
                      return n.numbering().facts(a).collective && n.numbering().facts(b).collective;
                    })});
  passes.push_back({"partition-graph without the order of effects", "partition-graph",
                    withoutOrder([](const StorageAccesses& n, int32_t a, int32_t b) {
                      return n.numbering().facts(a).effects && n.numbering().facts(b).effects;
                    })});
  passes.push_back({"partition-graph that moves writes in front of waits", "partition-graph",
                    withoutOrder([](const StorageAccesses& n, int32_t a, int32_t b) {
                      return n.numbering().facts(a).wait && n.numbering().facts(b).writes;
                    })});
  passes.push_back({"batch-pointwise that ignores a write", "batch-pointwise",
                    before("batch-pointwise", [](Program& program) {
                      delayWrites(program, [](const Node* node) {
                        return factsOf(node).handle &&
                               factsOf(node).handle->hasTag(at::Tag::pointwise);
                      });
                    })});
  passes.push_back(
      {"place-products that ignores what the caller gets", "place-products", placeWhatIsReturned});
  passes.push_back({"merge-host-reads that reads before a write", "merge-host-reads",
                    before("merge-host-reads", [](Program& program) {
                      delayWrites(program, [](const Node* node) {
                        return isCalled(node, "aten::_local_scalar_dense");
                      });
                    })});
  passes.push_back({"join-gradients that drops an addend", "join-gradients",
                    after("join-gradients", [](Program& program) {
                      forEachNodeOf(program, [](Node* node) {
                        const bool joins =
                            !node->outputs().empty() &&
                            node->output(0)->debugName().find(".joined") != std::string::npos;
                        if (joins && node->inputs().size() > 1)
                          node->replaceInput(0, node->input(1));
                      });
                    })});
  passes.push_back(
      {"accumulate-gradients that adds twice", "accumulate-gradients",
       after("accumulate-gradients", [](Program& program) {
         forEachNodeOf(program, [](Node* node) {
           const bool adds = isCalled(node, "aten::add_") &&
                             node->output()->debugName().find(".sum") != std::string::npos;
           if (!adds) return;
           Graph* graph = node->owningGraph();
           graph->createClone(node, [](Value* value) { return value; })->insertAfter(node);
         });
       })});
  passes.push_back({"infer-sizes that closes a size wrongly", "infer-sizes",
                    [](Program& program, PassContext& context) {
                      std::vector<Value*> open;
                      forEachNodeOf(program, [&](Node* node) {
                        for (Value* output : node->outputs()) {
                          if (isTensorValue(output) && !hasStaticShape(output))
                            open.push_back(output);
                        }
                      });
                      runReal("infer-sizes", program, context);
                      for (Value* value : open) {
                        const auto type = value->type()->cast<c10::TensorType>();
                        if (!type || !hasStaticShape(value)) continue;
                        auto sizes = *type->sizes().concrete_sizes();
                        sizes[0] += 1;
                        value->setType(
                            type->withSizesStrides(sizes, *type->strides().concrete_sizes()));
                      }
                    }});
  passes.push_back(
      {"await-host-copies that does nothing", "await-host-copies", [](Program&, PassContext&) {}});
  passes.push_back({"tag-static-inputs that calls a user input static", "tag-static-inputs",
                    after("tag-static-inputs", [](Program& program) {
                      forEachNodeOf(program, [](Node* node) {
                        if (!isPartition(node)) return;
                        auto tags = tagsOf(node);
                        for (OperandTag& tag : tags) {
                          if (tag.why == "user input") tag = {OperandKind::Static, "buffer"};
                        }
                        setTags(node, tags);
                      });
                    })});
  passes.push_back({"bind-rng-states that swaps two states", "bind-rng-states",
                    after("bind-rng-states", [](Program& program) {
                      for (Entry& entry : program.entries) {
                        std::vector<Value*> states;
                        for (Value* input : entry.graph->inputs()) {
                          if (input->type()->kind() == c10::TypeKind::GeneratorType)
                            states.push_back(input);
                        }
                        if (states.size() < 2) continue;
                        for (Node* node : entry.graph->nodes()) {
                          for (size_t i = 0; i < node->inputs().size(); ++i) {
                            Value* input = node->input(i);
                            if (input == states[0]) {
                              node->replaceInput(i, states[1]);
                            } else if (input == states[1]) {
                              node->replaceInput(i, states[0]);
                            }
                          }
                        }
                      }
                    })});
  passes.push_back({"plan-memory that lays one life over another", "plan-memory",
                    after("plan-memory", [](Program& program) {
                      forEachNodeOf(program, [](Node* node) {
                        if (!node->hasAttribute(attr::arena)) return;
                        auto offsets = intsAttr(node, attr::arena);
                        for (int64_t& offset : offsets) offset = offset > 0 ? 0 : offset;
                        node->is_(attr::arena, std::move(offsets));
                      });
                    })});
  passes.push_back({"emit-runtime-calls that forgets a stage", "emit-runtime-calls",
                    after("emit-runtime-calls", [](Program& program) {
                      forEachNodeOf(program, [](Node* node) {
                        if (node->kind() == cg::stage)
                          node->output(0)->replaceAllUsesWith(node->input(0));
                      });
                    })});
  return passes;
}

}  // namespace gravure::testing
