#pragma once
// The operator and the arguments of a node: one attribute, the first that a node is looked at for.

#include "ir/core/args.h"
#include "ir/core/attributes.h"

namespace gravure {

struct OpFacts;  // ir/facts/op_facts.h

/// To torch::jit a number of no meaning; copied with its node.
struct CallAttribute final : torch::jit::IntAttr {
  CallAttribute();
  Ptr clone() const override { return Ptr(new CallAttribute(*this)); }

  // A cache of keepFacts(), null until then: the operator's facts, and its schema if it has one.
  const OpFacts* facts = nullptr;
  const c10::FunctionSchema* schema = nullptr;
  c10::intrusive_ptr<ArgList> args;  // null: the inputs in order
};

/// nullptr if neither facts nor arguments were set on `node`.
CallAttribute* findCall(const torch::jit::Node* node);
/// Made if there is none.
CallAttribute& callOf(torch::jit::Node* node);

}  // namespace gravure
