#include "python/csrc/distinct_values.h"

#include "ir/torch_private/python_values.h"
#include "python/csrc/python_api.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <llvm/ADT/STLExtras.h>

#include <bit>
#include <exception>
#include <optional>
#include <vector>

namespace gravure {
namespace {

constexpr size_t kMostValues = 64;  // looked through for each tensor

/// nullopt where it is no plain tensor of one float or double on the CPU.
std::optional<double> valueOf(const at::Tensor& tensor) {
  const bool plain = tensor.defined() && tensor.is_cpu() && tensor.layout() == c10::kStrided &&
                     tensor.dim() == 0 && !tensor.is_neg() &&
                     !tensor.unsafeGetTensorImpl()->is_python_dispatch();
  if (!plain) return std::nullopt;
  if (tensor.scalar_type() == c10::kDouble) return *tensor.const_data_ptr<double>();
  if (tensor.scalar_type() == c10::kFloat) return *tensor.const_data_ptr<float>();
  return std::nullopt;
}

bool isKnown(const std::vector<double>& values, double value) {
  return llvm::any_of(values, [&](double each) {
    return std::bit_cast<uint64_t>(each) == std::bit_cast<uint64_t>(value);
  });
}

/// False where there is no answer.
bool readAll(const PythonApi& python, PyObject* list, std::vector<double>& values) {
  const torch_private::PythonValues& from = *torch_private::PythonValues::find();
  const c10::TypePtr type = c10::TensorType::get();
  const PySize count = python.PyList_Size(list);
  for (PySize i = 0; i < count; ++i) {
    const c10::IValue tensor = from.toValue(python.PyList_GetItem(list, i), type, std::nullopt);
    const auto value = valueOf(tensor.toTensor());
    if (!value) return false;
    if (!isKnown(values, *value)) values.push_back(*value);
    if (values.size() > kMostValues) return false;
  }
  return true;
}

PyObject* listOf(const PythonApi& python, const std::vector<double>& values) {
  PyObject* const list = python.PyList_New(static_cast<PySize>(values.size()));
  for (size_t i = 0; list && i < values.size(); ++i) {
    PyObject* const number = python.PyFloat_FromDouble(values[i]);
    if (!number || python.PyList_SetItem(list, static_cast<PySize>(i), number) != 0) {
      python.Py_DecRef(list);
      return nullptr;
    }
  }
  return list;
}

PyObject* distinctValues(PyObject* /*self*/, PyObject* const* arguments, PySize count) {
  const PythonApi& python = *PythonApi::find();
  std::vector<double> values;
  bool known = false;
  try {
    known = count == 1 && python.typeOf(arguments[0]) == python.listType &&
            readAll(python, arguments[0], values);
  } catch (const std::exception&) {  // no tensor
    python.PyErr_Clear();
  }
  return known ? listOf(python, values) : python.held(python.none);
}

}  // namespace

int64_t makeDistinctValues() {
  const PythonApi* const python = PythonApi::find();
  if (!python || !torch_private::PythonValues::find()) return 0;
  const WithPython lock(*python);
  static PyMethod of = {"distinct_values", &distinctValues, kFastCall, nullptr};
  return newFunction(*python, of);
}

}  // namespace gravure
