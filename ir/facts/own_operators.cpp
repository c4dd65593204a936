// Operators of ours that programs call. python/gravure/torch_api/eager_kernels.py defines them too, for
// tracing: where both are in one process, the first one's definition stands.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace gravure {
namespace {

at::Tensor bernoulliLike(const at::Tensor& like, double p) {
  return at::empty_like(like).bernoulli_(p);
}

/// Never destroyed: a Library takes its operators along.
torch::Library* define() {
  if (c10::Dispatcher::singleton().findSchema({"gravure::bernoulli_like", ""})) return nullptr;
  auto* library =
      new torch::Library(torch::Library::FRAGMENT, "gravure", std::nullopt, __FILE__, __LINE__);
  // Only Python has code for these (compiled_op.h); without it their programs can be read and planned.
  const std::string compiled =
      "(str name, int calls, Tensor[] inputs, int[] numbers=[]) -> Tensor[]";
  library->def(("compiled" + compiled).c_str());
  library->def(("compiled_random" + compiled).c_str(), {at::Tag::nondeterministic_seeded});
  library->def(
      "compiled_donated(str name, int calls, Tensor[] inputs, Tensor(a!)[] donated) -> Tensor[]");
  const std::string communicating =
      "(str name, int calls, Tensor[] inputs, str[] groups, str[] collectives, int[] numbers=[])"
      " -> Tensor[]";
  library->def(("compiled_communicating" + communicating).c_str());
  library->def(("compiled_communicating_random" + communicating).c_str(),
               {at::Tag::nondeterministic_seeded});
  library->def("bernoulli_like(Tensor like, float p) -> Tensor",
               {at::Tag::nondeterministic_seeded});
  library->impl("bernoulli_like",
                torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, bernoulliLike));
  return library;
}

[[maybe_unused]] const torch::Library* const defined = define();

}  // namespace
}  // namespace gravure
