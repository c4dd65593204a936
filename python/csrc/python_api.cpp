#include "python/csrc/python_api.h"

#include <dlfcn.h>

#include <optional>

namespace gravure {
namespace {

template <typename Pointer>
bool take(const char* name, Pointer& pointer) {
  pointer = reinterpret_cast<Pointer>(dlsym(RTLD_DEFAULT, name));
  return pointer != nullptr;
}

std::optional<PythonApi> load() {
  PythonApi api{};
#define GRAVURE_TAKE(name) take(#name, api.name)
  const bool all =
      GRAVURE_TAKE(PyGILState_Ensure) && GRAVURE_TAKE(PyGILState_Release) &&
      GRAVURE_TAKE(PyEval_SaveThread) && GRAVURE_TAKE(PyEval_RestoreThread) &&
      GRAVURE_TAKE(Py_IncRef) && GRAVURE_TAKE(Py_DecRef) && GRAVURE_TAKE(PyObject_Type) &&
      GRAVURE_TAKE(PyObject_CallObject) && GRAVURE_TAKE(PyTuple_New) &&
      GRAVURE_TAKE(PyTuple_SetItem) && GRAVURE_TAKE(PyTuple_GetItem) &&
      GRAVURE_TAKE(PyTuple_Size) && GRAVURE_TAKE(PyList_New) && GRAVURE_TAKE(PyList_SetItem) &&
      GRAVURE_TAKE(PyList_GetItem) && GRAVURE_TAKE(PyList_Size) && GRAVURE_TAKE(PyDict_Next) &&
      GRAVURE_TAKE(PyDict_Size) && GRAVURE_TAKE(PyFloat_AsDouble) &&
      GRAVURE_TAKE(PyFloat_FromDouble) && GRAVURE_TAKE(PyLong_AsLongLong) &&
      GRAVURE_TAKE(PyErr_Occurred) && GRAVURE_TAKE(PyErr_Clear) && GRAVURE_TAKE(PyErr_Fetch) &&
      GRAVURE_TAKE(PyErr_Restore) && GRAVURE_TAKE(PyCapsule_New) &&
      GRAVURE_TAKE(PyCapsule_GetPointer) && GRAVURE_TAKE(PyCFunction_NewEx) &&
      GRAVURE_TAKE(PyGC_Disable) && GRAVURE_TAKE(PyGC_Enable) && take("_Py_NoneStruct", api.none) &&
      take("_Py_TrueStruct", api.yes) && take("_Py_FalseStruct", api.no) &&
      take("PyDict_Type", api.dictType) && take("PyTuple_Type", api.tupleType) &&
      take("PyList_Type", api.listType) && take("PyFloat_Type", api.floatType) &&
      take("PyLong_Type", api.intType) && take("PyBool_Type", api.boolType);
#undef GRAVURE_TAKE
  return all ? std::optional(api) : std::nullopt;
}

}  // namespace

const PythonApi* PythonApi::find() {
  static const std::optional<PythonApi> found = load();
  return found ? &*found : nullptr;
}

int64_t newFunction(const PythonApi& python, PyMethod& method, PyObject* self) {
  PyObject* const function = python.PyCFunction_NewEx(&method, self, nullptr);
  TORCH_CHECK(function, method.name, ": Python has no memory");
  return reinterpret_cast<int64_t>(function);
}

}  // namespace gravure
