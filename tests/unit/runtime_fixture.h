#pragma once
// Emitted programs written by hand, and a runtime with its uncaptured reference beside it.

#include "ir/text/program_text.h"
#include "runtime/runtime.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>

#include <cstring>
#include <string_view>

namespace gravure {

inline bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

inline bool sameBits(const std::vector<c10::IValue>& a, const std::vector<c10::IValue>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].isTensor() != b[i].isTensor()) return false;
    if (a[i].isTensor() && !sameBits(a[i].toTensor(), b[i].toTensor())) return false;
    if (a[i].isInt() && a[i].toInt() != b[i].toInt()) return false;
  }
  return true;
}

/// Calls of one operator by this thread, also from within others, since it was made. One at a time.
class CountedCalls {
 public:
  explicit CountedCalls(std::string_view name) {
    counted_ = name;
    calls_ = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          calls_ += call.name() == counted_;
          return nullptr;
        }));
  }
  ~CountedCalls() { at::removeCallback(handle_); }
  CountedCalls(const CountedCalls&) = delete;
  CountedCalls& operator=(const CountedCalls&) = delete;
  int count() const { return calls_; }

 private:
  static inline thread_local std::string_view counted_;
  static inline thread_local int calls_ = 0;
  at::CallbackHandle handle_;
};

inline std::unique_ptr<Runtime> makeRuntime(const std::string& text, RuntimeOptions options = {},
                                            bool poison = true) {
  return std::make_unique<Runtime>(readProgram(text), makeHostDevice(poison), std::move(options));
}

inline std::unique_ptr<Runtime> makeReference(const std::string& text) {
  RuntimeOptions options;
  options.uncaptured = true;
  return makeRuntime(text, options, false);
}

/// Partitions of an entry that are in `state`.
inline size_t countIn(const Runtime& runtime, PartitionState state,
                      const std::string& entry = "step") {
  size_t count = 0;
  for (PartitionState other : runtime.partitionStates(entry)) count += other == state;
  return count;
}

/// All remarks, a line each.
inline std::string remarksOf(Runtime& runtime) {
  std::string text;
  for (const Remark& remark : runtime.remarks().all())
    text += remark.name + ": " + remark.node + ": " + remark.message + "\n";
  return text;
}

inline at::Tensor rngState() { return at::detail::getDefaultCPUGenerator().get_state(); }
inline void setRngState(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state);
}

/// Two partitions with a host read between them, dropout in each, a mutated buffer, two gradients.
inline const char* const kTrainingStep = R"(gravure 1
graph step(%w : Float(8, 4, strides=[4, 1], device=cpu) {parameter "w"},
           %b : Float(8, strides=[1], device=cpu) {buffer "b"},
           %x : Float(16, 4, strides=[4, 1], device=cpu) {user_input "x"}):
  %xs : Float(16, 4, strides=[4, 1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(16, 8, strides=[8, 1], device=cpu), %d.out : Float(16, 8, strides=[8, 1], device=cpu), %m.out : Bool(16, 8, strides=[8, 1], device=cpu), %s.out : Float(device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "staged: user input"]](%w, %xs)
    block0(%w.0 : Float(8, 4, strides=[4, 1], device=cpu), %xs.0 : Float(16, 4, strides=[4, 1], device=cpu)):
      %wt : Float(4, 8, strides=[1, 4], device=cpu) = aten::t(%w.0)
      %y : Float(16, 8, strides=[8, 1], device=cpu) = aten::mm(%xs.0, %wt)
      %r : Float(16, 8, strides=[8, 1], device=cpu) = aten::relu(%y)
      %d : Float(16, 8, strides=[8, 1], device=cpu), %m : Bool(16, 8, strides=[8, 1], device=cpu) = aten::native_dropout(%r, 0.3, True)
      %s : Float(device=cpu) = aten::sum(%d)
      -> (%y, %d, %m, %s)
  %count : float = aten::_local_scalar_dense(%s.out)
  %h : Float(16, 8, strides=[8, 1], device=cpu) = aten::mul.Tensor(%d.out, %count)
  %loss.out : Float(device=cpu), %gw.out : Float(8, 4, strides=[4, 1], device=cpu), %b2.out : Float(8, strides=[1], device=cpu) = cudagraph::launch[index=1, tags=["static: host node at a planned address", "static: buffer", "staged: user input"]](%h, %b, %xs)
    block0(%h.1 : Float(16, 8, strides=[8, 1], device=cpu), %b.1 : Float(8, strides=[1], device=cpu), %xs.1 : Float(16, 4, strides=[4, 1], device=cpu)):
      %z : Float(16, 8, strides=[8, 1], device=cpu) = aten::add.Tensor(%h.1, %b.1)
      %d2 : Float(16, 8, strides=[8, 1], device=cpu), %m2 : Bool(16, 8, strides=[8, 1], device=cpu) = aten::native_dropout(%z, 0.5, True)
      %loss : Float(device=cpu) = aten::mean(%d2)
      %zt : Float(8, 16, strides=[1, 8], device=cpu) = aten::t(%d2)
      %gw : Float(8, 4, strides=[4, 1], device=cpu) = aten::mm(%zt, %xs.1)
      %colmean : Float(8, strides=[1], device=cpu) = aten::mean.dim(%z, [0])
      %b2 : Float(8, strides=[1], device=cpu) = aten::copy_(%b.1, %colmean)
      -> (%loss, %gw, %b2)
  %loss.own : Float(device=cpu), %gw.own : Float(8, 4, strides=[4, 1], device=cpu) = cudagraph::own(%loss.out, %gw.out)
  return (%loss.own {loss}, %gw.own {gradient "w"}, %b2.out {mutation %b})
)";

}  // namespace gravure
