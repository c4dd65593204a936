"""What users do in a training loop: each action is a name and three numbers, and writes its lines.

The numbers choose among what there is when the action comes, so any list of actions is a loop. Zero
is the plainest choice: a loop is made simpler by leaving out actions and by lowering numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch.nn as nn


class Action(NamedTuple):
    name: str
    a: int = 0
    b: int = 0
    c: int = 0


ROWS = (5, 5, 5, 5, 5, 5, 5, 4, 1, 8)
LAYOUTS = ("plain", "plain", "plain", "part", "transposed", "channels_last")


@dataclass
class Writer:
    """Writes the lines of a loop, and knows what the loop holds so far."""

    model: nn.Module  # of the same names, not the one that runs
    way: str  # "call", "layers", "step" or "optimizer"
    lines: list[str] = field(default_factory=list)
    number: int = 0
    rows: int = ROWS[0]
    batches: list[str] = field(default_factory=list)  # names of arguments that are held
    waiting: list[str] = field(default_factory=list)  # of results whose backward has not run
    held: list[str] = field(default_factory=list)  # of all else that is held
    states: list[str] = field(default_factory=list)  # of state_dicts
    made: set[str] = field(default_factory=set)  # what exists once

    def line(self, text: str, depth: int = 0) -> None:
        self.lines.append("    " * (depth + 2) + text)

    @property
    def calls(self) -> bool:
        """Whether users call the model, and run the backward themselves."""
        return self.way in ("call", "layers")

    def parameter(self, pick: int) -> str:
        names = [name for name, _ in self.model.named_parameters()]
        return names[pick % len(names)]

    def buffer(self, pick: int) -> str | None:
        names = [name for name, b in self.model.named_buffers() if b.is_floating_point()]
        return names[pick % len(names)] if names else None

    def batch(self, seed: int, rows: int = 0, layout: int = 0, grad: bool = False) -> str:
        """An expression for new arguments."""
        chosen = LAYOUTS[layout % len(LAYOUTS)]
        more = f', "{chosen}"' if chosen != "plain" or grad else ""
        more += ", grad=True" if grad else ""
        return f"batch(s.model, {seed}, {ROWS[rows % len(ROWS)]}{more})"

    def step(
        self,
        args: str,
        depth: int = 0,
        clear: int = 0,
        clip: bool = False,
        around: str = "",
        behind: bool = False,
    ) -> None:
        """A whole training step; within `around`, but for a backward `behind` it."""
        if around:
            self.line(f"with {around}:", depth - 1)
        if self.way == "optimizer":
            self.line(f"see.note(s.step(*{args}))", depth)
            return
        if clear != 3:
            setting = "" if clear == 0 else f"set_to_none={clear != 2}"
            self.line(f"s.optimizer.zero_grad({setting})", depth)
        if self.way == "step":
            self.line(f"see.note(s.step(*{args}))", depth)
        else:
            self.line(f"result = s.call(*{args})", depth)
            self.line("see.note(result)", depth)
            depth -= behind
            self.line("total(result).backward()", depth)
            self.line("del result", depth)
        if clip:
            self.line("see.note(nn.utils.clip_grad_norm_(s.model.parameters(), 0.1))", depth)
        self.line("s.optimizer.step()", depth)


Write = Callable[[Writer, int, int, int], None]
ACTIONS: dict[str, tuple[Write, int, str]] = {}  # with weight, and for which ways


def action(weight: int = 4, ways: str = "call layers step optimizer") -> Callable[[Write], Write]:
    def add(write: Write) -> Write:
        ACTIONS[write.__name__.strip("_")] = write, weight, ways
        return write

    return add


# ---- training


@action(30)
def step(w: Writer, a: int, b: int, c: int) -> None:
    w.step(w.batch(w.number), clear=(0, 0, 0, 2)[a % 4], clip=b % 5 == 4)


@action(5)
def step_on_other_rows(w: Writer, a: int, b: int, c: int) -> None:
    for i in range(1 + b % 3):
        w.step(w.batch(w.number + 100 * i, 7 + a % 3))


@action(5)
def step_on_a_layout(w: Writer, a: int, b: int, c: int) -> None:
    for i in range(1 + b % 3):
        w.step(w.batch(w.number + 100 * i, layout=3 + a % 3))


@action(4, "call layers step")
def accumulate(w: Writer, a: int, b: int, c: int) -> None:
    for i in range(2 + a % 2):
        w.step(w.batch(w.number + 100 * i), clear=3 if i else 0)


@action(4)
def step_again_on_held(w: Writer, a: int, b: int, c: int) -> None:
    """A batch whose memory stays, with new numbers or the same."""
    if w.batches:
        name = w.batches[a % len(w.batches)]
        if b % 2:
            w.line(f"for old, new in zip({name}, {w.batch(w.number)}):")
            w.line("old.detach().copy_(new)", 1)
        w.step(name)


# ---- forwards and backwards, apart


@action(14, "call layers")
def forward(w: Writer, a: int, b: int, c: int) -> None:
    x, result = f"s.x{w.number}", f"s.r{w.number}"
    w.line(f"{x} = {w.batch(w.number, (0, 0, 0, 7)[a % 4], layout=b % 6, grad=c % 4 == 1)}")
    w.line(f"{result} = s.call(*{x})")
    w.batches.append(x)
    w.waiting.append(result)


@action(4, "call layers")
def feed(w: Writer, a: int, b: int, c: int) -> None:
    """The last result becomes the next argument, as in a recurrent model."""
    if w.waiting:
        old, result = w.waiting[a % len(w.waiting)], f"s.r{w.number}"
        value = f"tensors({old})[-1]" + (".detach()" if b % 2 else "")
        w.line(f"{result} = s.call({value}, *{w.batch(w.number)}[1:])")
        w.waiting.append(result)


@action(14, "call layers")
def backward(w: Writer, a: int, b: int, c: int) -> None:
    if w.waiting:
        name = w.waiting.pop(a % len(w.waiting))
        which = (0, 0, 1, 2)[b % 4]
        more = f", {which}" if which else ""
        w.line(f"total({name}{more}).backward({'retain_graph=True' if c % 6 == 5 else ''})")
        if c % 6 in (3, 4, 5):
            w.held.append(name)
        else:
            w.line(f"del {name}")


@action(4, "call layers")
def backward_of_all(w: Writer, a: int, b: int, c: int) -> None:
    """Of what waits: together, or one after the other in either order."""
    names, w.waiting = w.waiting, []
    if not names:
        return
    if a % 3 == 2:
        w.line("(" + " + ".join(f"total({name})" for name in names) + ").backward()")
    else:
        for name in names if a % 3 else reversed(names):
            w.line(f"total({name}).backward()")
    w.line("del " + ", ".join(names))


@action(2, "call layers")
def backward_again(w: Writer, a: int, b: int, c: int) -> None:
    names = [name for name in w.held if name.startswith("s.r")]
    if names:
        w.line(f"total({names[a % len(names)]}).backward()")


@action(2, "call layers")
def gradients_of(w: Writer, a: int, b: int, c: int) -> None:
    if w.waiting:
        name = w.waiting.pop(a % len(w.waiting))
        w.line("parameters = [p for p in s.model.parameters() if p.requires_grad]")
        w.line(f"s.g{w.number} = torch.autograd.grad(total({name}), parameters, allow_unused=True)")
        w.line(f"del parameters, {name}")
        w.held.append(f"s.g{w.number}")


@action(4, "call layers step")
def optimizer_step(w: Writer, a: int, b: int, c: int) -> None:
    w.line("s.optimizer.step()")


@action(4, "call layers step")
def clear(w: Writer, a: int, b: int, c: int) -> None:
    w.line(f"s.optimizer.zero_grad({'set_to_none=False' if a % 3 == 2 else ''})")


@action(5)
def evaluate(w: Writer, a: int, b: int, c: int) -> None:
    call = "s.call" if w.calls else "s.model"
    guard = ("torch.no_grad()", "torch.no_grad()", "torch.inference_mode()")[a % 3]
    w.line("s.model.eval()")
    w.line(f"with {guard}:")
    w.line(f"see.note({call}(*{w.batch(w.number, (0, 0, 7)[b % 3])}))", 1)
    w.line("s.model.train()")


@action(2, "call layers")
def evaluate_with_gradients(w: Writer, a: int, b: int, c: int) -> None:
    w.line("s.model.eval()")
    w.step(w.batch(w.number))
    w.line("s.model.train()")


# ---- what is held, dropped and written


@action(8)
def drop(w: Writer, a: int, b: int, c: int) -> None:
    for names in (w.held, w.batches, w.waiting)[b % 3 :]:
        if names:
            w.line(f"del {names.pop(a % len(names))}")
            return


@action(5, "call layers step")
def hold_gradients(w: Writer, a: int, b: int, c: int) -> None:
    name = f"s.g{w.number}"
    if a % 3:
        w.line(f'{name} = s.model.get_parameter("{w.parameter(b)}").grad')
    else:
        w.line(f"{name} = [p.grad for p in s.model.parameters()]")
    w.held.append(name)


@action(4)
def hold_result(w: Writer, a: int, b: int, c: int) -> None:
    if w.calls:
        w.line(f"s.r{w.number} = s.call(*{w.batch(w.number)})")
        w.line(f"total(s.r{w.number}).backward()")
    else:
        w.line(f"s.r{w.number} = s.step(*{w.batch(w.number)})")
    w.held.append(f"s.r{w.number}")


@action(8)
def write_into_result(w: Writer, a: int, b: int, c: int) -> None:
    names = [name for name in w.waiting + w.held if name.startswith("s.r")]
    if names:
        name = names[a % len(names)]
        w.line(f"found = tensors({name})")
        w.line(f"value = found[{b % 6} % len(found)]")
        if c % 4 == 3:
            w.line("value.mul_(2)")
        else:
            w.line("with torch.no_grad():")
            w.line(("value.mul_(2)", "value[:1] = 3", "value.zero_()")[c % 4], 1)
        w.line("del found, value")


@action(4)
def write_into_argument(w: Writer, a: int, b: int, c: int) -> None:
    if w.batches:
        w.line("with torch.no_grad():")
        w.line(f"{w.batches[a % len(w.batches)]}[0][:1] {('*= 2', '+= 1')[b % 2]}", 1)


@action(4)
def write_into_parameter(w: Writer, a: int, b: int, c: int) -> None:
    name = f's.model.get_parameter("{w.parameter(a)}")'
    if b % 3 == 0:
        w.line("with torch.no_grad():")
        w.line(f"{name}.mul_(0.9)", 1)
    else:
        w.line(f"{name}.data{('.mul_(0.9)', '[0] = 0.5')[b % 3 - 1]}")


@action(3, "call layers step")
def write_into_gradient(w: Writer, a: int, b: int, c: int) -> None:
    w.line("for p in s.model.parameters():")
    w.line("if p.grad is not None:", 1)
    w.line(("p.grad.mul_(0.5)", "p.grad = p.grad.clone()", "p.grad = None")[b % 3], 2)


@action(2, "call layers step")
def clip(w: Writer, a: int, b: int, c: int) -> None:
    if a % 2:
        w.line("nn.utils.clip_grad_value_(s.model.parameters(), 0.01)")
    else:
        w.line("see.note(nn.utils.clip_grad_norm_(s.model.parameters(), 0.1))")


# ---- parameters and buffers that change


@action(5)
def freeze(w: Writer, a: int, b: int, c: int) -> None:
    p = f's.model.get_parameter("{w.parameter(a)}")'
    w.line(f"{p}.requires_grad_(not {p}.requires_grad)")


@action(2)
def freeze_a_layer(w: Writer, a: int, b: int, c: int) -> None:
    names = [n for n, m in w.model.named_children() if list(m.parameters())]
    if names:
        w.line(f"s.model.{names[a % len(names)]}.requires_grad_({bool(b % 2)})")


@action(4)
def replace_parameter(w: Writer, a: int, b: int, c: int) -> None:
    name = w.parameter(a)
    value = f's.model.get_parameter("{name}").detach()'
    if b % 4 == 3:
        w.line(f'put(s.model, "{name}", nn.Parameter({value} * 1.1))')
        w.line("s.optimizer = make_optimizer(s.model)" if w.way != "optimizer" else "pass")
    else:
        w.line(f'replace(s, "{name}", {value} * 1.1)')


@action(3)
def new_data(w: Writer, a: int, b: int, c: int) -> None:
    if a % 2:
        w.line("for p in s.model.parameters():")
        w.line("p.data = p.data.clone()", 1)
    else:
        w.line(f'p = s.model.get_parameter("{w.parameter(b)}")')
        w.line("p.data = p.data * 1.1")


@action(2)
def tie(w: Writer, a: int, b: int, c: int) -> None:
    shapes = {name: p.shape for name, p in w.model.named_parameters()}
    first = w.parameter(a)
    alike = [name for name, shape in shapes.items() if shape == shapes[first] and name != first]
    if alike:
        other = alike[b % len(alike)]
        w.line(f'put(s.model, "{first}", s.model.get_parameter("{other}"))')


@action(4)
def buffers(w: Writer, a: int, b: int, c: int) -> None:
    name = w.buffer(a)
    if name is not None:
        value = f's.model.get_buffer("{name}")'
        if b % 2:
            w.line(f"{value}.mul_(0.9)")
        else:
            w.line(f'put(s.model, "{name}", {value} * 1.1)')


@action(3)
def save_state(w: Writer, a: int, b: int, c: int) -> None:
    w.line(f"s.state{w.number} = state_of(s.model)")
    w.states.append(f"s.state{w.number}")


@action(4)
def load_state(w: Writer, a: int, b: int, c: int) -> None:
    if w.states:
        state = f"copy.deepcopy({w.states[a % len(w.states)]})"
        if b % 3 == 2:
            w.line(f"s.model.load_state_dict({state}, assign=True)")
            w.line("s.optimizer = make_optimizer(s.model)" if w.way != "optimizer" else "pass")
        else:
            w.line(f"s.model.load_state_dict({state})")


@action(2)
def move(w: Writer, a: int, b: int, c: int) -> None:
    how = ("torch.float64", "torch.float32", "torch.bfloat16", "memory_format=torch.channels_last")
    w.line(f"s.model.to({how[a % 4]})")


@action(2)
def move_there_and_back(w: Writer, a: int, b: int, c: int) -> None:
    w.line("s.model.to(torch.float64)" if a % 2 else 's.model.to("cpu")')
    w.line("s.model.to(torch.float32)" if a % 2 else "s.model.to(DEVICE)")


@action(2)
def another_dropout(w: Writer, a: int, b: int, c: int) -> None:
    names = [n for n, m in w.model.named_modules() if hasattr(m, "dropout")]
    if names:
        share = (0.0, 0.5, 0.2)[b % 3]
        w.line(f's.model.get_submodule("{names[a % len(names)]}").dropout = {share}')


# ---- random states


@action(4)
def seed(w: Writer, a: int, b: int, c: int) -> None:
    choices = (f"torch.manual_seed({b})", f"exchange_generator({b})", "see.note(torch.rand(3))")
    w.line(choices[a % 3])


@action(2)
def random_state_again(w: Writer, a: int, b: int, c: int) -> None:
    which = "torch.cuda" if a % 2 else "torch"
    prefix = 'if DEVICE == "cuda": ' if a % 2 else ""
    if "state" in w.made:
        w.line(f"{prefix}{which}.set_rng_state(s.random[{a % 2}])")
    else:
        w.line("s.random = [torch.get_rng_state()]")
        w.line('s.random.append(torch.cuda.get_rng_state() if DEVICE == "cuda" else None)')
        w.made.add("state")


# ---- what else happens in the process


@action(3)
def collect(w: Writer, a: int, b: int, c: int) -> None:
    w.line("gc.collect()")


@action(3)
def release_memory(w: Writer, a: int, b: int, c: int) -> None:
    w.line("gravure.release_memory()")


@action(2, "call layers")
def drop_captures(w: Writer, a: int, b: int, c: int) -> None:
    w.line("gravure.drop_captures(s.model)" if a % 2 else "gravure.drop_captures()")


@action(2)
def beside_a_thread(w: Writer, a: int, b: int, c: int) -> None:
    """Steps, while another thread trains a model of its own."""
    w.line("with training_beside() as beside:")
    for i in range(1 + b % 3):
        w.step(w.batch(w.number + 100 * i), 1)
    w.line("see.note(beside)")
    w.line("del beside")


@action(1, "call layers")
def step_on_another_dtype(w: Writer, a: int, b: int, c: int) -> None:
    w.line("def cast(value: Any) -> Any:")
    w.line("    return value.to(torch.float64) if value.is_floating_point() else value")
    w.step(f"map(cast, {w.batch(w.number)})")


@action(3)
def in_thread(w: Writer, a: int, b: int, c: int) -> None:
    w.line("def work() -> None:")
    w.step(w.batch(w.number), 1)
    w.line("in_a_thread(work)")
    w.line("del work")


@action(3)
def in_stream(w: Writer, a: int, b: int, c: int) -> None:
    w.line("with on_a_stream():")
    w.step(w.batch(w.number), 1)


@action(2)
def in_autocast(w: Writer, a: int, b: int, c: int) -> None:
    """The backward inside of it, or behind it: always the same, since another one warns."""
    either = {"inside autocast", "behind autocast"}
    if not either & w.made:
        w.made.add("behind autocast" if a % 2 else "inside autocast")
    for i in range(1 + b % 4):
        w.step(
            w.batch(w.number + 100 * i),
            1,
            around="torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False)",
            behind="behind autocast" in w.made,
        )


@action(2, "call layers")
def in_other_modes(w: Writer, a: int, b: int, c: int) -> None:
    modes = (
        "torch.autograd.detect_anomaly(check_nan=False)",
        "torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)",
        "torch.autograd.graph.save_on_cpu()",
        "torch.autograd.set_multithreading_enabled(False)",
    )
    w.line(f"with {modes[a % 4]}:")
    w.step(w.batch(w.number), 1)


@action(4)
def other_model(w: Writer, a: int, b: int, c: int) -> None:
    """Another compiled model, or another one of the same class."""
    name = ("twin", "other")[a % 2]
    if name not in w.made:
        w.made.add(name)
        make = "build()" if name == "twin" else "nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))"
        w.line(f"s.{name} = {make}.to(DEVICE)")
        w.line(f"s.{name}_call = s.compile(s.{name})")
    batch = w.batch(w.number).replace("s.model", "s.twin")  # which has its own dtype
    args = f"*{batch}" if name == "twin" else "torch.ones(3, 8, device=DEVICE)"
    w.line(f"s.{name}.zero_grad()")
    w.line(f"total(s.{name}_call({args})).backward()")
    if b % 3 == 2:
        w.line(f"del s.{name}, s.{name}_call")
        w.made.discard(name)


@action(3)
def other_graphs(w: Writer, a: int, b: int, c: int) -> None:
    """CUDA graphs of the user's own, and PyTorch's."""
    if a % 2:
        w.line("see.note(own_graph())")
        return
    if "graphed" not in w.made:
        w.made.add("graphed")
        theirs = '{"mode": "reduce-overhead"}' if b % 4 == 3 else '{"backend": "cudagraphs"}'
        w.line("s.graphed = nn.Linear(8, 8).to(DEVICE)")
        w.line(f'how = {theirs} if DEVICE == "cuda" else {{"backend": "eager"}}')
        w.line("s.graphed_call = torch.compile(s.graphed, **how)")
        w.line("del how")
    w.line("s.graphed.zero_grad()")
    w.line("result = s.graphed_call(torch.ones(3, 8, device=DEVICE))")
    w.line("see.note(result.clone())")
    w.line("total(result).backward()")
    w.line("del result")


@action(2, "call layers")
def compile_again(w: Writer, a: int, b: int, c: int) -> None:
    if a % 3 == 2:
        w.line("torch._dynamo.reset()")
    w.line("s.call = s.compile(s.model)")


@action(2)
def deep_copy(w: Writer, a: int, b: int, c: int) -> None:
    w.line(f"s.copy{w.number} = copy.deepcopy(s.model)")
    w.held.append(f"s.copy{w.number}")


# ---- hooks, and errors in the middle


@action(3, "call layers")
def hook(w: Writer, a: int, b: int, c: int) -> None:
    p = f's.model.get_parameter("{w.parameter(a)}")'
    if "hook" in w.made:
        w.made.discard("hook")
        w.line("s.hook.remove()")
        w.line("del s.hook")
    else:
        w.made.add("hook")
        w.line(
            f"s.hook = {p}.register_hook(lambda g: g * 2)"
            if b % 2
            else f"s.hook = {p}.register_post_accumulate_grad_hook(halve_gradient)"
        )


@action(3, "call layers")
def error_in_backward(w: Writer, a: int, b: int, c: int) -> None:
    w.line(f'hook = s.model.get_parameter("{w.parameter(a)}").register_hook(fail)')
    w.line("try:")
    w.step(w.batch(w.number), 1)
    w.line("finally:")
    w.line("hook.remove()", 1)


@action(3)
def error_in_forward(w: Writer, a: int, b: int, c: int) -> None:
    w.line(f"args = {w.batch(w.number)}")
    if a % 2:  # on a GPU it would end the process
        w.line('if DEVICE == "cpu":')
        w.line("args = args[0], *(t + 1000 for t in args[1:])", 1)
    else:
        w.line("args = torch.cat([args[0], args[0]], -1), *args[1:]")
    w.step("args")


@action(3, "call layers")
def error_after_forward(w: Writer, a: int, b: int, c: int) -> None:
    """A forward whose results nobody sees."""
    w.line(f"s.call(*{w.batch(w.number)})")
    if a % 2:
        w.line("fail()")


# ---- the optimizer


@action(3)
def another_rate(w: Writer, a: int, b: int, c: int) -> None:
    w.line(f's.optimizer.param_groups[0]["lr"] = {(0.02, 0.03)[a % 2]}')


@action(2)
def another_attribute(w: Writer, a: int, b: int, c: int) -> None:
    w.line("s.optimizer.scale = 0.3")


@action(2)
def patch_step(w: Writer, a: int, b: int, c: int) -> None:
    if "patch" not in w.made:
        w.made.add("patch")
        w.line("def patched(closure=None, step=s.optimizer.step, model=s.model):")
        w.line("for p in model.parameters():", 1)
        w.line("if p.grad is not None:", 2)
        w.line("p.grad.mul_(0.5)", 3)
        w.line("return step()", 1)
        w.line("s.optimizer.step = patched")
        w.line("del patched")


@action(2)
def hook_on_step(w: Writer, a: int, b: int, c: int) -> None:
    if "step hook" not in w.made:
        w.made.add("step hook")
        w.line("def before(optimizer, args, kwargs):")
        w.line("for group in optimizer.param_groups:", 1)
        w.line('group["params"][0].data.mul_(0.99)', 2)
        w.line("s.optimizer.register_step_pre_hook(before)")


@action(2)
def another_group(w: Writer, a: int, b: int, c: int) -> None:
    """A parameter of nobody's step, with a gradient."""
    if "group" not in w.made:
        w.made.add("group")
        w.line("s.apart = nn.Parameter(torch.ones(3, device=DEVICE))")
        w.line('s.optimizer.add_param_group({"params": [s.apart]})')
    w.line("s.apart.grad = torch.ones_like(s.apart)")


@action(2)
def load_optimizer(w: Writer, a: int, b: int, c: int) -> None:
    w.line("s.optimizer.load_state_dict(copy.deepcopy(s.optimizer.state_dict()))")
