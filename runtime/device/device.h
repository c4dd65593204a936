#pragma once
// The seam between the runtime and a device that can capture: CUDA, or the host device, which
// emulates capture on the CPU.

#include "runtime/device/captured_work.h"

#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace at {
class Generator;
}

namespace gravure {

struct Call;  // runtime/program/instruction.h: one operator call with its compiled arguments

/// A replay that failed after some of its work was done: what it wrote stays written. Any other error
/// of Executable::replay means that nothing ran.
struct PartialReplay : c10::Error {
  /// Of `error`, which is being handled.
  explicit PartialReplay(const c10::Error& error)
      : c10::Error(error), cause(std::current_exception()) {}
  std::exception_ptr cause;
};

/// What may not be captured, whenever it is tried: the cause lies in the program.
struct NotCapturable : c10::Error {
  using c10::Error::Error;
};
/// Throws one.
[[noreturn]] void refuseCapture(const std::string& message);

/// What a profiler's trace calls the work of a graph: its first node `first`, each further one by the next
/// number.
struct TraceNumbers {
  uint64_t first = 0;
  std::vector<size_t> ends;  // by call of the capture: how many nodes there were behind it
};

/// A partition, captured and instantiated. Owned by the runtime; made only by Capture::finish().
class Executable {
 public:
  virtual ~Executable() = default;
  /// Runs the captured work on the current stream (CUDA: enqueues it). Never allocates.
  /// Throws c10::Error if the launch fails and nothing ran, PartialReplay if some of it did.
  virtual void replay() = 0;
  /// What it runs; empty unless Capture::watchWork() was called.
  virtual const CapturedWork& work() const;
  /// From the next replay on node `node` of work() has these bytes, as many as there are in it. Throws
  /// c10::Error where that fails: then it is not known which ones it has.
  virtual void write(size_t node, const uint8_t* bytes);
  /// No `ends` where a trace cannot say which call a node is of.
  virtual TraceNumbers traceNumbers() const { return {}; }
};

/// A capture in progress on this thread. Its destructor aborts: whatever was routed, registered or
/// begun is put back, and the device can be used as if the capture had never begun.
class Capture {
 public:
  virtual ~Capture() = default;
  /// Records one operator call; on return `stack` holds its outputs, whose contents mean nothing
  /// until the executable has been replayed. `rng`: what the call draws from, None for the device's
  /// default generator (RngScope in runtime/device/rng.h binds it). The session has entered the call.
  /// Throws NotCapturable where the call may not be captured, and any other error where this capture
  /// broke.
  virtual void call(const Call& call, const c10::IValue& rng, torch::jit::Stack& stack) = 0;
  /// Ends the capture. Post: the device is no longer capturing, whether it throws or returns.
  virtual std::unique_ptr<Executable> finish() = 0;

  /// Before the first call: what is recorded will be compared with other captures. Memory that the
  /// calls may use without setting it holds `paint`, so that bytes which mean nothing show themselves.
  /// False where the device cannot say what it records.
  virtual bool watchWork(uint8_t /*paint*/) { return false; }
  /// In place of finish(): ends a watched capture that nobody will run. Post: as finish().
  virtual CapturedWork endTrial();
};

/// What an injected fault hits next: fault injection for tests (law 6).
enum class FaultPoint : uint8_t {
  CaptureBegin,
  CaptureCall,
  CaptureEnd,
  Launch,
  Allocation,
  Completion,  // what a marker marks never ends
};
constexpr size_t kFaultPoints = static_cast<size_t>(FaultPoint::Completion) + 1;

/// A point in the work of a stream. Its thread records it; any thread may ask.
class Marker {
 public:
  virtual ~Marker() = default;
  /// After what the current stream holds now; forgets where it was before.
  virtual void record() = 0;
  /// True if all work before it is done. Breaks no capture of any thread.
  virtual bool reached() = 0;
};

class LoanBook;  // runtime/results/loan_book.h

/// Bytes [begin, end) of an arena.
struct Extent {
  int64_t begin = 0, end = 0;
};

/// An arena as its program uses it. The rest of its memory means nothing between two steps.
struct ArenaShape {
  int64_t bytes = 0;
  std::vector<Extent> saved;                 // where saved values lie from forward to backward
  std::vector<std::vector<Extent>> results;  // by entry: where its lent and static results lie
  std::vector<std::vector<Extent>> used;     // by entry: what its runs read and write; {}: all
  size_t entered = 0;                        // the entry that is run first
  // Who holds them: what nobody holds means nothing either.
  std::shared_ptr<LoanBook> savedBook;
  std::vector<std::vector<std::shared_ptr<LoanBook>>> resultBooks;  // by entry
  bool resultsStay = false;  // static results are held for as long as the arena lives
  /// The same for all arenas of one graph's calls in flight; nullptr where there is one arena.
  std::shared_ptr<const void> inFlightWith{};
  bool amongMany = false;  // SavingProgram::areMany()
};

/// Why no step may use an arena: its own stream would become part of that capture.
constexpr const char* kOthersCapture =
    "a stream that used its memory is being captured by other code";
constexpr const char* kCannotFollow =
    "values that a step saved on another stream are read while that stream is being captured: run "
    "this on the same stream, or end the capture first";

/// Memory of an arena: one range of addresses that does not move while alive. The pages behind it may
/// be those of another arena, too (runtime/arena/arena_pages.h): between two steps only what somebody holds
/// keeps its bytes.
class Slab {
 public:
  virtual ~Slab() = default;
  virtual char* base() const = 0;
  virtual int64_t bytes() const = 0;

  /// Before a run of `entry`, on its thread and stream: no other program uses the pages of what that
  /// entry uses until leave(), and what the current stream gets next comes after what was done with them.
  /// False, and `why`, if there is no memory for it, or a stream that used it is being captured by other
  /// code; then nothing was taken.
  virtual bool enter(size_t entry, std::string& why) = 0;
  virtual void leave() = 0;
  /// Before a step that may read held values alone: what the current stream gets next comes after the
  /// last step that used the memory. Throws c10::Error while that step's stream is being captured.
  virtual void follow() = 0;
  /// True if nobody holds anything in it, and its pages are new or those of another arena, too: every
  /// byte may be other than the last step left it.
  virtual bool mayHaveChanged() const = 0;
  /// Why no other program may use its memory while this one rests; "" where others may.
  virtual std::string whyUnshared() const { return ""; }
  /// From now on it is one of several arenas of calls in flight: ArenaShape::inFlightWith.
  virtual void joinInFlight(std::shared_ptr<const void> /*with*/) {}
};

/// Throws c10::OutOfMemoryError: `what` says what there is no memory for, and on which device.
[[noreturn]] void failForMemory(const std::string& what, int64_t missing);

/// True where GRAVURE_NO_VIRTUAL_MEMORY=1 asks that no device map pages: each arena is a block of its
/// own then (runtime/arena/arena_blocks.h).
bool withoutVirtualMemory();

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;          // "host", "cuda:0"
  virtual c10::Device tensorDevice() const = 0;  // where tensors of the program's device live
  virtual int64_t alignment() const = 0;         // of planned offsets, in bytes

  /// Routes the tensor allocations of threads that have an open ArenaSession
  /// (runtime/device/arena_session.h) through it, for the life of the process. Idempotent.
  virtual void installAllocator() = 0;
  /// Throws c10::Error saying how much is missing if there is no memory for it.
  virtual std::shared_ptr<Slab> makeSlab(const ArenaShape& shape) = 0;
  /// Gives back what of the arenas of this device, whoever's they are, holds nothing that anybody
  /// needs. Captures stay: the next step of a program gets memory at the same addresses again.
  /// Returns the bytes given back.
  virtual int64_t releaseMemory() = 0;

  /// `generators`: the RNG states that the partition's calls draw from. Capturing moves none of them.
  virtual std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>& generators) = 0;

  /// Overwrites arena memory whose life has ended, so that a late reader is found out. Off by default.
  virtual bool poisons() const { return false; }
  virtual void poison(void* /*address*/, int64_t /*bytes*/) {}

  /// Around a step that warms up, on its thread: what the thread allocates comes from a pool for
  /// warm-ups, so that they leave no holes where captures and eager code allocate. The programs of a
  /// device warm up in it one after another. `expected`: where a step begins, bytes that it takes at once, or 0
  /// if that is not known; kStepGoesOn where an earlier entry has begun it.
  static constexpr int64_t kStepGoesOn = -1;
  virtual void beginWarmUp(int64_t /*expected*/) {}
  virtual void endWarmUp() {}
  /// Gives back what lies idle there, whoever left it; what is in use, once it is not. Idempotent.
  virtual void dropWarmUp() {}

  /// Whether the caller captures the current stream: what a step does there becomes part of his graph.
  virtual bool callerCaptures() const { return false; }

  /// Whether the next recurrent module seeds cuDNN's dropout anew, as after manual_seed() and after any
  /// random state that was put back.
  virtual bool seedsDropoutNext() const { return false; }

  virtual std::unique_ptr<Marker> makeMarker() = 0;

  /// Waits until all work given to the device is done (for tools and tests, never in a step).
  virtual void synchronize() = 0;
  /// Waits until the replays of this program, and what was given to their stream behind them, are done.
  /// Not for the device, which cannot be waited for while anybody captures. Throws nothing.
  virtual void finishReplays() noexcept {}

  /// Fails the `countdown`-th next pass through `point` (1 = the next) with a c10::Error; with
  /// `missing` bytes, as the device does that is out of memory.
  void injectFault(FaultPoint point, int64_t countdown, int64_t missing = 0);
  /// Throws if an injected fault is due at `point`; devices call it at each.
  void passFaultPoint(FaultPoint point);

 private:
  // By fault point.
  std::array<int64_t, kFaultPoints> countdown_{};
  std::array<int64_t, kFaultPoints> missing_{};
};

/// The emulation of runtime/host/host_device.cpp.
/// `poison`: fill arena memory with 0xFF bytes whenever its life ends; for tests and --verify.
std::unique_ptr<Device> makeHostDevice(bool poison = true);
/// Device::releaseMemory() of devices that nobody has at hand; 0 where no program ran.
int64_t releaseHostMemory();
int64_t releaseCudaMemory();
/// PyTorch's cache of each GPU goes back to the driver where much of it is in no use, as behind a first
/// backward: what an optimizer makes next would lie in a part of a large block, and keep the rest.
void giveBackIdleCudaCache() noexcept;
/// Device::seedsDropoutNext() of a device that nobody has at hand; afterwards it does not. False without
/// CUDA.
bool takeDropoutRestart(c10::DeviceIndex index);
/// runtime/cuda/cuda_device.cpp; the target //runtime:cuda. TORCH_CHECK names what is missing.
std::unique_ptr<Device> makeCudaDevice(c10::DeviceIndex index);

}  // namespace gravure
