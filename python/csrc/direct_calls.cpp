#include "python/csrc/direct_calls.h"

#include "ir/torch_private/python_values.h"
#include "python/csrc/loaded_program.h"
#include "python/csrc/python_api.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringSwitch.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace gravure {
namespace {

enum class Method : uint8_t {
  Run,
  Tensors,
  Differentiable,
  Step,
  StepTensors,
  Update,
  OnGradients,
  Numbers,
  None
};

/// What a direct call has for report_parked().
struct Parked final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { warnings.push_back(warning); }
  bool any() const { return !warnings.empty() || error; }

  std::vector<c10::Warning> warnings;
  std::exception_ptr error;
  // PyTorch's own exception for one of Python's may leave that where it was raised: as the thread's.
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
};

/// The one that this thread is about to report.
Parked*& parkedOfThread() {
  thread_local Parked* parked = nullptr;
  return parked;
}

/// While alive, the thread has no lock of Python's, and what it warns of is kept.
class WithoutPython {
 public:
  WithoutPython(const PythonApi& python, Parked& parked)
      : python_(python), warnings_(&parked), state_(python.PyEval_SaveThread()) {}
  ~WithoutPython() { python_.PyEval_RestoreThread(state_); }
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  const PythonApi& python_;
  const c10::WarningUtils::WarningHandlerGuard warnings_;
  void* const state_;
};

class Direct {
 public:
  Direct(const PythonApi& python, const torch_private::PythonValues& values, LoadedProgram& program,
         const DirectCall& call, Method method)
      : python_(python), values_(values),
        program_(c10::intrusive_ptr<LoadedProgram>::unsafe_reclaim_from_nonowning(&program)),
        method_(method), entry_(call.entry), slow_(reinterpret_cast<PyObject*>(call.slow)),
        report_(reinterpret_cast<PyObject*>(call.report)) {
    for (const int64_t type : call.tensors) tensors_.push_back(reinterpret_cast<PyObject*>(type));
    forEachObject(python_.Py_IncRef);
  }
  ~Direct() { forEachObject(python_.Py_DecRef); }
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;

  PyObject* call(PyObject* const* arguments, PySize count) {
    const bool step = method_ == Method::Step || method_ == Method::StepTensors;
    const bool two = step || method_ == Method::Update || method_ == Method::OnGradients;
    if (count != (two ? 2 : 1) || torch::jit::tracer::isTracing()) return slow(arguments, count);
    if (method_ == Method::Update) {
      std::vector<double> numbers, counts;
      if (!read(arguments[0], numbers) || !read(arguments[1], counts))
        return slow(arguments, count);
      return run([&] { return program_->runUpdate(entry_, numbers, counts); });
    }
    if (method_ == Method::Numbers) {
      std::vector<double> numbers;
      if (!read(arguments[0], numbers)) return slow(arguments, count);
      return run([&] { return program_->bindNumbers(entry_, numbers); });
    }
    const bool flag = step && arguments[1] == python_.yes;
    if (method_ == Method::Run || method_ == Method::Step) {
      std::vector<c10::IValue> given;
      if (!read(arguments[0], given)) return slow(arguments, count);
      if (step) return run([&] { return program_->runStep(entry_, given, flag); });
      return run([&] { return program_->run(entry_, given); });
    }
    std::vector<at::Tensor> given;
    if (!read(arguments[0], given)) return slow(arguments, count);
    switch (method_) {
      case Method::OnGradients: {
        std::vector<double> numbers;
        if (!read(arguments[1], numbers)) return slow(arguments, count);
        return run([&] { return program_->runOnGradients(entry_, given, numbers); });
      }
      case Method::StepTensors:
        return run([&] { return program_->runStepTensors(entry_, given, flag); });
      case Method::Tensors: return run([&] { return program_->runTensors(entry_, given); });
      default: return run([&] { return program_->runDifferentiable(given); });
    }
  }

 private:
  template <typename Each>
  void forEachObject(Each&& each) {
    each(slow_);
    each(report_);
    for (PyObject* type : tensors_) each(type);
  }

  /// Without Python's lock; its results as a list of Python's. nullptr, and an error is set, where it throws.
  template <typename Body>
  PyObject* run(Body&& body) {
    Parked parked;
    decltype(body()) results;
    {
      const WithoutPython free(python_, parked);
      try {
        results = body();
      } catch (...) {
        parked.error = std::current_exception();
      }
    }
    if (parked.any()) {
      PyObject* const reported = report(parked);
      if (!reported) return nullptr;
      python_.Py_DecRef(reported);
    }
    return listOf(std::move(results));
  }

  /// nullptr, and an error is set, where it had one.
  PyObject* report(Parked& parked) {
    python_.PyErr_Fetch(&parked.type, &parked.value, &parked.traceback);
    parkedOfThread() = &parked;
    PyObject* const reported = python_.PyObject_CallObject(report_, nullptr);
    parkedOfThread() = nullptr;  // where the call did not get as far as to take it
    return reported;
  }

  template <typename Value>
  PyObject* listOf(std::vector<Value> values) {
    PyObject* const list = python_.PyList_New(static_cast<PySize>(values.size()));
    for (size_t i = 0; list && i < values.size(); ++i) {
      PyObject* const object = objectOf(std::move(values[i]));
      if (!object || python_.PyList_SetItem(list, static_cast<PySize>(i), object) != 0) {
        python_.Py_DecRef(list);
        return nullptr;
      }
    }
    return list;
  }

  PyObject* objectOf(c10::IValue value) {
    try {
      return values_.toObject(std::move(value)).object;
    } catch (...) {
      Parked parked;
      parked.error = std::current_exception();
      return report(parked);
    }
  }

  /// False where it is neither a list nor a tuple, or a member is of a kind that torch.classes knows.
  template <typename Value>
  bool read(PyObject* sequence, std::vector<Value>& values) {
    const PyObject* const type = python_.typeOf(sequence);
    const bool list = type == python_.listType;
    if (!list && type != python_.tupleType) return false;
    const PySize count = list ? python_.PyList_Size(sequence) : python_.PyTuple_Size(sequence);
    values.reserve(static_cast<size_t>(count));
    for (PySize i = 0; i < count; ++i) {
      PyObject* const member =
          list ? python_.PyList_GetItem(sequence, i) : python_.PyTuple_GetItem(sequence, i);
      try {
        if (!member || !readOne(member, python_.typeOf(member), values)) return false;
      } catch (const std::exception&) {  // torch.classes says it in its own words
        return false;
      }
    }
    return true;
  }

  bool isPlainTensor(const PyObject* type) const { return llvm::is_contained(tensors_, type); }

  bool readOne(PyObject* member, const PyObject* type, std::vector<at::Tensor>& tensors) {
    if (!isPlainTensor(type)) return false;
    tensors.push_back(tensorOf(member));
    return true;
  }
  bool readOne(PyObject* member, const PyObject* type, std::vector<double>& numbers) {
    if (type != python_.floatType) return false;
    numbers.push_back(python_.PyFloat_AsDouble(member));
    return true;
  }
  bool readOne(PyObject* member, const PyObject* type, std::vector<c10::IValue>& values) {
    if (isPlainTensor(type)) {
      values.emplace_back(tensorOf(member));
    } else if (member == python_.none) {
      values.emplace_back();
    } else if (type == python_.floatType) {
      values.emplace_back(python_.PyFloat_AsDouble(member));
    } else if (type == python_.boolType) {
      values.emplace_back(member == python_.yes);
    } else if (type == python_.intType) {
      const long long number = python_.PyLong_AsLongLong(member);
      if (number == -1 && python_.PyErr_Occurred()) {
        python_.PyErr_Clear();
        return false;
      }
      values.emplace_back(static_cast<int64_t>(number));
    } else {
      return false;
    }
    return true;
  }

  at::Tensor tensorOf(PyObject* object) {
    return values_.toValue(object, c10::TensorType::get(), std::nullopt).toTensor();
  }

  PyObject* slow(PyObject* const* arguments, PySize count) {
    PyObject* const tuple = python_.PyTuple_New(count);
    for (PySize i = 0; tuple && i < count; ++i) {
      python_.Py_IncRef(arguments[i]);
      if (python_.PyTuple_SetItem(tuple, i, arguments[i]) != 0) {
        python_.Py_DecRef(tuple);
        return nullptr;
      }
    }
    if (!tuple) return nullptr;
    PyObject* const result = python_.PyObject_CallObject(slow_, tuple);
    python_.Py_DecRef(tuple);
    return result;
  }

  const PythonApi& python_;
  const torch_private::PythonValues& values_;
  const c10::intrusive_ptr<LoadedProgram> program_;
  const Method method_;
  const std::string entry_;
  PyObject* const slow_;
  PyObject* const report_;
  std::vector<PyObject*> tensors_;
};

constexpr const char* kName = "gravure.direct_call";

Method methodOf(const std::string& name) {
  return llvm::StringSwitch<Method>(name)
      .Case("run", Method::Run)
      .Case("run_tensors", Method::Tensors)
      .Case("run_differentiable", Method::Differentiable)
      .Case("run_step", Method::Step)
      .Case("run_step_tensors", Method::StepTensors)
      .Case("run_update", Method::Update)
      .Case("run_on_gradients", Method::OnGradients)
      .Case("bind_numbers", Method::Numbers)
      .Default(Method::None);
}

PyObject* callDirect(PyObject* self, PyObject* const* arguments, PySize count) {
  auto* const direct = static_cast<Direct*>(PythonApi::find()->PyCapsule_GetPointer(self, kName));
  return direct ? direct->call(arguments, count) : nullptr;
}

void endDirect(PyObject* capsule) {
  delete static_cast<Direct*>(PythonApi::find()->PyCapsule_GetPointer(capsule, kName));
}

}  // namespace

int64_t makeDirectCall(LoadedProgram& program, const DirectCall& call) {
  const PythonApi* const python = PythonApi::find();
  const torch_private::PythonValues* const values = torch_private::PythonValues::find();
  if (!python || !values) return 0;
  const Method method = methodOf(call.method);
  TORCH_CHECK(method != Method::None, "direct_call: there is no method '", call.method, "'");
  const WithPython lock(*python);
  auto direct = std::make_unique<Direct>(*python, *values, program, call, method);
  static PyMethod of = {"direct_call", &callDirect, kFastCall, nullptr};
  return newFunction(*python, of, std::move(direct), kName, &endDirect);
}

void reportParked() {
  Parked* const parked = std::exchange(parkedOfThread(), nullptr);
  if (!parked) return;
  for (const c10::Warning& warning : parked->warnings) c10::warn(warning);
  if (!parked->error) return;
  if (parked->type) {
    const PythonApi& python = *PythonApi::find();
    const WithPython lock(python);
    python.PyErr_Restore(std::exchange(parked->type, nullptr), parked->value, parked->traceback);
  }
  std::rethrow_exception(parked->error);
}

}  // namespace gravure
