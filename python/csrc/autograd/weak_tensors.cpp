#include "python/csrc/autograd/weak_tensors.h"

#include <dlfcn.h>

namespace gravure {

namespace {

/// Python's lock, in a process that has Python. Two functions of its stable ABI, looked up: this library
/// is built for every version of it.
class PythonLock {
 public:
  PythonLock() {
    static const auto acquire =
        reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    static const auto isThere =
        reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
    held_ = acquire != nullptr && isThere != nullptr && isThere() != 0;
    if (held_) state_ = acquire();
  }
  ~PythonLock() {
    static const auto release =
        reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    if (held_) release(state_);
  }
  PythonLock(const PythonLock&) = delete;
  PythonLock& operator=(const PythonLock&) = delete;

 private:
  bool held_ = false;
  int state_ = 0;
};

}  // namespace

AliveTensors::AliveTensors(const WeakTensors& weak) {
  if (weak.empty()) return;
  tensors_.reserve(weak.size());
  const PythonLock lock;
  for (const auto& [position, tensor] : weak) tensors_.emplace_back(tensor.lock());
}

LetGoTogether::LetGoTogether(const std::vector<c10::IValue>& values,
                             const std::vector<bool>& ofCaller) {
  for (size_t i = 0; i < values.size(); ++i) {
    const c10::IValue& value = values[i];
    if (!ofCaller[i] || !value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr)
      tensors_.push_back(tensor);
  }
}

LetGoTogether::~LetGoTogether() {
  if (tensors_.empty()) return;
  const PythonLock lock;
  tensors_.clear();
}

AliveTensors::~AliveTensors() {
  if (tensors_.empty()) return;
  const PythonLock lock;
  tensors_.clear();
}

}  // namespace gravure
