#include "python/csrc/same_objects.h"

#include "python/csrc/python_api.h"

namespace gravure {
namespace {

bool sameMembers(const PythonApi& python, PyObject* list, PyObject* noted) {
  const PySize count = python.PyList_Size(list);
  if (count != python.PyList_Size(noted)) return false;
  for (PySize i = 0; i < count; ++i)
    if (python.PyList_GetItem(list, i) != python.PyList_GetItem(noted, i)) return false;
  return true;
}

bool sameItems(const PythonApi& python, PyObject* dict, PyObject* noted) {
  if (2 * python.PyDict_Size(dict) != python.PyList_Size(noted)) return false;
  PySize position = 0, i = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (python.PyDict_Next(dict, &position, &key, &value) != 0) {
    if (python.PyList_GetItem(noted, i) != key || python.PyList_GetItem(noted, i + 1) != value)
      return false;
    i += 2;
  }
  return true;
}

PyObject* sameObjects(PyObject* /*self*/, PyObject* const* arguments, PySize count) {
  const PythonApi& python = *PythonApi::find();
  bool same = false;
  if (count == 2 && python.typeOf(arguments[1]) == python.listType) {
    const PyObject* const type = python.typeOf(arguments[0]);
    if (type == python.listType) same = sameMembers(python, arguments[0], arguments[1]);
    if (type == python.dictType) same = sameItems(python, arguments[0], arguments[1]);
  }
  return python.held(same ? python.yes : python.no);
}

}  // namespace

int64_t makeSameObjects() {
  const PythonApi* const python = PythonApi::find();
  if (!python) return 0;
  const WithPython lock(*python);
  static PyMethod of = {"same_objects", &sameObjects, kFastCall, nullptr};
  return newFunction(*python, of);
}

}  // namespace gravure
