#include "runtime/cuda/cuda_trace_numbers.h"

#include <dlfcn.h>

#include <initializer_list>

namespace gravure {
namespace {

using GetGraphExecId = int (*)(cudaGraphExec_t, uint32_t*);  // a CUptiResult, 0 on success

/// CUPTI is not linked: the one is asked that PyTorch has loaded.
GetGraphExecId findGetGraphExecId() {
  for (const char* name : {"libcupti.so.13", "libcupti.so.12"}) {
    void* const library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
    if (!library) continue;
    if (void* const found = dlsym(library, "cuptiGetGraphExecId"))
      return reinterpret_cast<GetGraphExecId>(found);
  }
  return nullptr;
}

}  // namespace

uint32_t traceNumberOf(cudaGraphExec_t graph) {
  static const GetGraphExecId ask = findGetGraphExecId();
  uint32_t number = 0;
  return ask && graph && ask(graph, &number) == 0 ? number : 0;
}

}  // namespace gravure
