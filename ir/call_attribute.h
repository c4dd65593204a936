#pragma once
// The operator and the arguments of a node: one attribute, the first that a node is looked at for.

#include "ir/args.h"
#include "ir/attributes.h"

namespace gravure {

struct OpFacts;

/// To torch::jit a number of no meaning; copied with its node.
struct CallAttribute final : torch::jit::IntAttr {
  CallAttribute();
  Ptr clone() const override { return Ptr(new CallAttribute(*this)); }

  const OpFacts* facts = nullptr;    // of the operator, a cache; nullptr until they are asked for
  c10::intrusive_ptr<ArgList> args;  // null: the inputs in order
};

/// nullptr if neither facts nor arguments were set on `node`.
CallAttribute* findCall(const torch::jit::Node* node);
/// Made if there is none.
CallAttribute& callOf(torch::jit::Node* node);

}  // namespace gravure
