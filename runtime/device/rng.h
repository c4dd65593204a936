#pragma once
// Which random state a call draws from.

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

namespace gravure {

/// The generator that operators on `device` draw from when none is given.
at::Generator defaultGenerator(c10::Device device);

/// A copy of its state, as a byte tensor on the CPU.
at::Tensor stateOf(at::Generator generator);
/// `state`: as stateOf gives it, or a part of a storage with the same bytes.
void setState(at::Generator generator, const at::Tensor& state);

/// While alive, draws on `device` come from `rng`:
///   None, or the default generator itself   nothing changes
///   a Generator                             the default one draws from its state and advances it
///   a byte tensor                           the default one draws from that state and is put back
/// A CUDA generator is bound without a copy: a graph that the caller captures must know its state.
class RngScope {
 public:
  RngScope(c10::Device device, const c10::IValue& rng);
  ~RngScope();
  RngScope(const RngScope&) = delete;
  RngScope& operator=(const RngScope&) = delete;

 private:
  void putBack();

  at::Generator default_;
  at::Generator paired_;
  at::Generator shared_;  // CUDA: the default generator's own state while another is bound
  at::Tensor kept_;       // CPU: the same, as bytes
};

}  // namespace gravure
