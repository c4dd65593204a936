#include "python/csrc/autograd/autograd_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>

namespace gravure {

namespace {

std::vector<int64_t> listNamed(const AutogradPlan::Lists& lists, const char* name) {
  TORCH_CHECK(lists.contains(name), "set_autograd: no list \"", name, "\"");
  return lists.at(name).vec();
}

void checkRange(const std::vector<int64_t>& numbers, int64_t least, size_t end, const char* name) {
  for (int64_t number : numbers) {
    const bool fits = number >= least && number < static_cast<int64_t>(end);
    TORCH_CHECK(fits, "set_autograd: ", number, " in \"", name, "\" is not from ", least,
                " to below ", end);
  }
}

void checkSize(const std::vector<int64_t>& numbers, size_t size, const char* name) {
  TORCH_CHECK(numbers.size() == size, "set_autograd: ", numbers.size(), " numbers in \"", name,
              "\", where ", size, " were expected");
}

constexpr int64_t kAbsent = -1, kAsTraced = -2;

}  // namespace

std::vector<TangentForm> TangentForm::parse(const std::vector<int64_t>& numbers) {
  std::vector<TangentForm> forms;
  for (size_t i = 0; i < numbers.size();) {
    const int64_t number = numbers[i++];
    if (number < 0) {
      TORCH_CHECK(number >= kAsTraced, "set_autograd: ", number, " in \"forms\" is no form");
      forms.push_back({number == kAbsent ? Kind::Absent : Kind::AsTraced, {}});
      continue;
    }
    TORCH_CHECK(number <= static_cast<int64_t>(numbers.size() - i), "set_autograd: ", number,
                " strides in \"forms\", of which it has ", numbers.size() - i);
    const auto begin = numbers.begin() + static_cast<int64_t>(i);
    forms.push_back({Kind::Strided, {begin, begin + number}});
    i += static_cast<size_t>(number);
  }
  return forms;
}

void TangentForm::append(std::vector<int64_t>& numbers) const {
  if (kind != Kind::Strided) {
    numbers.push_back(kind == Kind::Absent ? kAbsent : kAsTraced);
    return;
  }
  numbers.push_back(static_cast<int64_t>(strides.size()));
  numbers.insert(numbers.end(), strides.begin(), strides.end());
}

bool TangentForm::fits(const at::Tensor& tangent) const {
  if (kind == Kind::Absent) return !tangent.defined();
  if (kind == Kind::AsTraced) return true;  // or is brought there
  if (!tangent.defined() || tangent.dim() != static_cast<int64_t>(strides.size())) return false;
  for (size_t d = 0; d < strides.size(); ++d) {
    const auto at = static_cast<int64_t>(d);
    if (tangent.size(at) != 1 && tangent.stride(at) != strides[d]) return false;
  }
  return true;
}

AutogradPlan AutogradPlan::parse(const Lists& lists, const Entry& forward, const Entry& backward) {
  AutogradPlan plan;
  plan.outputs = listNamed(lists, "outputs");
  plan.differentiable = listNamed(lists, "differentiable");
  plan.saved = listNamed(lists, "saved");
  plan.savedTo = listNamed(lists, "saved_to");
  plan.tangentTo = listNamed(lists, "tangent_to");
  plan.tangentFormats = listNamed(lists, "tangent_formats");
  plan.edges = listNamed(lists, "edges");
  plan.frozen = listNamed(lists, "frozen");
  plan.gradients = listNamed(lists, "gradients");
  plan.forms = TangentForm::parse(listNamed(lists, "forms"));
  plan.needs = listNamed(lists, "needs");
  plan.through = listNamed(lists, "through");
  const std::vector<int64_t> modes = listNamed(lists, "modes");
  checkSize(modes, 3, "modes");
  const std::vector<int64_t> number = listNamed(lists, "number");
  checkSize(number, 1, "number");
  plan.number = number[0];
  const std::vector<int64_t> graph = listNamed(lists, "graph");
  checkSize(graph, 1, "graph");
  plan.graph = graph[0];
  plan.wasNondeterministic = modes[0] != 0;
  plan.savesDependent = modes[1] != 0;
  plan.inAutocast = modes[2] != 0;

  const auto tangents = static_cast<size_t>(
      std::count(plan.differentiable.begin(), plan.differentiable.end(), int64_t{1}));
  checkSize(plan.differentiable, plan.outputs.size(), "differentiable");
  checkSize(plan.savedTo, plan.saved.size(), "saved_to");
  checkSize(plan.tangentTo, tangents, "tangent_to");
  TORCH_CHECK(plan.forms.size() == tangents, "set_autograd: ", plan.forms.size(),
              " gradients in \"forms\", where ", tangents, " were expected");
  if (!plan.through.empty()) checkSize(plan.through, plan.outputs.size(), "through");
  checkSize(plan.tangentFormats, tangents, "tangent_formats");
  checkSize(plan.gradients, plan.edges.size(), "gradients");
  checkSize(plan.needs, plan.edges.size(), "needs");
  checkRange(plan.outputs, 0, forward.outputs.size(), "outputs");
  checkRange(plan.saved, 0, forward.outputs.size(), "saved");
  checkRange(plan.edges, 0, forward.inputs.size(), "edges");
  checkRange(plan.frozen, 0, forward.inputs.size(), "frozen");
  checkRange(plan.savedTo, -1, backward.inputs.size(), "saved_to");
  checkRange(plan.tangentTo, -1, backward.inputs.size(), "tangent_to");
  checkRange(plan.gradients, -1, backward.outputs.size(), "gradients");
  for (const int64_t to : plan.savedTo)
    plan.ofCaller.push_back(to >= 0 && backward.inputs[to].role != InputRole::Saved);
  std::map<int64_t, size_t> first;  // edge of each input
  std::set<size_t> shared;
  for (size_t i = 0; i < plan.edges.size(); ++i) {
    const auto [found, isNew] = first.try_emplace(plan.edges[i], i);
    if (!isNew) shared.insert(found->second);
    plan.sums = plan.sums || plan.gradients[i] < 0;
  }
  plan.shared.assign(shared.begin(), shared.end());
  return plan;
}

}  // namespace gravure
