#pragma once
// Which inputs and results of a program share memory, and which a pass may let share it.
//
// Terms. Port: a tensor among the inputs and results of an entry, of any role. Class: ports that may
//   lie in one memory: in one storage of their entry (ir/memory/storage_accesses.h), and from what one
//   entry saves to what a later one takes under that name. Private class: saved values alone, all of which
//   a later entry takes, and to which no entry writes that takes them. All else the caller sees: he may
//   write into it whenever he likes, and autograd notices it only where PyTorch's own tensors would share
//   memory.
// Rule. Classes may become one if one of them at most has ports, or all that have ports are private.
//   So no result shares memory with another one, with an input or with a saved value unless the
//   program as it was given says so; what is saved may be parts of one memory, which is only read.
// Complexity: linear in nodes plus edges.

#include "ir/core/program.h"
#include "passes/analysis/kept_analyses.h"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/IntEqClasses.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gravure {

class Sharing {
 public:
  /// Holds for the values that `program` has now, also while nodes are made and destroyed.
  explicit Sharing(const Program& program, const KeptAnalyses& analyses = {});

  /// True if the rule lets `values`, of one entry, lie in one memory.
  bool mayJoin(llvm::ArrayRef<const Value*> values);
  /// From now on they do. They may.
  void join(llvm::ArrayRef<const Value*> values);

  /// "" if the rule led from `before`, an earlier state of the same program, to this one; else a
  /// sentence that names two ports. Ports that only one of them has do not count.
  std::string breaksRule(const Sharing& before) const;

 private:
  /// Ports of one entry, and its storages.
  struct EntryPorts {
    std::string name;
    const Graph* graph = nullptr;
    std::vector<InputInfo> inputs;
    std::vector<OutputInfo> outputs;
    std::vector<int32_t> inputClass, outputClass;  // -1: no memory
    std::shared_ptr<const EntryMemory> memory;
    llvm::IntEqClasses joined;                       // storages
    llvm::DenseMap<int32_t, int32_t> classOfLeader;  // of leaders that have ports
  };
  void addEntry(const Entry& entry, std::shared_ptr<const EntryMemory> memory);
  void addPorts(const Entry& entry, EntryPorts& ports);
  void joinSaved();
  int32_t addClass();
  int32_t classOf(int32_t cls) const { return static_cast<int32_t>(classes_.findLeader(cls)); }
  int32_t uniteClasses(int32_t a, int32_t b);
  EntryPorts& entryOf(const Value* value);
  /// "result 0 (output "y") of forward"
  std::string portText(size_t entry, bool isInput, size_t index) const;
  /// The storage that leads those of `value`; -1 for values without memory.
  static int32_t leaderOf(const EntryPorts& ports, const Value* value);

  std::vector<EntryPorts> entries_;
  llvm::IntEqClasses classes_;   // of ports that may lie in one memory
  std::vector<bool> isPrivate_;  // by class, of leaders
};

}  // namespace gravure
