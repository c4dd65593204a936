#pragma once
// Random well-formed programs, as text, so that what fails can be read and kept.
//
// The same seed gives the same text everywhere. With the default options every program runs on the
// CPU: shapes are static, types are those that PyTorch returns, nothing divides by zero.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gravure::testing {

/// splitmix64: a small generator whose numbers do not depend on the standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// From 0 up to, not including, `bound`; 0 if that is 0.
  size_t below(size_t bound) { return bound ? next() % bound : 0; }
  bool chance(size_t percent) { return below(100) < percent; }
  template <typename T>
  const T& of(const std::vector<T>& members) {
    return members[below(members.size())];
  }

 private:
  uint64_t state_;
};

struct RandomProgramOptions {
  size_t nodes = 30;         // about so many statements
  bool views = true;         // view, transpose, slice, select, expand, unsqueeze
  bool inPlace = true;       // add_, mul_, copy_ into a buffer, _foreach_add_ without outputs
  bool random = true;        // dropout, rand_like, bernoulli
  bool hostReads = true;     // numbers read from tensors, used by later nodes
  bool symInts = true;       // sizes as int values, in lists too
  bool multiOutputs = true;  // several returns, lists of known length, lists
  bool constants = true;     // None, lists, nan, inf, dtypes, memory formats, devices
  bool places = true;        // source lines and module paths
  bool anonymous = false;    // some values have numbers for names
};

class RandomProgram {
 public:
  RandomProgram(uint64_t seed, const RandomProgramOptions& options)
      : random_(seed), options_(options) {}

  /// One entry `step`: a parameter, a buffer, two inputs; a loss and a few outputs.
  std::string text() {
    addInput("w", {4, 4}, "parameter \"w\"");
    addInput("state", {4, 4}, "buffer \"state\"");
    tensors_.back().writable = true;
    addInput("x", {2 + random_.below(3), 4}, "user_input \"x\"");
    addInput("y", {4, 4}, "user_input \"y\"");
    while (statements_ < options_.nodes) addNodes();
    return finish();
  }

 private:
  struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<int64_t> sizes, strides;
    size_t root = 0;        // the tensor whose storage it shares
    bool writable = false;  // may be written in place
    bool isContiguous() const { return strides == contiguous(sizes); }
    bool isExpanded() const {
      for (int64_t stride : strides) {
        if (stride == 0) return true;
      }
      return false;
    }
  };

  static std::vector<int64_t> contiguous(const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      strides[i] = stride;
      stride *= sizes[i];
    }
    return strides;
  }

  static std::string listText(const std::vector<int64_t>& values) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i) {
      text += (i ? ", " : "") + std::to_string(values[i]);
    }
    return text + "]";
  }

  static std::string typeOf(const Tensor& t) {
    if (t.sizes.empty()) return t.dtype + "(device=cpu)";
    const std::string sizes = listText(t.sizes);
    return t.dtype + "(" + sizes.substr(1, sizes.size() - 2) + ", strides=" + listText(t.strides) +
           ", device=cpu)";
  }

  std::string newName() {
    const size_t number = names_++;
    if (options_.anonymous && random_.chance(40)) return std::to_string(number);
    static const std::vector<std::string> stems{"h", "mm", "act.", "out_", "V"};
    return random_.of(stems) + "v" + std::to_string(number);
  }

  Tensor fresh(std::vector<int64_t> sizes, std::string dtype = "Float") {
    Tensor t;
    t.name = newName();
    t.dtype = std::move(dtype);
    t.strides = contiguous(sizes);
    t.sizes = std::move(sizes);
    t.root = roots_++;
    t.writable = true;
    return t;
  }

  void addInput(const std::string& name, std::vector<size_t> sizes, const std::string& role) {
    Tensor t = fresh({sizes.begin(), sizes.end()});
    t.name = name;
    t.writable = false;
    inputs_ +=
        (inputs_.empty() ? "%" : ",\n           %") + name + " : " + typeOf(t) + " {" + role + "}";
    if (name == "state") stateRoot_ = t.root;
    tensors_.push_back(std::move(t));
  }

  void emit(const std::string& outputs, const std::string& call) {
    body_ += "  " + (outputs.empty() ? "" : outputs + " = ") + call;
    if (options_.places && random_.chance(60)) {
      body_ += " @\"model.py:" + std::to_string(1 + random_.below(90)) + "\"";
      if (random_.chance(70)) body_ += " in \"blocks." + std::to_string(random_.below(4)) + "\"";
    }
    body_ += "\n";
    ++statements_;
  }

  static std::string typed(const Tensor& t) { return "%" + t.name + " : " + typeOf(t); }

  const Tensor& define(Tensor t, const std::string& call) {
    emit(typed(t), call);
    tensors_.push_back(std::move(t));
    return tensors_.back();
  }

  Tensor any() { return random_.of(tensors_); }

  /// A contiguous float tensor; the result of an elementwise operator then is contiguous too.
  Tensor dense() {
    const Tensor t = any();
    if (t.isContiguous()) return t;
    return define(fresh(t.sizes),
                  "aten::clone(%" + t.name + ", memory_format=torch.contiguous_format)");
  }

  /// A contiguous tensor of two dimensions, [n, 4].
  Tensor matrix() {
    for (size_t tries = 0; tries < 8; ++tries) {
      const Tensor t = any();
      if (t.sizes.size() == 2 && t.sizes[1] == 4 && t.isContiguous()) return t;
    }
    return tensors_[random_.below(2)];
  }

  void addNodes() {
    std::vector<void (RandomProgram::*)()> kinds{&RandomProgram::unary, &RandomProgram::binary,
                                                 &RandomProgram::withNumber,
                                                 &RandomProgram::product, &RandomProgram::reduce};
    const auto add = [&](bool wanted, std::initializer_list<void (RandomProgram::*)()> more) {
      if (wanted) kinds.insert(kinds.end(), more);
    };
    add(options_.views, {&RandomProgram::view, &RandomProgram::view});
    add(options_.inPlace, {&RandomProgram::inPlace});
    add(options_.random, {&RandomProgram::draw});
    add(options_.hostReads, {&RandomProgram::hostRead});
    add(options_.symInts, {&RandomProgram::symInt});
    add(options_.multiOutputs, {&RandomProgram::several});
    add(options_.constants, {&RandomProgram::constants});
    (this->*random_.of(kinds))();
  }

  void unary() {
    static const std::vector<std::string> names{"relu", "tanh", "sigmoid", "neg", "abs", "cos"};
    const Tensor t = dense();
    define(fresh(t.sizes), "aten::" + random_.of(names) + "(%" + t.name + ")");
  }

  void binary() {
    static const std::vector<std::string> names{"add", "sub", "mul", "maximum"};
    const Tensor a = dense(), b = dense();
    const Tensor& other = a.sizes == b.sizes ? b : a;
    std::string name = random_.of(names);
    const bool alpha = (name == "add" || name == "sub") && random_.chance(50);
    if (name != "maximum") name += ".Tensor";
    define(fresh(a.sizes),
           "aten::" + name + "(%" + a.name + ", %" + other.name + (alpha ? ", alpha=2)" : ")"));
  }

  std::string number() {
    static const std::vector<std::string> numbers{"0.5", "2", "-1.25", "0.1", "1e-05", "3.", "-1"};
    if (!numbers_.empty() && random_.chance(50)) return "%" + random_.of(numbers_);
    return random_.of(numbers);
  }

  void withNumber() {
    const Tensor t = dense();
    static const std::vector<std::string> names{"mul.Tensor", "add.Scalar", "mul.Scalar",
                                                "sub.Tensor"};
    define(fresh(t.sizes), "aten::" + random_.of(names) + "(%" + t.name + ", " + number() + ")");
  }

  void product() {
    const Tensor a = matrix();
    // Bounded, so that products of products stay finite.
    const Tensor bounded = define(fresh(a.sizes), "aten::tanh(%" + a.name + ")");
    define(fresh(a.sizes), "aten::mm(%" + bounded.name + ", %w)");
  }

  void reduce() {
    const Tensor t = dense();
    if (t.sizes.empty()) return;
    const bool keep = random_.chance(50);
    const size_t dim = random_.below(t.sizes.size());
    std::vector<int64_t> sizes = t.sizes;
    if (keep) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(dim));
    }
    const std::string dims =
        "[" +
        std::to_string(random_.chance(50)
                           ? static_cast<int64_t>(dim)
                           : static_cast<int64_t>(dim) - static_cast<int64_t>(t.sizes.size())) +
        "]";
    define(fresh(sizes), "aten::mean.dim(%" + t.name + ", " + dims + (keep ? ", True)" : ")"));
  }

  void defineView(const Tensor& base, std::vector<int64_t> sizes, std::vector<int64_t> strides,
                  const std::string& call) {
    Tensor t = base;
    t.name = newName();
    t.sizes = std::move(sizes);
    t.strides = std::move(strides);
    define(std::move(t), call);
  }

  void view() {
    const Tensor t = any();
    const std::string self = "(%" + t.name;
    std::vector<int64_t> sizes = t.sizes, strides = t.strides;
    const size_t rank = sizes.size();
    if (rank == 0 || (rank < 3 && random_.chance(25))) {
      // A dimension more in front, spread by expand or not.
      const int64_t stride = rank ? sizes[0] * strides[0] : 1;
      sizes.insert(sizes.begin(), 1);
      strides.insert(strides.begin(), stride);
      defineView(t, sizes, strides, "aten::unsqueeze" + self + ", 0)");
      if (!random_.chance(40)) return;
      const Tensor wide = tensors_.back();
      sizes[0] = 3;
      strides[0] = 0;
      defineView(wide, sizes, strides, "aten::expand(%" + wide.name + ", " + listText(sizes) + ")");
      return;
    }
    const size_t dim = random_.below(rank);
    switch (random_.below(4)) {
      case 0: {
        const size_t other = random_.below(rank);
        std::swap(sizes[dim], sizes[other]);
        std::swap(strides[dim], strides[other]);
        defineView(t, sizes, strides,
                   "aten::transpose.int" + self + ", " + std::to_string(dim) + ", " +
                       std::to_string(other) + ")");
        return;
      }
      case 1: {
        if (sizes[dim] < 2) return;
        sizes[dim] -= 1;
        const bool named = random_.chance(50);
        defineView(t, sizes, strides,
                   "aten::slice.Tensor" + self + ", " + std::to_string(dim) +
                       (named ? ", end=" : ", 0, ") + std::to_string(sizes[dim]) + ")");
        return;
      }
      case 2: {
        const std::string at = std::to_string(random_.below(static_cast<size_t>(sizes[dim])));
        sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(dim));
        strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(dim));
        defineView(t, sizes, strides,
                   "aten::select.int" + self + ", " + std::to_string(dim) + ", " + at + ")");
        return;
      }
      default: {
        if (!t.isContiguous()) return;
        int64_t count = 1;
        for (int64_t size : sizes) count *= size;
        sizes = count % 2 ? std::vector<int64_t>{count} : std::vector<int64_t>{2, count / 2};
        defineView(t, sizes, contiguous(sizes), "aten::view" + self + ", " + listText(sizes) + ")");
      }
    }
  }

  /// A tensor that may be written: not of the caller, unless it is the buffer, and not expanded.
  bool target(Tensor* found) {
    for (size_t tries = 0; tries < 8; ++tries) {
      *found = any();
      if (found->writable && !found->isExpanded()) return true;
    }
    return false;
  }

  void inPlace() {
    Tensor t;
    if (!target(&t)) return;
    if (t.root == stateRoot_) mutated_ = true;
    const std::string self = "(%" + t.name;
    Tensor result = t;
    result.name = newName();
    switch (random_.below(4)) {
      case 0: define(result, "aten::add_.Tensor" + self + ", " + number() + ", alpha=2)"); return;
      case 1: define(result, "aten::tanh_" + self + ")"); return;
      case 2: {
        const Tensor source = dense();
        // copy_ refuses operands that overlap in part.
        if (source.sizes == t.sizes && source.root != t.root) {
          define(result, "aten::copy_" + self + ", %" + source.name + ")");
        } else {
          define(result, "aten::fill_.Scalar" + self + ", " + number() + ")");
        }
        return;
      }
      default: emit("", "aten::_foreach_add_.Scalar([%" + t.name + "], " + number() + ")");
    }
  }

  void draw() {
    const Tensor t = dense();
    const std::string self = "(%" + t.name;
    switch (random_.below(3)) {
      case 0: {
        const Tensor kept = fresh(t.sizes), mask = fresh(t.sizes, "Bool");
        emit(typed(kept) + ", " + typed(mask), "aten::native_dropout" + self + ", 0.25, True)");
        tensors_.push_back(kept);
        masks_.push_back(mask.name);
        return;
      }
      case 1: define(fresh(t.sizes), "aten::rand_like" + self + ")"); return;
      default: define(fresh(t.sizes), "aten::bernoulli.p" + self + ", 0.5)");
    }
  }

  void hostRead() {
    const Tensor t = dense();
    // Bounded: what does not fit an int has no defined value as one.
    const Tensor bounded = define(fresh(t.sizes), "aten::tanh(%" + t.name + ")");
    const Tensor sum = define(fresh({}), "aten::sum(%" + bounded.name + ")");
    const std::string name = newName();
    if (random_.chance(50)) {
      emit("%" + name + " : float", "aten::_local_scalar_dense(%" + sum.name + ")");
    } else {
      const Tensor whole = fresh({}, "Long");
      emit(typed(whole), "aten::_to_copy(%" + sum.name + ", dtype=torch.int64)");
      emit("%" + name + " : int", "aten::_local_scalar_dense(%" + whole.name + ")");
    }
    numbers_.push_back(name);
  }

  void symInt() {
    const Tensor t = dense();
    if (t.sizes.empty()) return;
    const std::string size = newName();
    emit("%" + size + " : int", "aten::sym_size.int(%" + t.name + ", 0)");
    std::vector<int64_t> sizes{t.sizes[0], 1};
    for (size_t i = 1; i < t.sizes.size(); ++i) sizes[1] *= t.sizes[i];
    defineView(t, sizes, contiguous(sizes),
               "aten::view(%" + t.name + ", [%" + size + ", " + std::to_string(sizes[1]) + "])");
    numbers_.push_back(size);
  }

  void several() {
    const Tensor t = matrix();
    const std::string self = "(%" + t.name;
    switch (random_.below(3)) {
      case 0: {
        Tensor left = t, right = t;
        left.name = newName();
        right.name = newName();
        left.sizes[1] = right.sizes[1] = 2;
        emit(typed(left) + ", " + typed(right), "aten::split.Tensor" + self + ", 2, 1)");
        tensors_.push_back(left);
        tensors_.push_back(right);
        return;
      }
      case 1: {
        const Tensor values = fresh({t.sizes[0]}), indices = fresh({t.sizes[0]}, "Long");
        emit(typed(values) + ", " + typed(indices), "aten::max.dim" + self + ", 1)");
        tensors_.push_back(values);
        return;
      }
      default: {
        const Tensor out = fresh(t.sizes), mean = fresh({t.sizes[0], 1}),
                     rstd = fresh({t.sizes[0], 1});
        emit(typed(out) + ", " + typed(mean) + ", " + typed(rstd),
             "aten::native_layer_norm" + self + ", [4], None, None, 1e-05)");
        for (const Tensor& result : {out, mean, rstd}) tensors_.push_back(result);
      }
    }
  }

  void constants() {
    const Tensor t = dense();
    const std::string self = "(%" + t.name;
    switch (random_.below(5)) {
      case 0: define(fresh(t.sizes), "aten::clamp" + self + ", None, 1.5)"); return;
      case 1: {
        const Tensor wild =
            define(fresh({2, 4}),
                   "aten::full([2, 4], " + std::string(random_.chance(50) ? "nan" : "-inf") +
                       ", dtype=torch.float32, device=device(\"cpu\"), pin_memory=False)");
        define(fresh({2, 4}), "aten::nan_to_num(%" + wild.name + ", -0., neginf=-2.)");
        return;
      }
      case 2: {
        if (t.sizes.empty()) return;
        std::vector<int64_t> sizes = t.sizes;
        sizes[0] *= 2;
        define(fresh(sizes), "aten::cat([%" + t.name + ", %" + t.name + "])");
        return;
      }
      case 3: {
        const Tensor m = matrix();
        const Tensor at = fresh({2}, "Long");
        emit(typed(at), "aten::arange.start_step(0, 4, 2, dtype=torch.int64, layout=torch.strided, "
                        "device=device(\"cpu\"))");
        define(fresh({m.sizes[0], 2}),
               "aten::index.Tensor(%" + m.name + ", [None, %" + at.name + "])");
        return;
      }
      default: define(fresh(t.sizes), "aten::clone" + self + ", memory_format=None)");
    }
  }

  std::string finish() {
    const Tensor last = dense();
    const Tensor loss = define(fresh({}), "aten::sum(%" + last.name + ")");
    std::vector<std::string> outputs{"%" + loss.name + " {loss}"};
    for (size_t i = 0; i < 3; ++i) {
      const Tensor& t = any();
      if (t.root < 4) continue;  // the caller's own
      outputs.push_back("%" + t.name + " {output \"out." + std::to_string(i) + "\"}");
    }
    if (!masks_.empty()) outputs.push_back("%" + masks_.back() + " {output \"mask\"}");
    if (mutated_) outputs.push_back("%state {mutation %state}");
    const std::string head = "gravure 1\ngraph step(" + inputs_ + "):\n" + body_;
    const std::string returned = "  return (" + joined(outputs, ", ");
    // As the printer lays it out.
    if (returned.size() < 100) return head + returned + ")\n";
    return head + "  return (" + joined(outputs, ",\n          ") + ")\n";
  }

  static std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
    return text;
  }

  Random random_;
  const RandomProgramOptions options_;
  std::string inputs_, body_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> numbers_, masks_;
  size_t statements_ = 0, names_ = 0, roots_ = 0, stateRoot_ = 0;
  bool mutated_ = false;
};

inline std::string randomProgramText(uint64_t seed, const RandomProgramOptions& options = {}) {
  return RandomProgram(seed, options).text();
}

}  // namespace gravure::testing
