#pragma once
// What a recorded run teaches: the metadata of each call's results, and whose memory they lie in.

#include "runtime/device/arena_session.h"
#include "runtime/program/instruction.h"

#include <llvm/ADT/SmallVector.h>

namespace gravure {

class Recorder {
 public:
  explicit Recorder(ArenaSession& session) : session_(session) {}

  /// Before the call runs: holds the storages of its operands until after().
  void before(const Call& call, const Frame& frame);
  /// After it ran, its results on `stack`: fills call.recorded.
  void after(Call& call, const torch::jit::Stack& stack);

 private:
  struct Held {
    c10::Storage storage;  // none: no tensor with memory
    int64_t byteOffset;
    Slot slot;
  };
  void note(const Operand& operand, const Frame& frame);
  void noteValue(const c10::IValue& value, Slot slot);
  RecordedTensor describeTensor(const at::Tensor& tensor) const;
  std::vector<LetGo> operandsLetGo(const RecordedCall& before) const;

  ArenaSession& session_;
  llvm::SmallVector<Held, 8> operands_;
};

/// Offset of the tensor's first element from the start of its storage, in bytes.
int64_t byteOffset(const at::Tensor& tensor);

}  // namespace gravure
