#pragma once
// Unlisted: `torch::jit::toIValue` and `torch::jit::toPyObject`, which make C++ values of Python's objects and
// the other way round. Their header needs Python's, and this library is one for every Python: they are found
// by their symbols, in the library of PyTorch's that the process has loaded.
//
// Without them calls from Python go through torch.classes, which takes longer than a replay does.

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <dlfcn.h>

#include <cstdint>
#include <optional>

struct _object;  // what Python's PyObject is

namespace gravure::torch_private {

/// A reference to an object of Python's, as pybind11's `object`: it is returned like one since it has a
/// destructor. Whoever gets it takes it over.
struct PythonReference {
  _object* object = nullptr;

  PythonReference() = default;
  PythonReference(const PythonReference&) = delete;
  PythonReference& operator=(const PythonReference&) = delete;
  ~PythonReference() {}  // NOLINT(modernize-use-equals-default): not trivial
};

/// All of them are called with Python's lock, and throw what they throw in PyTorch.
struct PythonValues {
  /// pybind11's `handle` is passed as the pointer that it holds.
  c10::IValue (*toValue)(_object* object, const c10::TypePtr& type, std::optional<int32_t> length);
  PythonReference (*toObject)(c10::IValue value);

  /// nullptr where the process has no PyTorch for Python, or one without them.
  static const PythonValues* find() {
    static const PythonValues found = load();
    return found.toValue && found.toObject ? &found : nullptr;
  }

 private:
  static PythonValues load() {
    PythonValues found{};
    void* const library = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!library) return found;
    constexpr const char* kToValue =
        "_ZN5torch3jit8toIValueEN8pybind116handleERKN3c104Type24SingletonOrSharedTypePtrIS4_"
        "EESt8optionalIiE";
    constexpr const char* kToObject = "_ZN5torch3jit10toPyObjectEN3c106IValueE";
    found.toValue = reinterpret_cast<decltype(found.toValue)>(dlsym(library, kToValue));
    found.toObject = reinterpret_cast<decltype(found.toObject)>(dlsym(library, kToObject));
    return found;
  }
};

}  // namespace gravure::torch_private
