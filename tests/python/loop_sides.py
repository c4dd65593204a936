"""One training loop, run as it is and compiled: all that its user can see is compared in bits.

The text of this file stands at the top of each drawn loop's script: torch and gravure suffice.
"""

from __future__ import annotations

import copy
import gc
import logging
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import gravure
import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._pytree import tree_leaves

# Without a GPU, PyTorch goes on with a guard of the last thread that traced, also when that has
# ended (c10::impl::ensureCUDADeviceGuardSet). This thread's stays.
if not torch.cuda.is_available():
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._ensureCUDADeviceGuardSet = lambda: None

DEVICE = sys.argv[1] if sys.argv[1:] in (["cuda"], ["cpu"]) else "cpu"

# What both sides' errors must have in common, beside their type: the first that eager's has.
AUTOGRADS = (
    "modified by an inplace operation",
    "backward through the graph a second time",
    "does not require grad",
    "leaf Variable that requires grad",
)
WORDS = (
    *AUTOGRADS,
    "must match the size",
    "shapes cannot be multiplied",
    "out of bounds",
    "out of range",
    "same dtype",
    "the user's own error",
)
# Where an operator fails while the code is traced, these say so in words of their own.
TRACERS = ("TorchRuntimeError", "ExportError")
# What the documents refuse: it ends a loop.
REFUSALS = (
    r"does not currently support double backward",
    r"has a hook on its gradient",
    r"has a step hook",
    r"a gradient already",
    r"was replaced, and the optimizer would go on with the old one",
    r"needs no gradient",
    r"changes Python values",
    r"does not update has a gradient",
    r"after a model was converted compile it again",
    r"it cannot be compiled in a call",
)


# ---- what users write


def batch(model: Any, seed: int, rows: int, layout: str = "plain", grad: bool = False) -> Any:
    """A batch as `model.inputs` draws it, of its dtype, on its device, laid out otherwise."""
    found = next(p for p in model.parameters() if p.is_floating_point())
    values = []
    for value in model.inputs(torch.Generator().manual_seed(seed), rows):
        dtype = found.dtype if value.is_floating_point() else value.dtype
        value = laid_out(value.to(found.device, dtype), layout)
        values.append(value.requires_grad_(grad and value.is_floating_point()))
    return tuple(values)


def laid_out(value: Tensor, layout: str) -> Tensor:
    if layout == "part":  # of a larger tensor, at an odd address
        whole = value.new_zeros(value.numel() + 3)
        return whole[3:].view(value.shape).copy_(value)
    if layout == "transposed" and value.dim() > 1:
        return value.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "channels_last" and value.dim() == 4:
        return value.to(memory_format=torch.channels_last)
    return value


def tensors(result: Any) -> list[Tensor]:
    return [t for t in tree_leaves(result) if isinstance(t, Tensor)]


def total(result: Any, which: int = 0) -> Tensor:
    """A loss of a model's results; of those alone whose bit is set in `which`, if any is."""
    found = [t for t in tensors(result) if t.is_floating_point() or t.is_complex()]
    found = [t for i, t in enumerate(found) if which >> i & 1] or found
    loss = found[0].new_zeros((), dtype=torch.float32)
    for t in found:
        loss = loss + t.float().square().mean()
    return loss


def put(model: nn.Module, name: str, value: Any) -> None:
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, value)


def replace(s: Any, name: str, value: Tensor) -> None:
    """Another parameter, for the model and for the optimizer."""
    old, new = s.model.get_parameter(name), nn.Parameter(value)
    put(s.model, name, new)
    for group in s.optimizer.param_groups:
        group["params"] = [new if p is old else p for p in group["params"]]


def state_of(model: nn.Module) -> Any:
    return copy.deepcopy(model.state_dict())


def let_go(s: Any, *names: str) -> None:
    """Of what is held; what an error kept from being made is not."""
    for name in names:
        vars(s).pop(name, None)


def in_a_thread(work: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()


@contextmanager
def training_beside() -> Iterator[list[Tensor]]:
    """Another thread trains a model that nothing draws for; its parameters, once it has ended."""
    model, parameters = nn.Linear(8, 8, device="meta").to_empty(device=DEVICE), list[Tensor]()
    x = torch.linspace(-1, 1, 40).reshape(5, 8).to(DEVICE)
    for parameter in model.parameters():
        parameter.data = torch.full_like(parameter, 0.1)

    def work() -> None:
        for _ in range(40):
            model.zero_grad()
            model(x).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield parameters
    finally:
        thread.join()
    parameters.extend(p.detach() for p in model.parameters())


@contextmanager
def on_a_stream() -> Iterator[None]:
    if DEVICE != "cuda":
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def exchange_generator(seed: int) -> None:
    """The default generator goes on from another one's state."""
    other = torch.Generator(DEVICE).manual_seed(seed)
    if DEVICE == "cuda":
        torch.cuda.default_generators[0].graphsafe_set_state(other.graphsafe_get_state())
    else:
        torch.default_generator.set_state(other.get_state())


def own_graph() -> Tensor:
    """A CUDA graph of the user's own, beside all else."""
    x = torch.ones(8, device=DEVICE)
    if DEVICE != "cuda":
        return x.sin() * 2
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        y = x.sin() * 2
    graph.replay()
    return y.clone()


def halve_gradient(p: Tensor) -> None:
    p.grad.mul_(0.5)  # type: ignore[union-attr]


def fail(*_: Any) -> None:
    raise ValueError("the user's own error")


class Scaled(torch.optim.SGD):
    """Reads an attribute in its step."""

    scale = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-0.05 * self.scale)


class Lookahead(torch.optim.Optimizer):
    """Wraps another optimizer, and goes back half of its way in each second step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.count = inner, 0
        self.slow = {p: p.detach().clone() for g in inner.param_groups for p in g["params"]}
        super().__init__([p for g in inner.param_groups for p in g["params"]], {})
        self.param_groups, self.state = inner.param_groups, inner.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        self.count += 1
        if self.count % 2 == 0:
            for p, slow in self.slow.items():
                slow.lerp_(p, 0.5)
                p.copy_(slow)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.05),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.01),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True),
    "scaled": lambda m: Scaled(m.parameters(), 0.05),
    "lookahead": lambda m: Lookahead(torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)),
}


# ---- both sides


def bits(value: Any) -> Any:
    """Something that is equal only if every bit is."""
    if not isinstance(value, Tensor):
        return value
    flat = value.detach().contiguous().cpu()
    return value.dtype, tuple(value.shape), flat.flatten().view(torch.uint8).numpy().tobytes()


class Entry(NamedTuple):
    """What was seen after an action. `error`: None, or its type and message."""

    action: str
    error: tuple[str, str] | None
    values: dict[str, Any]


class Refused(Exception):
    pass


class Seen:
    """What a side's user sees: every tensor, module and optimizer that `s` holds."""

    def __init__(self, s: SimpleNamespace, expected: list[Entry] | None) -> None:
        """`expected`: eager's entries, for the compiled side."""
        self.s, self.expected = s, expected
        self.older = {graph.number for graph in gravure.report().graphs}
        self.entries: list[Entry] = []
        self.counts: list[tuple[int, ...]] = []  # runs, uncaptured ones, captures, replays
        self.refusal = ""
        self._noted: dict[str, Any] = {}

    @contextmanager
    def __call__(self, action: str, look: bool = True) -> Iterator[None]:
        """Runs one action. An error is noted; then gradients and random state begin anew.

        Which gradients a backward has added when it fails is not compared.
        """
        buffers = [(name, b, b.clone()) for name, b in self.s.model.named_buffers()]
        error = None
        try:
            yield
        except Exception as caught:
            error = type(caught).__name__, str(caught)
        if error is not None:
            if self.expected is not None and _is_refusal(error):
                # Where eager raises, too, its step may have done half of its work before.
                self.refusal = error[1]
                raise Refused
            self._begin_anew(buffers)
        values = dict(self._noted)
        self._noted.clear()
        if look:
            for name, value in vars(self.s).items():
                if not name.endswith("call"):  # the model once more
                    _look(name, value, values)
            values["random state"] = bits(torch.get_rng_state())
            if DEVICE == "cuda":
                values["random state of the GPU"] = bits(torch.cuda.get_rng_state())
        self.entries.append(Entry(action, error, values))

    def note(self, value: Any) -> None:
        """Its bits are compared; it is not held."""
        _look(f"noted {len(self._noted)}", value, self._noted)

    def count(self) -> None:
        """How the compiled side ran so far."""
        graphs = [g for g in gravure.report().graphs if g.number not in self.older]
        stats = [p.stats for g in graphs for p in g.programs if any(p.partitions.values())]
        names = "steps", "uncaptured_steps", "captures", "replays"
        self.counts.append(tuple([sum(s[name] for s in stats) for name in names]))

    def _begin_anew(self, buffers: list[tuple[str, Tensor, Tensor]]) -> None:
        self.s.model.zero_grad(set_to_none=True)
        self.s.model.train()
        for name in vars(self.s):
            if re.fullmatch(r"g\d+", name):
                setattr(self.s, name, None)
        for value in tensors([v for v in vars(self.s).values() if isinstance(v, (tuple, list))]):
            if value.requires_grad and not value._is_view():
                value.grad = None
        with torch.no_grad():
            for name, buffer, before in buffers:
                put(self.s.model, name, buffer.copy_(before))
        torch.manual_seed(0)


def _is_refusal(error: tuple[str, str]) -> bool:
    if "InternalTorchDynamoError" in error[1]:
        return False
    return error[0] == "ExportError" or any(re.search(r, error[1]) for r in REFUSALS)


def _look(name: str, value: Any, into: dict[str, Any]) -> None:
    if isinstance(value, nn.Module):
        for key, p in value.named_parameters(remove_duplicate=False):
            into[f"{name}.{key}"] = bits(p), p.requires_grad
            into[f"{name}.{key}.grad"] = bits(p.grad)
        for key, b in value.named_buffers():
            into[f"{name}.{key}"] = bits(b)
    elif isinstance(value, torch.optim.Optimizer):
        params = [p for group in value.param_groups for p in group["params"]]
        for i, p in enumerate(params):
            for key, held in value.state.get(p, {}).items():
                into[f"{name}.state[{i}].{key}"] = bits(held)
    elif isinstance(value, Tensor):
        try:
            into[name] = bits(value), value.requires_grad
            if value.is_leaf:
                into[f"{name}.grad"] = bits(value.grad)
        except RuntimeError as error:  # a view that autograd gave up
            into[name] = f"unreadable: {str(error)[:40]}"
    elif isinstance(value, dict):
        for key, member in value.items():
            _look(f"{name}[{key!r}]", member, into)
    elif isinstance(value, (tuple, list)):
        for i, member in enumerate(value):
            _look(f"{name}[{i}]", member, into)
    elif value is None or isinstance(value, (bool, int, float, str)):
        into[name] = value


# ---- comparing


class Outcome(NamedTuple):
    """`kind`: "equal", "refused", or what was found, after the action of that number."""

    kind: str
    action: int
    text: str
    values: int = 0


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def run(build: Any, start: Any, loop: Any, expected: list[Entry] | None = None) -> Seen:
    torch.manual_seed(0)
    s = SimpleNamespace(model=build().to(DEVICE).train())
    seen = Seen(s, expected)
    try:
        start(s, expected is not None)
    except gravure.ExportError as error:  # an optimizer whose step is not known
        seen.refusal = str(error)
        return seen
    torch.manual_seed(1)
    try:
        loop(s, seen)
    except Refused:
        pass
    return seen


def compare(build: Any, start: Any, loop: Any, checks: tuple[str, ...] = ()) -> Outcome:
    """Runs the loop on both sides. `checks`: "captures" and "alive", what else must hold."""
    torch._dynamo.reset()
    torch._dynamo.config.capture_scalar_outputs = True
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.recompile_limit = 64
    gc.collect()
    expected = run(build, start, loop)
    warnings, logger = _Warnings(), logging.getLogger("gravure")
    logger.addHandler(warnings)
    try:
        found = run(build, start, loop, expected.entries)
    finally:
        logger.removeHandler(warnings)
    values = sum(len(entry.values) for entry in found.entries)
    for i, (theirs, ours) in enumerate(zip(expected.entries, found.entries, strict=False)):
        kind, text = _difference(theirs, ours)
        if kind:
            number = int(ours.action.split()[0]) if ours.action[0].isdigit() else i
            return Outcome(kind, number, f"{ours.action}: {text}", values)
    if found.refusal:
        return Outcome("refused", len(found.entries), found.refusal, values)
    last = found.counts[-2:]
    plain = [entry for entry in found.entries if entry.action == "plain step"]
    if "captures" in checks and len(last) == 2 and not any(entry.error for entry in plain):
        runs, uncaptured, captures, replays = (b - a for a, b in zip(*last, strict=True))
        if runs and (uncaptured or captures or not replays) and not warnings.texts:
            text = f"plain steps at the end: {uncaptured} runs uncaptured, {captures} captures, "
            text += f"{replays} replays, and no warning\n{gravure.report()}"
            return Outcome("uncaptured", len(found.entries), text, values)
    if "alive" in checks:
        held = [weakref.ref(found.s.model), *map(weakref.ref, found.s.model.parameters())]
        vars(found.s).clear()
        gc.collect()
        alive = sum(ref() is not None for ref in held)
        if alive:
            text = f"{alive} of a dropped model and its parameters live on"
            return Outcome("alive", len(found.entries), text, values)
    return Outcome("equal", len(found.entries), "", values)


def _difference(theirs: Entry, ours: Entry) -> tuple[str, str]:
    if theirs.error is None and ours.error is not None:
        return "raised", f"eager raises nothing; compiled: {ours.error[0]}: {ours.error[1]}"
    if theirs.error is not None:
        if ours.error is None:
            return "not raised", f"eager: {theirs.error[0]}: {theirs.error[1]}; compiled: nothing"
        words = next((w for w in WORDS if w in theirs.error[1]), "")
        if words == "does not require grad" and "does not require a gradient" in ours.error[1]:
            return "", ""
        if words in AUTOGRADS and any(w in ours.error[1] for w in AUTOGRADS):
            return "", ""  # a graph is one node, which checks in an order of its own
        if _is_refusal(ours.error) and ours.error[0] != "ExportError":
            return "", ""
        traced = ours.error[0] in TRACERS and words not in AUTOGRADS
        other = words not in ours.error[1] or (not words and theirs.error[0] != ours.error[0])
        if other and not traced:
            return "other error", f"eager: {theirs.error}; compiled: {ours.error}"
    seen = {k: v for k, v in theirs.values.items() if not str(v).startswith("unreadable")}
    wrong = [k for k in seen if ours.values.get(k, "nothing") != seen[k]]
    wrong += [k for k in ours.values if k not in theirs.values]
    if not wrong:
        return "", ""
    name = wrong[0]
    pair = [_shown(side.values.get(name, "nothing")) for side in (theirs, ours)]
    return "difference", f"{', '.join(wrong[:6])} differ; {name}: eager {pair[0]}; ours {pair[1]}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple):
        return f"{_shown(value[0])}, requires_grad={value[1]}"
    if isinstance(value, tuple) and len(value) == 3 and value[2]:
        numbers = torch.frombuffer(bytearray(value[2]), dtype=value[0])
        return f"{str(numbers[:4].tolist())[:90]} of {value[0]}{list(value[1])}"
    return str(value)[:100]
