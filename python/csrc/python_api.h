#pragma once
// Functions of Python's stable interface, by name: this library uses no Python header, and loads without Python.

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <cstdint>
#include <memory>

struct _object;  // what Python's PyObject is

namespace gravure {

using PyObject = ::_object;
using PySize = intptr_t;

/// As CPython's PyMethodDef.
struct PyMethod {
  const char* name;
  PyObject* (*call)(PyObject* self, PyObject* const* arguments, PySize count);
  int flags;
  const char* doc;
};
constexpr int kFastCall = 0x0080;  // METH_FASTCALL

struct PythonApi {
  int (*PyGILState_Ensure)();
  void (*PyGILState_Release)(int state);
  void* (*PyEval_SaveThread)();
  void (*PyEval_RestoreThread)(void* state);
  void (*Py_IncRef)(PyObject* object);
  void (*Py_DecRef)(PyObject* object);
  PyObject* (*PyObject_Type)(PyObject* object);
  PyObject* (*PyObject_CallObject)(PyObject* callable, PyObject* arguments);
  PyObject* (*PyTuple_New)(PySize count);
  int (*PyTuple_SetItem)(PyObject* tuple, PySize index, PyObject* stolen);
  PyObject* (*PyTuple_GetItem)(PyObject* tuple, PySize index);
  PySize (*PyTuple_Size)(PyObject* tuple);
  PyObject* (*PyList_New)(PySize count);
  int (*PyList_SetItem)(PyObject* list, PySize index, PyObject* stolen);
  PyObject* (*PyList_GetItem)(PyObject* list, PySize index);
  PySize (*PyList_Size)(PyObject* list);
  int (*PyDict_Next)(PyObject* dict, PySize* position, PyObject** key, PyObject** value);
  PySize (*PyDict_Size)(PyObject* dict);
  double (*PyFloat_AsDouble)(PyObject* number);
  PyObject* (*PyFloat_FromDouble)(double number);
  long long (*PyLong_AsLongLong)(PyObject* number);
  PyObject* (*PyErr_Occurred)();
  void (*PyErr_Clear)();
  void (*PyErr_Fetch)(PyObject** type, PyObject** value, PyObject** traceback);
  void (*PyErr_Restore)(PyObject* type, PyObject* value, PyObject* traceback);  // takes them over
  PyObject* (*PyCapsule_New)(void* pointer, const char* name, void (*end)(PyObject* capsule));
  void* (*PyCapsule_GetPointer)(PyObject* capsule, const char* name);
  PyObject* (*PyCFunction_NewEx)(PyMethod* method, PyObject* self, PyObject* module);
  int (*PyGC_Disable)();  // whether it was on, both
  int (*PyGC_Enable)();
  PyObject* none;
  PyObject *yes, *no;
  PyObject *tupleType, *listType, *dictType, *floatType, *intType, *boolType;

  /// `object`, held once more: what a function returns.
  PyObject* held(PyObject* object) const {
    Py_IncRef(object);
    return object;
  }
  /// Types outlive their objects, which the caller holds.
  const PyObject* typeOf(PyObject* object) const {
    PyObject* const type = PyObject_Type(object);
    Py_DecRef(type);
    return type;
  }

  /// nullptr where the process has no Python, or hides it.
  static const PythonApi* find();
};

/// While alive, the thread has Python's lock.
class WithPython {
 public:
  explicit WithPython(const PythonApi& python)
      : python_(python), state_(python.PyGILState_Ensure()) {}
  ~WithPython() { python_.PyGILState_Release(state_); }
  WithPython(const WithPython&) = delete;
  WithPython& operator=(const WithPython&) = delete;

 private:
  const PythonApi& python_;
  const int state_;
};

/// A new function of Python's, as the address of a reference that the caller owns. `method` outlives it; the
/// thread has Python's lock. Throws c10::Error where Python has no memory.
int64_t newFunction(const PythonApi& python, PyMethod& method, PyObject* self = nullptr);

/// The same with a state: a capsule called `name`, which `end` deletes it from.
template <typename State>
int64_t newFunction(const PythonApi& python, PyMethod& method, std::unique_ptr<State> state,
                    const char* name, void (*end)(PyObject* capsule)) {
  PyObject* const capsule = python.PyCapsule_New(state.get(), name, end);
  TORCH_CHECK(capsule, method.name, ": Python has no memory");
  (void)state.release();
  const auto drop = c10::make_scope_exit([&] { python.Py_DecRef(capsule); });
  return newFunction(python, method, capsule);
}

}  // namespace gravure
