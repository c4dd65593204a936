#include "ir/core/reason.h"

#include <catch2/catch.hpp>
#include <llvm/Support/JSON.h>
#include <torch/csrc/jit/ir/ir.h>

TEST_CASE("libtorch, LLVM's Support and Catch2 link together") {
  torch::jit::Graph graph;
  graph.addInput("x");
  CHECK(graph.inputs().size() == 1);
  llvm::json::Object object{{"key", 1}};
  CHECK(object.getInteger("key") == 1);
}
