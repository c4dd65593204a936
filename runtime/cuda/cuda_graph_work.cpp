#include "runtime/cuda/cuda_graph_work.h"

#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/device/call_faults.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace gravure {
namespace {

/// libcuda is not linked: a machine without a driver must load this library. Each function by the version
/// of its signature here, whatever the headers call it.
struct GraphDriver {
  CUresult (*errorString)(CUresult, const char**);
  CUresult (*captureInfo)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                          const CUgraphNode**, size_t*);
  CUresult (*nodes)(CUgraph, CUgraphNode*, size_t*);
  CUresult (*type)(CUgraphNode, CUgraphNodeType*);
  CUresult (*kernel)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2*);
  CUresult (*copy)(CUgraphNode, CUDA_MEMCPY3D*);
  CUresult (*fill)(CUgraphNode, CUDA_MEMSET_NODE_PARAMS*);
  CUresult (*setKernel)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2*);
  CUresult (*functionParameter)(CUfunction, size_t, size_t*, size_t*);
  CUresult (*kernelParameter)(CUkernel, size_t, size_t*, size_t*);
  CUresult (*functionName)(const char**, CUfunction);
  CUresult (*kernelName)(const char**, CUkernel);
  CUresult (*pointerAttribute)(void*, CUpointer_attribute, CUdeviceptr);

  static const GraphDriver& get() {
    static const GraphDriver driver = load();
    return driver;
  }

  void check(CUresult result, const char* what) const {
    if (result == CUDA_SUCCESS) return;
    const char* reason = nullptr;
    errorString(result, &reason);
    TORCH_CHECK(false, "CUDA's driver refuses ", what, ": ", reason ? reason : "no reason given");
  }

 private:
  template <typename Function>
  static void find(const char* name, unsigned version, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status);
    TORCH_CHECK(error == cudaSuccess && status == cudaDriverEntryPointSuccess,
                "CUDA's driver has no ", name, "; that of CUDA 12.4 has");
    function = reinterpret_cast<Function>(found);
  }

  static GraphDriver load() {
    GraphDriver driver{};
    constexpr unsigned kOld = 12000, kNew = 12040;
    find("cuGetErrorString", kOld, driver.errorString);
    find("cuStreamGetCaptureInfo", kOld, driver.captureInfo);
    find("cuGraphGetNodes", kOld, driver.nodes);
    find("cuGraphNodeGetType", kOld, driver.type);
    find("cuGraphKernelNodeGetParams", kOld, driver.kernel);
    find("cuGraphMemcpyNodeGetParams", kOld, driver.copy);
    find("cuGraphMemsetNodeGetParams", kOld, driver.fill);
    find("cuGraphExecKernelNodeSetParams", kOld, driver.setKernel);
    find("cuFuncGetParamInfo", kNew, driver.functionParameter);
    find("cuKernelGetParamInfo", kNew, driver.kernelParameter);
    find("cuFuncGetName", kNew, driver.functionName);
    find("cuKernelGetName", kNew, driver.kernelName);
    find("cuPointerGetAttribute", kOld, driver.pointerAttribute);
    return driver;
  }
};

CUDA_KERNEL_NODE_PARAMS_v2 parametersOf(CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS_v2 parameters{};
  passCall("the reading of a kernel's parameters");
  GraphDriver::get().check(GraphDriver::get().kernel(node, &parameters),
                           "to show the parameters of a kernel");
  return parameters;
}

struct ParameterLayout {
  std::vector<size_t> offsets, sizes;
  size_t bytes = 0;
};

/// No parameters where the kernel does not tell.
ParameterLayout layoutOf(const CUDA_KERNEL_NODE_PARAMS_v2& parameters) {
  const GraphDriver& driver = GraphDriver::get();
  ParameterLayout layout;
  if (!parameters.kernelParams) return layout;
  for (size_t i = 0;; ++i) {
    size_t offset = 0, size = 0;
    const CUresult found = parameters.func
                               ? driver.functionParameter(parameters.func, i, &offset, &size)
                               : driver.kernelParameter(parameters.kern, i, &offset, &size);
    if (found != CUDA_SUCCESS) return layout;
    layout.offsets.push_back(offset);
    layout.sizes.push_back(size);
    layout.bytes = std::max(layout.bytes, offset + size);
  }
}

std::string nameOf(const CUDA_KERNEL_NODE_PARAMS_v2& parameters) {
  const GraphDriver& driver = GraphDriver::get();
  const char* name = nullptr;
  const CUresult found = parameters.func ? driver.functionName(&name, parameters.func)
                                         : driver.kernelName(&name, parameters.kern);
  constexpr size_t kMost = 160;  // names of templates have thousands
  return found == CUDA_SUCCESS && name ? std::string(name).substr(0, kMost) : "a kernel";
}

WorkNode readKernel(CUgraphNode node) {
  const CUDA_KERNEL_NODE_PARAMS_v2 parameters = parametersOf(node);
  const ParameterLayout layout = layoutOf(parameters);
  WorkNode work;
  work.function = parameters.func ? static_cast<const void*>(parameters.func)
                                  : static_cast<const void*>(parameters.kern);
  work.shape = {parameters.gridDimX,      parameters.gridDimY,  parameters.gridDimZ,
                parameters.blockDimX,     parameters.blockDimY, parameters.blockDimZ,
                parameters.sharedMemBytes};
  work.name = nameOf(parameters);
  work.readable = work.writable = !layout.offsets.empty();
  work.bytes.resize(layout.bytes);
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    std::memcpy(work.bytes.data() + layout.offsets[i], parameters.kernelParams[i], layout.sizes[i]);
  }
  return work;
}

template <typename Parameters>
void keepBytes(WorkNode& work, const Parameters& parameters) {
  work.bytes.resize(sizeof parameters);
  std::memcpy(work.bytes.data(), &parameters, sizeof parameters);
}

bool isOnDevice(CUdeviceptr address) {
  CUmemorytype type{};
  const CUresult found =
      GraphDriver::get().pointerAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return found == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

WorkNode readCopy(CUgraphNode node) {
  const GraphDriver& driver = GraphDriver::get();
  CUDA_MEMCPY3D parameters;
  std::memset(&parameters, 0, sizeof parameters);
  driver.check(driver.copy(node, &parameters), "to show the parameters of a copy");
  WorkNode work;
  work.name = "a copy";
  work.writable = false;
  const bool addressed = parameters.srcMemoryType == CU_MEMORYTYPE_DEVICE ||
                         parameters.srcMemoryType == CU_MEMORYTYPE_UNIFIED;
  work.readable = addressed && isOnDevice(parameters.srcDevice);
  if (work.readable) keepBytes(work, parameters);
  return work;
}

WorkNode readFill(CUgraphNode node) {
  const GraphDriver& driver = GraphDriver::get();
  CUDA_MEMSET_NODE_PARAMS parameters;
  std::memset(&parameters, 0, sizeof parameters);
  driver.check(driver.fill(node, &parameters), "to show the parameters of a fill");
  WorkNode work;
  work.name = "a fill";
  work.writable = false;
  keepBytes(work, parameters);
  return work;
}

WorkNode readNode(CUgraphNode node) {
  const GraphDriver& driver = GraphDriver::get();
  CUgraphNodeType type{};
  driver.check(driver.type(node, &type), "to show the type of a graph's node");
  WorkNode work;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: work = readKernel(node); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: work = readCopy(node); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: work = readFill(node); break;
    default: work.name = "a node that is no kernel"; work.readable = work.writable = false;
  }
  // Kinds of nodes must not be taken for one another.
  if (!work.function) work.function = reinterpret_cast<const void*>(uintptr_t{1} + type);
  return work;
}

CapturedWork workOf(const std::vector<CUgraphNode>& nodes, const std::vector<size_t>& ends) {
  CapturedWork work;
  work.reserve(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    work.push_back(readNode(nodes[n]));
    const auto call = std::upper_bound(ends.begin(), ends.end(), n);
    work.back().call = call == ends.end() ? -1 : static_cast<int32_t>(call - ends.begin());
  }
  return work;
}

struct CaptureState {
  CUgraph graph = nullptr;
  const CUgraphNode* last = nullptr;
  size_t lasts = 0;

  explicit CaptureState(cudaStream_t stream) {
    const GraphDriver& driver = GraphDriver::get();
    CUstreamCaptureStatus status{};
    cuuint64_t id = 0;
    driver.check(driver.captureInfo(stream, &status, &id, &graph, &last, &lasts),
                 "to show a capture");
    TORCH_CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && graph, "a call broke the capture");
  }
};

}  // namespace

std::string whyNoGraphWork() {
  try {
    (void)GraphDriver::get();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

size_t nodesInCapture(cudaStream_t stream) {
  const GraphDriver& driver = GraphDriver::get();
  size_t count = 0;
  driver.check(driver.nodes(CaptureState(stream).graph, nullptr, &count),
               "to count the nodes of a graph");
  return count;
}

llvm::SmallVector<cudaGraphNode_t, 1> lastNodesInCapture(cudaStream_t stream) {
  const CaptureState state(stream);
  return {state.last, state.last + state.lasts};
}

std::vector<cudaGraphNode_t> nodesOf(cudaGraph_t graph) {
  const GraphDriver& driver = GraphDriver::get();
  size_t count = 0;
  driver.check(driver.nodes(graph, nullptr, &count), "to count the nodes of a graph");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) {
    driver.check(driver.nodes(graph, nodes.data(), &count), "to list the nodes of a graph");
  }
  return nodes;
}

WritableGraph::WritableGraph(cudaGraph_t graph, const std::vector<size_t>& ends) : graph_(graph) {
  try {
    passCall("the reading of a graph's nodes");
    const std::vector<CUgraphNode> nodes = nodesOf(graph);
    work_ = workOf(nodes, ends);
    kernels_.resize(nodes.size());
    for (size_t n = 0; n < nodes.size(); ++n) {
      if (!work_[n].writable) continue;
      kernels_[n].node = nodes[n];
      kernels_[n].parameters = parametersOf(nodes[n]);
      kernels_[n].offsets = layoutOf(kernels_[n].parameters).offsets;
    }
  } catch (...) {
    (void)cudaGraphDestroy(graph);
    throw;
  }
}

WritableGraph::~WritableGraph() {
  const UnseenByCaptures unseen;
  warnAtEnd("the end of a graph's nodes", cudaGraphDestroy(graph_));
}

void WritableGraph::write(cudaGraphExec_t executable, size_t node, const uint8_t* bytes) {
  const Kernel& kernel = kernels_.at(node);
  TORCH_INTERNAL_ASSERT(kernel.node, "what is written is no kernel");
  passCall("the writing of a kernel's parameters");
  constexpr size_t kFew = 64;
  void* few[kFew];
  std::vector<void*> many;
  void** at = few;
  if (kernel.offsets.size() > kFew) {
    many.resize(kernel.offsets.size());
    at = many.data();
  }
  // The driver reads them alone.
  auto* const begin = const_cast<uint8_t*>(bytes);
  for (size_t i = 0; i < kernel.offsets.size(); ++i) at[i] = begin + kernel.offsets[i];
  CUDA_KERNEL_NODE_PARAMS_v2 parameters = kernel.parameters;
  parameters.kernelParams = at;
  parameters.extra = nullptr;
  const GraphDriver& driver = GraphDriver::get();
  driver.check(driver.setKernel(executable, kernel.node, &parameters),
               "to write the parameters of a captured kernel");
}

__attribute__((noinline)) void paintStack(uint8_t value) {
  constexpr size_t kBytes = 96 * 1024;
  volatile uint8_t area[kBytes];
  std::memset(const_cast<uint8_t*>(area), value, kBytes);
  __asm__ volatile("" : : "r"(area) : "memory");
}

PaintedHeap::PaintedHeap(uint8_t value) {
  constexpr size_t kLeast = 32, kMost = 4096, kStep = 48, kEach = 6;
  const size_t hold = value % kEach;
  std::vector<void*> free;
  for (size_t bytes = kLeast; bytes < kMost; bytes += kStep) {
    for (size_t i = 0; i < kEach; ++i) {
      void* const block = std::malloc(bytes);
      if (!block) continue;
      std::memset(block, value, bytes);
      __asm__ volatile("" : : "r"(block) : "memory");
      (i < hold ? held_ : free).push_back(block);
    }
  }
  for (void* const block : free) std::free(block);
}

PaintedHeap::~PaintedHeap() {
  for (void* const block : held_) std::free(block);
}

}  // namespace gravure
