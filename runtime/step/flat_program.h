#pragma once
// A program made ready to run: what all runtimes of it have alike, and none of them changes.
//
// Calls in flight have a runtime each, of one program (calls_in_flight.h). What is found out from the
// program alone is found out once: its lives, its instructions, what its inputs must be. What a run teaches
// is each runtime's own, or the SharedWarmUp's: so a runtime has copies of the instructions, in which it
// notes that.
//
// Steps of several runtimes read it on several threads. It holds nothing of a model or a device.

#include "ir/core/program.h"
#include "ir/memory/timeline.h"
#include "runtime/device/device_map.h"
#include "runtime/layout/arena_layout.h"
#include "runtime/program/guards.h"
#include "runtime/program/instruction.h"
#include "runtime/runtime.h"

#include <memory>
#include <string>
#include <vector>

namespace gravure {

struct FlatProgram {
  /// `device`: where it computes. TORCH_CHECK as flatten(), and for a program without entries.
  FlatProgram(Program program, c10::Device device, ResultPolicy results);
  FlatProgram(const FlatProgram&) = delete;
  FlatProgram& operator=(const FlatProgram&) = delete;

  const Program program;
  const DeviceMap devices;
  const Timeline timeline;
  const std::vector<EntryCode> codes;                 // one an entry
  const std::vector<std::vector<InputCheck>> checks;  // [entry][input]
  const std::vector<CallPlanning> planning;           // by position in `timeline`
  /// By entry: those whose saved values it reads, ascending.
  const std::vector<std::vector<size_t>> producers;
  /// Which operators the entries call, in order, and where partitions begin.
  const std::shared_ptr<const std::string> operators;
  const ResultPolicy results;
};

}  // namespace gravure
