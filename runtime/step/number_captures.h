#pragma once
// Which operands of a partition are numbers that may change between replays, and what captures with
// other values show of them.

#include "runtime/device/arena_session.h"
#include "runtime/device/device.h"
#include "runtime/program/instruction.h"
#include "runtime/step/number_patches.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gravure {

/// The floats among a launch's operands.
struct LaunchNumbers {
  std::vector<PatchedNumber> numbers;        // operators take them as numbers alone
  std::vector<std::vector<int32_t>> ofCall;  // by call of the launch: indices into `numbers`
  /// Operands that are baked in, and why.
  std::vector<std::pair<size_t, std::string>> baked;
};

/// `draws`: it draws random numbers.
LaunchNumbers numbersOf(const Launch& launch, const Frame& frame, bool draws);

/// Records the calls of `launch` with the operands in `frame`, which stay; the results are in `frame`
/// then. c10::Error names the call.
void captureCalls(const Launch& launch, Frame& frame, torch::jit::Stack& stack, Capture& capture,
                  ArenaSession& session);

/// Where a partition is captured: all that a capture of it needs.
struct CaptureContext {
  const Launch& launch;
  Frame& frame;
  torch::jit::Stack& stack;
  Device& device;
  ArenaSession& session;
};

/// Finds and proves the places of `numbers` in `executable`, which was captured with the values in the
/// frame and watched, by further captures. Moves to `numbers.baked` what has none. nullptr if none
/// is left. Throws where a capture fails; the frame is as before.
std::unique_ptr<NumberPatches> findPatches(LaunchNumbers& numbers, const Executable& executable,
                                           const CaptureContext& context);

/// By captures with the values in the frame: whether `patches` are right for them, too. Throws where a
/// capture fails; the frame is as before.
bool provePatches(NumberPatches& patches, const Executable& executable,
                  const CaptureContext& context);

}  // namespace gravure
