#include "tools/gravure/bench/bench_shapes.h"

#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

constexpr const char* kMatrix = "Float(64, 64, strides=[64, 1], device=cuda:0)";
constexpr const char* kTransposed = "Float(64, 64, strides=[1, 64], device=cuda:0)";
constexpr const char* kScalar = "Float(device=cuda:0)";
constexpr int64_t kLanes = 8;

/// Writes one program: inputs first, then statements; names come back for later use.
class Writer {
 public:
  Writer() : os_(text_) { os_ << "gravure 1\ngraph step("; }

  std::string input(const std::string& name, const char* role, const char* type = kMatrix) {
    os_ << (inputs_++ ? ",\n  " : "") << '%' << name << " : " << type << " {" << role << " \""
        << name << "\"}";
    return "%" + name;
  }
  void begin() { os_ << "):\n"; }
  std::string node(const std::string& call, const char* type = kMatrix) {
    const std::string name = "%v" + std::to_string(nodes_++);
    os_ << "  " << name << " : " << type << " = " << call << " @\"model.py:" << nodes_ % 500
        << "\" in \"blocks." << nodes_ % 32 << "\"\n";
    return name;
  }
  std::string end(const std::string& result) {
    os_ << "  return (" << result << " {loss})\n";
    return std::move(os_.str());
  }
  int64_t nodes() const { return nodes_; }

 private:
  std::string text_;
  llvm::raw_string_ostream os_;
  int64_t inputs_ = 0;
  int64_t nodes_ = 0;
};

std::string binary(const char* op, const std::string& a, const std::string& b) {
  return std::string(op) + "(" + a + ", " + b + ")";
}

std::string unary(const char* op, const std::string& a) { return std::string(op) + "(" + a + ")"; }

std::string chain(int64_t nodes) {
  Writer w;
  const std::string weight = w.input("w", "parameter");
  std::string x = w.input("x", "user_input");
  w.begin();
  while (w.nodes() < nodes - 1) {
    x = w.nodes() % 2 ? w.node(unary("aten::relu", x)) : w.node(binary("aten::mm", x, weight));
  }
  return w.end(w.node(unary("aten::sum", x), kScalar));
}

std::string wide(int64_t nodes) {
  Writer w;
  const std::string weight = w.input("w", "parameter"), x = w.input("x", "user_input");
  w.begin();
  std::vector<std::string> level;
  while (w.nodes() < nodes / 2) level.push_back(w.node(binary("aten::mm", x, weight)));
  while (level.size() > 1) {
    std::vector<std::string> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      next.push_back(w.node(binary("aten::add.Tensor", level[i], level[i + 1])));
    }
    if (level.size() % 2) next.push_back(level.back());
    level = std::move(next);
  }
  return w.end(w.node(unary("aten::sum", level.at(0)), kScalar));
}

/// Views of views of one storage, which every 16th node writes through the last of them.
std::string views(int64_t nodes) {
  Writer w;
  const std::string x = w.input("x", "user_input");
  w.begin();
  std::string base = w.node(unary("aten::relu", x)), view = base;
  bool flipped = false;
  while (w.nodes() < nodes - 1) {
    if (w.nodes() % 16 == 15) {
      w.node("aten::mul_.Scalar(" + view + ", 0.5)", flipped ? kTransposed : kMatrix);
    } else {
      flipped = !flipped;
      view = w.node(unary("aten::t", view), flipped ? kTransposed : kMatrix);
    }
  }
  return w.end(w.node(unary("aten::sum", view), kScalar));
}

/// What is made first is read last, as activations are by a backward.
std::string nested(int64_t nodes) {
  Writer w;
  std::string x = w.input("x", "user_input");
  w.begin();
  std::vector<std::string> kept;
  while (w.nodes() < nodes / 2) kept.push_back(x = w.node(unary("aten::tanh", x)));
  for (size_t i = kept.size(); i-- > 0 && w.nodes() < nodes - 1;) {
    x = w.node(binary("aten::mul.Tensor", x, kept[i]));
  }
  return w.end(w.node(unary("aten::sum", x), kScalar));
}

std::string constants(int64_t nodes) {
  Writer w;
  const int64_t count = std::max<int64_t>(1, nodes / 100);
  std::vector<std::string> shared;
  for (int64_t i = 0; i < count; ++i) {
    shared.push_back(w.input("c" + std::to_string(i), "constant"));
  }
  std::string x = w.input("x", "user_input");
  w.begin();
  while (w.nodes() < nodes - 1) {
    const std::string& constant = shared[(w.nodes() * 7919) % count];
    x = w.node("aten::add.Tensor(" + x + ", " + constant + ", alpha=2)");
  }
  return w.end(w.node(unary("aten::sum", x), kScalar));
}

/// Every fourth node of each lane reads a number on the host, and the next one uses it.
std::string host(int64_t nodes) {
  Writer w;
  const std::string x = w.input("x", "user_input");
  w.begin();
  std::vector<std::string> lanes(kLanes, x);
  while (w.nodes() < nodes - 2 * kLanes - 4) {
    for (std::string& lane : lanes) {
      const std::string total = w.node(unary("aten::sum", lane), kScalar);
      const std::string number = w.node(unary("aten::_local_scalar_dense", total), "float");
      lane = w.node(binary("aten::mul.Scalar", lane, number));
      lane = w.node(unary("aten::relu", lane));
    }
  }
  std::string sum = lanes[0];
  for (int64_t i = 1; i < kLanes; ++i) sum = w.node(binary("aten::add.Tensor", sum, lanes[i]));
  return w.end(w.node(unary("aten::sum", sum), kScalar));
}

}  // namespace

const std::vector<BenchShape>& benchShapes() {
  static const std::vector<BenchShape> shapes{
      {"chain", "one long chain", chain},
      {"wide", "half of the nodes independent, then a tree", wide},
      {"views", "views of views of one storage, with writes", views},
      {"nested", "made first, read last", nested},
      {"constants", "a hundredth as many shared constants as nodes", constants},
      {"host", "eight lanes in which host reads alternate with work", host},
  };
  return shapes;
}

}  // namespace gravure::tool
