#pragma once
// Random programs of what passes move, join and place: pieces, collectives, branches, draws, host reads,
// copies to the host, writes through views, sums of placed gradients; one entry, or forward and backward.
//
// Text, so that what fails can be read and kept. All that a program needs of its inputs it computes
// itself, so any values do: ints are 0 or 1. Tensors have 8 rows of 16 floats (a row is what pieces must
// be multiples of), and what is computed on pieces rounds once, so that it has one right result.

#include "tests/property/random_program.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gravure::testing {

class ProofProgram {
 public:
  explicit ProofProgram(uint64_t seed) : random_(seed) {
    device_ = random_.chance(50) ? "cpu" : "cuda:0";
    const std::vector<Kind> all = {&ProofProgram::pieces,    &ProofProgram::collective,
                                   &ProofProgram::branch,    &ProofProgram::draw,
                                   &ProofProgram::hostReads, &ProofProgram::inPlace,
                                   &ProofProgram::gradients, &ProofProgram::hostCopy,
                                   &ProofProgram::effect,    &ProofProgram::view};
    // A few kinds a program, so that they meet.
    for (size_t i = 1 + random_.below(4); i-- > 0;) kinds_.push_back(random_.of(all));
    kinds_.push_back(&ProofProgram::pointwise);
  }

  std::string text() {
    if (random_.chance(50)) {
      entry("step", 4 + random_.below(24), {}, false);
      return "gravure 1\n" + text_;
    }
    const std::vector<Saved> saved = entry("forward", 3 + random_.below(16), {}, true);
    entry("backward", 2 + random_.below(12), saved, false);
    return "gravure 1\n" + text_;
  }

 private:
  using Kind = void (ProofProgram::*)();
  struct Mat {
    std::string name;
    size_t root = 0;
    bool writable = true;
  };
  struct Saved {
    std::string name, type;
    size_t root = 0;  // of a tensor of 8 rows
    bool isMat = false, isPiece = false;
  };
  struct Piece {
    std::string name;
    size_t root = 0;
  };
  struct Open {
    std::string name, type;
    std::string op;
    std::vector<size_t> frozen, hidden;
  };

  std::string floats(const std::string& rows) const {
    return "Float(" + rows + ", 16, strides=[16, 1], device=" + device_ + ")";
  }
  std::string mat() const { return floats("8"); }
  std::string piece() const { return floats("*"); }
  std::string number(const std::string& dtype = "Float") const {
    return dtype + "(device=" + device_ + ")";
  }
  std::string row(int n, const std::string& dtype = "Float") const {
    return dtype + "(" + std::to_string(n) + ", strides=[1], device=" + device_ + ")";
  }

  std::string newName(const std::string& stem) { return stem + std::to_string(names_++); }
  void line(const std::string& text) { body_ += std::string(indent_, ' ') + text + "\n"; }
  /// One statement with one result.
  std::string say(const std::string& stem, const std::string& type, const std::string& call) {
    const std::string name = newName(stem);
    line("%" + name + " : " + type + " = " + call);
    return name;
  }
  size_t newRoot() { return roots_++; }

  bool isFrozen(size_t root) const {
    return std::any_of(open_.begin(), open_.end(), [&](const Open& open) {
      return std::count(open.frozen.begin(), open.frozen.end(), root) > 0;
    });
  }
  bool isHidden(size_t root) const {
    return std::any_of(open_.begin(), open_.end(), [&](const Open& open) {
      return std::count(open.hidden.begin(), open.hidden.end(), root) > 0;
    });
  }
  Mat any() {
    for (int tries = 0; tries < 20; ++tries) {
      const size_t reach = random_.chance(60) ? std::min<size_t>(mats_.size(), 4) : mats_.size();
      const Mat& found = mats_[mats_.size() - 1 - random_.below(reach)];
      if (!isHidden(found.root)) return found;
    }
    for (const Mat& found : mats_) {
      if (!isHidden(found.root)) return found;
    }
    return mats_.front();
  }
  const Mat* target() {
    for (int tries = 0; tries < 8; ++tries) {
      const Mat& found = mats_[random_.below(mats_.size())];
      if (found.writable && !isHidden(found.root) && !isFrozen(found.root)) {
        if (inputRoots_.count(found.root)) mutated_.insert(found.root);
        return &found;
      }
    }
    return nullptr;
  }
  const Mat& fresh(const std::string& call, const std::string& stem = "x") {
    const std::string name = say(stem, mat(), call);
    mats_.push_back({name, newRoot(), true});
    return mats_.back();
  }

  void pointwise() {
    const std::string a = "%" + any().name, b = "%" + any().name;
    switch (random_.below(7)) {
      case 0: fresh("aten::neg(" + a + ")"); return;
      case 1: fresh("aten::relu(" + a + ")"); return;
      case 2: fresh("aten::add.Tensor(" + a + ", " + b + ")"); return;
      case 3: fresh("aten::sub.Tensor(" + a + ", " + b + ")"); return;
      case 4: fresh("aten::mul.Tensor(" + a + ", " + b + ")"); return;
      case 5: fresh("aten::tanh(" + a + ")"); return;
      default: {
        const std::string product = fresh("aten::mm(" + a + ", %w)").name;
        fresh("aten::tanh(%" + product + ")");
      }
    }
  }

  void view() {
    const Mat base = any();
    const std::string name = random_.chance(50)
                                 ? say("v", mat(), "aten::view(%" + base.name + ", [8, 16])")
                                 : say("v", mat(), "aten::alias(%" + base.name + ")");
    mats_.push_back({name, base.root, base.writable});
  }

  void inPlace() {
    const Mat* found = target();
    if (!found) return;
    const Mat to = *found;
    const std::string self = "(%" + to.name, other = ", %" + any().name;
    switch (random_.below(4)) {
      case 0:
        mats_.push_back({say("u", mat(), "aten::add_.Tensor" + self + other + ")"), to.root, true});
        return;
      case 1: mats_.push_back({say("u", mat(), "aten::tanh_" + self + ")"), to.root, true}); return;
      case 2: {
        const std::string part = say("v", floats("4"), "aten::slice.Tensor" + self + ", 0, 2, 6)");
        line("%" + newName("u") + " : " + floats("4") + " = aten::mul_.Scalar(%" + part +
             ", -0.5)");
        return;
      }
      default: {
        const std::string source = fresh("aten::neg(" + other.substr(2) + ")").name;
        mats_.push_back(
            {say("u", mat(), "aten::copy_" + self + ", %" + source + ")"), to.root, true});
      }
    }
  }

  std::string rng() {
    if (states_.empty() || random_.chance(30)) return "";
    return " rng(%" + random_.of(states_) + ")";
  }

  void draw() {
    const std::string self = "(%" + any().name;
    switch (random_.below(3)) {
      case 0: fresh("aten::bernoulli.p" + self + ", 0.5)" + rng(), "d"); return;
      case 1: fresh("aten::rand_like" + self + ")" + rng(), "d"); return;
      default: {
        const std::string kept = newName("d"), mask = newName("m");
        line("%" + kept + " : " + mat() + ", %" + mask + " : Bool(8, 16, strides=[16, 1], device=" +
             device_ + ") = aten::native_dropout" + self + ", 0.25, True)" + rng());
        mats_.push_back({kept, newRoot(), true});
      }
    }
  }

  /// The first numbers of a row of `base`, and a write to it among their reads now and then.
  void hostReads() {
    const Mat base = any();
    const std::string first = say("r", row(16), "aten::select.int(%" + base.name + ", 0, 1)");
    const std::string few = say("r", row(3), "aten::slice.Tensor(%" + first + ", 0, 0, 3)");
    for (int i = 0; i < 3; ++i) {
      if (random_.chance(25) && base.writable && !isFrozen(base.root)) {
        if (inputRoots_.count(base.root)) mutated_.insert(base.root);
        line("%" + newName("u") + " : " + mat() + " = aten::add_.Tensor(%" + base.name + ", %" +
             any().name + ")");
      }
      const std::string one =
          say("e", number(), "aten::select.int(%" + few + ", 0, " + std::to_string(i) + ")");
      numbers_.push_back(say("n", "float", "aten::_local_scalar_dense(%" + one + ")"));
      if (random_.chance(40))
        fresh("aten::mul.Scalar(%" + any().name + ", %" + numbers_.back() + ")");
    }
    fresh("aten::add.Scalar(%" + any().name + ", %" + random_.of(numbers_) + ")");
  }

  /// A copy to the CPU that another one waits for.
  void hostCopy() {
    if (device_ == "cpu") return hostReads();
    const auto few = [&] {
      const std::string first = say("r", row(16), "aten::select.int(%" + any().name + ", 0, 1)");
      return say("r", row(2), "aten::slice.Tensor(%" + first + ", 0, 0, 2)");
    };
    const std::string type = "Float(2, strides=[1], device=cpu)";
    const std::string a = few(), b = few();
    const std::string early =
        say("h", type, "aten::_to_copy(%" + a + ", device=device(\"cpu\"), non_blocking=True)");
    const std::string late = say("h", type, "aten::_to_copy(%" + b + ", device=device(\"cpu\"))");
    for (const std::string& copy : {early, late}) {
      const std::string one =
          say("e", "Float(device=cpu)", "aten::select.int(%" + copy + ", 0, 1)");
      numbers_.push_back(say("n", "float", "aten::_local_scalar_dense(%" + one + ")"));
      fresh("aten::mul.Scalar(%" + any().name + ", %" + numbers_.back() + ")");
    }
  }

  void effect() {
    std::vector<std::string> truths;
    for (int i = 0; i < 2; ++i) {
      const std::string sum = say("s", number(), "aten::sum(%" + any().name + ")");
      const std::string size = say("t", number(), "aten::abs(%" + sum + ")");
      truths.push_back(say("t", number(), "aten::add.Scalar(%" + size + ", 1.)"));
    }
    for (const std::string& truth : truths) line("aten::_assert_async(%" + truth + ")");
  }

  void branch() {
    if (indent_ > 2) return pointwise();
    const std::string sum = say("s", number(), "aten::sum(%" + any().name + ")");
    const std::string read = say("n", "float", "aten::_local_scalar_dense(%" + sum + ")");
    const std::string yes = say("b", "bool", "aten::gt.float(%" + read + ", 0.)");
    const std::string name = newName("x");
    line("%" + name + " : " + mat() + " = prim::If(%" + yes + ")");
    const size_t mats = mats_.size(), numbers = numbers_.size();
    indent_ += 4;
    for (int side = 0; side < 2; ++side) {
      body_ += "    block" + std::to_string(side) + "():\n";
      for (size_t i = random_.below(3); i-- > 0;) {
        random_.chance(50) ? pointwise() : random_.chance(50) ? draw() : inPlace();
      }
      const std::string result = fresh("aten::neg(%" + any().name + ")").name;
      line("-> (%" + result + ")");
      mats_.resize(mats);
      numbers_.resize(numbers);
    }
    indent_ -= 4;
    mats_.push_back({name, newRoot(), true});
  }

  /// Sums of gradients that are zero but for one part.
  void gradients() {
    const std::string whole = "Float(3, 8, 16, strides=[128, 16, 1], device=" + device_ + ")";
    const bool slices = random_.chance(50);
    std::string sum;
    for (int part = 0; part < (slices ? 2 : 3); ++part) {
      std::string placed;
      if (slices) {
        const std::string from = std::to_string(4 * part), to = std::to_string(4 * part + 4);
        const std::string half =
            say("v", floats("4"), "aten::slice.Tensor(%" + any().name + ", 0, 2, 6)");
        const std::string given = say("x", floats("4"), "aten::neg(%" + half + ")");
        placed =
            say("z", mat(),
                "aten::slice_backward(%" + given + ", [8, 16], 0, " + from + ", " + to + ", 1)");
      } else {
        placed = say("z", whole,
                     "aten::select_backward(%" + any().name + ", [3, 8, 16], 0, " +
                         std::to_string(part) + ")");
      }
      sum = part == 0 ? placed
                      : say("z", slices ? mat() : whole,
                            "aten::add.Tensor(%" + sum + ", %" + placed + ")");
    }
    if (slices) {
      mats_.push_back({sum, newRoot(), true});
    } else {
      mats_.push_back(
          {say("v", mat(),
               "aten::select.int(%" + sum + ", 0, " + std::to_string(random_.below(3)) + ")"),
           newRoot(), false});
      fresh("aten::mean.dim(%" + sum + ", [0])");
    }
  }

  void waitFor(size_t at) {
    const Open open = open_[at];
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
    const std::string done =
        say("c", open.type, "_c10d_functional::wait_tensor(%" + open.name + ")");
    if (open.op == "all_reduce_") {
      mats_.push_back({done, open.hidden.front(), true});
    } else if (open.op == "all_gather_into_tensor") {
      mats_.push_back(
          {say("v", mat(), "aten::slice.Tensor(%" + done + ", 0, 4, 12)"), newRoot(), true});
    } else if (open.op == "reduce_scatter_tensor") {
      fresh("aten::cat([%" + done + ", %" + done + "])");
    } else {
      mats_.push_back({done, newRoot(), true});
    }
  }

  void collective() {
    if (indent_ > 2) return pointwise();
    if (!open_.empty() && random_.chance(40)) return waitFor(random_.below(open_.size()));
    const std::vector<std::string> ops{"all_reduce", "all_reduce", "all_gather_into_tensor",
                                       "reduce_scatter_tensor", "all_reduce_"};
    Open open;
    open.op = random_.of(ops);
    Mat operand = any();
    if (isFrozen(operand.root)) operand = fresh("aten::neg(%" + operand.name + ")");
    std::string call = "_c10d_functional::" + open.op + "(%";
    open.type = mat();
    if (open.op == "all_reduce_") {
      operand = fresh("aten::neg(%" + operand.name + ")");
      if (random_.chance(50)) {
        mats_.push_back(
            {say("v", mat(), "aten::alias(%" + operand.name + ")"), operand.root, true});
      }
      open.hidden = {operand.root};
    } else {
      open.frozen = {operand.root};
    }
    call += operand.name;
    if (open.op == "all_gather_into_tensor") {
      open.type = floats("16");
      call += ", 2, \"g\")";
    } else if (open.op == "reduce_scatter_tensor") {
      open.type = floats("4");
      call += ", \"sum\", 2, \"g\")";
    } else {
      call += ", \"sum\", \"g\")";
    }
    open.name = say("c", open.type, call);
    open_.push_back(open);
    // What a careless pass would move in between: a host read, then a write to the operand at the wait.
    if (random_.chance(60)) {
      if (random_.chance(50)) pointwise();
      if (random_.chance(70)) hostReads();
      waitFor(open_.size() - 1);
      // Needed late, so the wait may be late, too.
      if (!numbers_.empty() && random_.chance(60))
        fresh("aten::mul.Scalar(%" + mats_.back().name + ", %" + numbers_.back() + ")");
      if (operand.writable && random_.chance(60) && !isHidden(operand.root) &&
          !isFrozen(operand.root)) {
        if (inputRoots_.count(operand.root)) mutated_.insert(operand.root);
        // Mostly of what was there before, so that nothing else keeps it behind the wait.
        const std::string other = random_.chance(70) ? mats_.front().name : any().name;
        line("%" + newName("u") + " : " + mat() + " = aten::add_.Tensor(%" + operand.name + ", %" +
             other + ")");
      }
    }
  }

  /// How many rows each piece has: read from a tensor, or saved by forward.
  void makeCounts() {
    if (!counts_.empty() && random_.chance(70)) return;
    counts_.clear();
    const std::string one = say("k", row(2, "Long"), "aten::add.Scalar(%c, 1)");
    const std::string sum = say("k", number("Long"), "aten::sum(%" + one + ")");
    const std::string rest = say("k", number("Long"), "aten::rsub.Scalar(%" + sum + ", 8)");
    const std::string last = say("k", row(1, "Long"), "aten::unsqueeze(%" + rest + ", 0)");
    const std::string all = say("k", row(3, "Long"), "aten::cat([%" + one + ", %" + last + "])");
    for (int i = 0; i < 3; ++i) {
      const std::string at =
          say("e", number("Long"), "aten::select.int(%" + all + ", 0, " + std::to_string(i) + ")");
      counts_.push_back(say("n", "int", "aten::_local_scalar_dense(%" + at + ")"));
    }
  }

  std::vector<Piece> split(const Mat& whole) {
    std::string outputs, sizes;
    std::vector<Piece> found;
    for (const std::string& count : counts_) {
      found.push_back({newName("p"), whole.root});
      outputs += (outputs.empty() ? "%" : ", %") + found.back().name + " : " + piece();
      sizes += (sizes.empty() ? "%" : ", %") + count;
    }
    line(outputs + " = aten::split_with_sizes(%" + whole.name + ", [" + sizes + "])");
    return found;
  }

  void pieces() {
    if (indent_ > 2) return pointwise();
    makeCounts();
    std::vector<Piece> found = split(any());
    std::vector<std::vector<Piece>> all{found};
    for (size_t times = 1 + random_.below(4); times-- > 0;) {
      const size_t op = random_.below(6);
      const std::vector<Piece> others = random_.of(all);
      std::vector<Piece> next;
      for (size_t i = 0; i < found.size(); ++i) {
        const std::string self = "(%" + found[i].name;
        std::string call;
        switch (op) {
          case 0: call = "aten::neg" + self + ")"; break;
          case 1: call = "aten::relu" + self + ")"; break;
          case 2: call = "aten::mul.Tensor" + self + ", %" + others[i].name + ")"; break;
          case 3: call = "aten::add.Tensor" + self + ", %" + others[i].name + ")"; break;
          default: call = "aten::mm" + self + ", %w)"; break;
        }
        next.push_back({say("p", piece(), call), newRoot()});
        if (random_.chance(4)) {
          line("%" + newName("u") + " : " + piece() + " = aten::mul_.Scalar(%" + next.back().name +
               ", 0.5)");
        }
      }
      found = next;
      all.push_back(found);
    }
    for (const auto& some : all) {
      if (random_.chance(30)) loosePieces_.push_back(random_.of(some));
    }
    if (random_.chance(15)) return;
    const std::string list =
        "[%" + found[0].name + ", %" + found[1].name + ", %" + found[2].name + "]";
    if (random_.chance(70)) {
      const std::string whole = fresh("aten::cat(" + list + ")", "y").name;
      if (random_.chance(40)) results_.push_back({whole, mats_.back().root, true});
      if (random_.chance(40)) loosePieces_.push_back(random_.of(found));
      return;
    }
    const std::string whole = say("y", piece(), "aten::cat(" + list + ")");
    const std::string size = say("n", "int", "aten::sym_size.int(%" + whole + ", 0)");
    const std::string zeros =
        say("o", piece(), "aten::new_ones(%" + whole + ", [%" + size + ", 16])");
    const std::string sum = say("y", piece(), "aten::add.Tensor(%" + whole + ", %" + zeros + ")");
    loosePieces_.push_back({sum, newRoot()});
    loosePieces_.push_back({whole, newRoot()});
    fresh("aten::view(%" + sum + ", [8, 16])");
  }

  void input(const std::string& name, const std::string& type, const std::string& role) {
    inputs_ +=
        (inputs_.empty() ? "%" : ",\n           %") + name + " : " + type + " {" + role + "}";
  }
  void matInput(const std::string& name, const std::string& role, bool writable) {
    input(name, mat(), role);
    mats_.push_back({name, newRoot(), writable});
    inputRoots_[mats_.back().root] = name;
  }

  /// Returns what it saves.
  std::vector<Saved> entry(const std::string& name, size_t statements,
                           const std::vector<Saved>& given, bool saves) {
    inputs_.clear();
    body_.clear();
    mats_.clear();
    numbers_.clear();
    counts_.clear();
    states_.clear();
    loosePieces_.clear();
    results_.clear();
    inputRoots_.clear();
    mutated_.clear();
    input("w", "Float(16, 16, strides=[16, 1], device=" + device_ + ")", "parameter \"w\"");
    if (name == "backward") {
      matInput("t", "tangent \"t\"", false);
      for (const Saved& saved : given) {
        input(saved.name, saved.type, "saved \"" + saved.name + "\"");
        if (saved.isMat) mats_.push_back({saved.name, saved.root, false});
        if (saved.isPiece) loosePieces_.push_back({saved.name, saved.root});
        if (saved.type == "int") counts_.push_back(saved.name);
      }
    } else {
      matInput("x", "user_input \"x\"", random_.chance(30));
      matInput("buf", "buffer \"buf\"", true);
    }
    input("c", row(2, "Long"), "user_input \"c\"");
    if (random_.chance(40)) {
      for (const char* state : {"g1", "g2"}) {
        input(state, "Generator", "rng_state \"" + device_ + "#" + state[1] + "\"");
        states_.push_back(state);
      }
    }
    while (statements-- > 0) (this->*random_.of(kinds_))();
    while (!open_.empty()) waitFor(0);
    std::vector<Saved> saved;
    finish(name, saves, saved);
    return saved;
  }

  void finish(const std::string& name, bool saves, std::vector<Saved>& saved) {
    const Mat last = any();
    std::vector<std::string> outputs;
    std::set<std::string> returned;
    const auto give = [&](const std::string& value, const std::string& role) {
      if (returned.insert(value).second) outputs.push_back("%" + value + " {" + role + "}");
    };
    const std::string loss = say("s", number(), "aten::sum(%" + last.name + ")");
    const std::string columns = say("v", "Float(16, 8, strides=[1, 16], device=" + device_ + ")",
                                    "aten::t(%" + last.name + ")");
    const std::string gradient = say("g", "Float(16, 16, strides=[16, 1], device=" + device_ + ")",
                                     "aten::mm(%" + columns + ", %" + any().name + ")");
    if (name != "backward") give(loss, "loss");
    if (!saves) give(gradient, "gradient \"w\"");
    for (const Mat& result : results_) give(result.name, "output \"" + result.name + "\"");
    for (size_t i = random_.below(4); i-- > 0;) {
      const Mat& result = any();
      if (inputRoots_.count(result.root)) {
        if (random_.chance(50) && inputRoots_[result.root] != result.name &&
            !mutated_.count(result.root) && name != "backward")
          give(result.name, "alias %" + inputRoots_[result.root]);
        continue;
      }
      if (name == "backward" && !result.writable) continue;
      give(result.name, "output \"" + result.name + "\"");
    }
    const auto save = [&](const Saved& value) {
      if (!returned.insert(value.name).second) return;
      outputs.push_back("%" + value.name + " {saved \"" + value.name + "\"}");
      saved.push_back(value);
    };
    if (saves) {
      for (size_t i = 1 + random_.below(3); i-- > 0;) {
        const Mat& value = any();
        save({value.name, mat(), value.root, true, false});
      }
      for (const Piece& value : loosePieces_) save({value.name, piece(), value.root, false, true});
      if (!counts_.empty() && random_.chance(80)) {
        for (const std::string& count : counts_) save({count, "int", 0, false, false});
      }
    } else if (name == "step") {
      for (const Piece& value : loosePieces_) {
        if (!inputRoots_.count(value.root) && random_.chance(50))
          give(value.name, "output \"" + value.name + "\"");
      }
    } else {
      for (const Piece& value : loosePieces_) {
        const std::string sum = say("s", number(), "aten::sum(%" + value.name + ")");
        give(sum, "output \"" + sum + "\"");
      }
    }
    for (size_t root : mutated_) {
      const std::string& buffer = inputRoots_[root];
      outputs.push_back("%" + buffer + " {mutation %" + buffer + "}");
    }
    std::string list;
    for (const std::string& output : outputs)
      list += (list.empty() ? "" : ",\n          ") + output;
    text_ += "graph " + name + "(" + inputs_ + "):\n" + body_ + "  return (" + list + ")\n";
  }

  Random random_;
  std::string device_, text_, inputs_, body_;
  std::vector<Kind> kinds_;
  std::vector<Mat> mats_, results_;
  std::vector<Piece> loosePieces_;
  std::vector<std::string> numbers_, counts_, states_;
  std::vector<Open> open_;
  std::map<size_t, std::string> inputRoots_;
  std::set<size_t> mutated_;
  size_t names_ = 0, roots_ = 0, indent_ = 2;
};

}  // namespace gravure::testing
