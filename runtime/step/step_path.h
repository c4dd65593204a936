#pragma once
// How one step runs, and the memory that it takes for that.

#include "runtime/device/device.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace gravure {

class Seal;

struct LeaveArena {
  void operator()(Slab* slab) const noexcept { slab->leave(); }
};
/// The arena's memory, entered for one step: it gives it back itself. The runtime keeps the arena for as
/// long as a step has its turn.
using ArenaLease = std::unique_ptr<Slab, LeaveArena>;

struct StepPath {
  enum class Kind : uint8_t {
    Plain,     // node by node
    Recorded,  // the same, as a warm-up
    Served,    // partitions replayed, memory from the arena
  };
  Kind kind = Kind::Plain;
  ArenaLease arena{};           // of a served one
  bool overwritesLent = false;  // a served one runs over the lent values that it reads
  const Seal* seal = nullptr;   // of a served one: it holds, so nothing is left to look at
  std::string why{};            // of a plain one, as far as it is known: for the other ranks

  static StepPath plain(std::string why = "") {
    StepPath path;
    path.why = std::move(why);
    return path;
  }
};

}  // namespace gravure
