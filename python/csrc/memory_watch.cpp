#include "python/csrc/memory_watch.h"

#include "ir/torch_private/python_values.h"
#include "python/csrc/python_api.h"
#include "runtime/program/input_memory.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace gravure {
namespace {

constexpr const char* kName = "gravure.memory_watch";

class MemoryWatch {
 public:
  MemoryWatch(size_t count, const std::vector<int64_t>& written)
      : written_(written.begin(), written.end()), values_(count) {
    std::sort(written_.begin(), written_.end());
    tensors_ = LooseInputs(written_);
    for (size_t i = 0; i < count; ++i) tensors_.addLoose(i);
    tensors_.close();
  }
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  bool areApart(const PythonApi& python, PyObject* tuple) {
    const torch_private::PythonValues& from = *torch_private::PythonValues::find();
    const c10::TypePtr type = c10::TensorType::get();
    if (python.PyTuple_Size(tuple) != static_cast<PySize>(values_.size())) return false;
    for (size_t i = 0; i < values_.size(); ++i) {
      PyObject* const member = python.PyTuple_GetItem(tuple, static_cast<PySize>(i));
      values_[i] = from.toValue(member, type, std::nullopt);
    }
    return tensors_.areApart(values_);
  }
  /// Nothing is kept alive between calls.
  void letGo() { std::fill(values_.begin(), values_.end(), c10::IValue()); }

 private:
  std::vector<size_t> written_;
  std::vector<c10::IValue> values_;
  LooseInputs tensors_;
};

PyObject* watchMemory(PyObject* self, PyObject* const* arguments, PySize count) {
  const PythonApi& python = *PythonApi::find();
  auto* const watch = static_cast<MemoryWatch*>(python.PyCapsule_GetPointer(self, kName));
  bool apart = false;
  if (watch && count == 1 && python.typeOf(arguments[0]) == python.tupleType) {
    try {
      apart = watch->areApart(python, arguments[0]);
    } catch (const std::exception&) {  // no tensor, or one without an address
      python.PyErr_Clear();
    }
    watch->letGo();
  }
  return python.held(apart ? python.yes : python.no);
}

void endWatch(PyObject* capsule) {
  delete static_cast<MemoryWatch*>(PythonApi::find()->PyCapsule_GetPointer(capsule, kName));
}

}  // namespace

int64_t makeMemoryWatch(int64_t count, const std::vector<int64_t>& written) {
  const PythonApi* const python = PythonApi::find();
  if (!python || !torch_private::PythonValues::find()) return 0;
  const WithPython lock(*python);
  auto watch = std::make_unique<MemoryWatch>(static_cast<size_t>(count), written);
  static PyMethod of = {"memory_watch", &watchMemory, kFastCall, nullptr};
  return newFunction(*python, of, std::move(watch), kName, &endWatch);
}

}  // namespace gravure
