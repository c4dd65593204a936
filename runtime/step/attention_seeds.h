#pragma once
// The seed and the offset of the dropout in memory-efficient attention: two numbers that the forward returns
// and the backward takes.
//
// Run one by one, both have them on the host; in a capture, on the device. Nobody looks where they really are:
// a backward that runs one by one behind a replayed forward would read an address of the device's on the host,
// which ends the process, and a captured one behind a forward that ran one by one an address of the host's on
// the device.
// Source: aten/src/ATen/native/transformers/cuda/attention_backward.cu, "Seed and Offset Device".

#include "runtime/program/instruction.h"

namespace gravure {

/// Whether it is such a backward, of an attention whose dropout draws.
bool readsSeeds(const Call& call);
/// Ahead of `call` outside of any capture: copies those numbers on `stack` that are on a device to the host,
/// and waits for them.
void seedsToHost(const Call& call, torch::jit::Stack& stack);
/// Ahead of a capture on `device`. Throws c10::Error where one that comes from outside of the partition is
/// elsewhere: this capture fails.
void checkSeeds(const Launch& launch, const Frame& frame, c10::Device device);

}  // namespace gravure
