#include "ir/core/cudagraph_ops.h"

#include "ir/core/attributes.h"

#include <array>

namespace gravure {

namespace cg {
const c10::Symbol partition = c10::Symbol::fromQualString("cudagraph::partition");
const c10::Symbol stage = c10::Symbol::fromQualString("cudagraph::stage");
const c10::Symbol launch = c10::Symbol::fromQualString("cudagraph::launch");
const c10::Symbol own = c10::Symbol::fromQualString("cudagraph::own");
const c10::Symbol saveRngState = c10::Symbol::fromQualString("cudagraph::save_rng_state");
const c10::Symbol readHost = c10::Symbol::fromQualString("cudagraph::read_host");
}  // namespace cg

namespace attr {
const c10::Symbol call = c10::Symbol::attr("gravure.call");
const c10::Symbol overload = c10::Symbol::attr("gravure.overload");
const c10::Symbol host = c10::Symbol::attr("host");
const c10::Symbol fate = c10::Symbol::attr("fate");
const c10::Symbol index = c10::Symbol::attr("index");
const c10::Symbol tags = c10::Symbol::attr("tags");
const c10::Symbol arena = c10::Symbol::attr("arena");
const c10::Symbol staging = c10::Symbol::attr("staging");
}  // namespace attr

namespace {

struct KindName {
  OperandKind kind;
  std::string_view name;
};
constexpr std::array<KindName, 4> kKindNames{{{OperandKind::Static, "static"},
                                              {OperandKind::Staged, "staged"},
                                              {OperandKind::RngState, "rng"},
                                              {OperandKind::Guarded, "guarded"}}};

}  // namespace

std::string tagText(const OperandTag& tag) {
  for (const KindName& known : kKindNames) {
    if (known.kind == tag.kind) return std::string(known.name) + ": " + tag.why;
  }
  return tag.why;
}

std::optional<OperandTag> parseTag(std::string_view text) {
  const size_t colon = text.find(": ");
  if (colon == std::string_view::npos) return std::nullopt;
  for (const KindName& known : kKindNames) {
    if (known.name == text.substr(0, colon)) {
      return OperandTag{known.kind, std::string(text.substr(colon + 2))};
    }
  }
  return std::nullopt;
}

std::vector<OperandTag> tagsOf(const Node* node) {
  std::vector<OperandTag> tags;
  for (const std::string& text : stringsAttr(node, attr::tags)) {
    auto tag = parseTag(text);
    TORCH_CHECK(tag, describe(node), ": '", text, "' is no operand tag; expected 'static: …', ",
                "'staged: …', 'rng: …' or 'guarded: …'");
    tags.push_back(std::move(*tag));
  }
  return tags;
}

void setTags(Node* node, const std::vector<OperandTag>& tags) {
  std::vector<std::string> texts;
  texts.reserve(tags.size());
  for (const OperandTag& tag : tags) texts.push_back(tagText(tag));
  node->ss_(attr::tags, std::move(texts));
}

std::optional<HostReason> hostReasonOf(const Node* node) {
  if (!findAttribute(node, attr::host)) return std::nullopt;
  auto reason = reasonFromName(node->s(attr::host));
  TORCH_CHECK(reason, describe(node), ": '", node->s(attr::host), "' is no host reason");
  return reason;
}

void setHostReason(Node* node, HostReason reason) { node->s_(attr::host, reasonName(reason)); }

void clearHostReason(Node* node) { dropAttribute(node, attr::host); }

std::optional<int64_t> fateOf(const Node* node) {
  return findAttribute(node, attr::fate) ? std::optional(node->i(attr::fate)) : std::nullopt;
}

void setFate(Node* node, int64_t fate) { node->i_(attr::fate, fate); }

void clearFate(Node* node) { dropAttribute(node, attr::fate); }

bool isPartition(const Node* node) {
  return node->kind() == cg::partition || node->kind() == cg::launch;
}

int64_t partitionIndex(const Node* node) { return node->i(attr::index); }

bool isEmitted(const Program& program) {
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      const c10::Symbol kind = node->kind();
      if (kind == cg::launch || kind == cg::stage || kind == cg::own) return true;
    }
  }
  return false;
}

std::vector<std::string> stringsAttr(const Node* node, c10::Symbol name) {
  if (!node->hasAttribute(name)) return {};
  // An empty list in a text says nothing of its members' kind.
  return node->kindOf(name) == torch::jit::AttributeKind::ss ? node->ss(name)
                                                             : std::vector<std::string>{};
}

std::vector<int64_t> intsAttr(const Node* node, c10::Symbol name) {
  if (!node->hasAttribute(name)) return {};
  return node->kindOf(name) == torch::jit::AttributeKind::is ? node->is(name)
                                                             : std::vector<int64_t>{};
}

}  // namespace gravure
