"""Records an update, code that changes tensors in place, as a graph of ATen's calls.

Numbers that the code computes with are nodes of the graph, as what it reads of a tensor on the
host is; what it creates from Python's values is a constant.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from ..library.direct_calls import distinct_values
from ..torch_api.dispatch import TorchDispatchMode
from ..torch_api.dtensors import (
    is_dtensor,
    local_of,
    locals_of,
    lying_as,
    spec_of,
    specs_found_aside,
)
from ..torch_api.fake_tensors import FakeTensor, FakeTensorMode, unset_fake_temporarily
from ..torch_api.operators import pytree, schema_of
from .recorded_numbers import (
    OWN_STEP,
    Number,
    NumberBook,
    Unrecorded,
    recorded_functions,
    remembering,
)

_READ = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True)
class RecordedUpdate:
    """An update as a graph. Its placeholders: the tensors, and after them the numbers it uses.

    Of a DTensor it has what that holds on this rank.
    """

    graph: fx.GraphModule
    numbers: list[int]  # which of the numbers given
    conditions: list[str]  # Python, of all numbers given, `n`, and of the values of counters, `c`
    counters: list[int]  # which tensors have a value that conditions read
    reads: bool  # tensors, on the host
    specs: tuple[Any, ...] = ()  # how each result that is a DTensor lies on its mesh, or None
    after: tuple[str, ...] = ()  # Python, of `n`: numbers of Python's as the update leaves them


Run = Callable[[list[Tensor], list[float]], Sequence[Tensor] | None]


def conditions_of(
    update: RecordedUpdate, tensors: Sequence[Tensor]
) -> Callable[[list[float]], bool] | None:
    """Whether all that the update branched on is as it was, by its numbers; None: on nothing.

    `tensors`: those that it has for inputs now.
    """
    if not update.conditions:
        return None
    text = " and ".join(update.conditions)
    code = compile(f"lambda n, c: {text}", "<conditions>", "eval")
    holds = eval(code, _names())
    read = {i: local_of(tensors[i]) for i in update.counters}
    counters = [*read.values()]
    quick = conditions_on_counts(update) if _are_alike(counters) else None
    read_all = distinct_values()

    def hold(numbers: list[float]) -> bool:
        nonlocal quick
        # Nearly always all counters have one value, for which each condition holds.
        if quick is not None:
            with contextlib.suppress(ArithmeticError):
                values = read_all(counters)
                if quick(numbers, _distinct_values(counters) if values is None else values):
                    return True
        held = bool(holds(numbers, {i: t.item() for i, t in read.items()}))
        if held:  # counters differ, and will go on to differ
            quick = None
        return held

    return hold


def _are_alike(counters: list[Tensor]) -> bool:
    kinds = {(t.dtype, t.device.type) for t in counters}
    return kinds in ({(torch.float32, "cpu")}, {(torch.float64, "cpu")})


def _distinct_values(counters: list[Tensor]) -> list[float]:
    """The distinct values of counters, tensors of one number on the CPU. An optimizer has one for
    each parameter, and reading them one by one takes a tenth of a small step."""
    with torch.no_grad():
        values: list[float] = torch.stack(counters).tolist()
    distinct = dict.fromkeys(values)
    return values if 0.0 in distinct else [*distinct]  # which equals -0.0


_COUNTER = re.compile(r"c\[\d+\]")


def conditions_on_counts(
    update: RecordedUpdate,
) -> Callable[[list[float], list[float]], bool] | None:
    """Whether all conditions hold for all numbers and for each value that a counter has; None where
    one of them is on two counters."""
    found = [set(_COUNTER.findall(condition)) for condition in update.conditions]
    if any(len(counters) > 1 for counters in found):
        return None
    each = dict.fromkeys(_COUNTER.sub("c", condition) for condition in update.conditions)
    on_counts = [text for text in each if re.search(r"\bc\b", text)]
    on_numbers = [text for text in each if text not in on_counts]
    first = " and ".join(on_numbers) or "True"
    second = " and ".join(on_counts)
    text = f"({first}) and all({second} for c in counts)" if second else first
    code = compile(f"lambda n, counts: {text}", "<conditions>", "eval")
    holds: Callable[[list[float], list[float]], bool] = eval(code, _names())
    return holds


def numbers_after(update: RecordedUpdate) -> Callable[[list[float]], list[float]] | None:
    """Python's numbers as an update leaves them, of the numbers that it is given; None: it changes
    none."""
    if not update.after:
        return None
    code = compile(f"lambda n: [{', '.join(update.after)}]", "<numbers>", "eval")
    found: Callable[[list[float]], list[float]] = eval(code, _names())
    return found


def _names() -> dict[str, Any]:
    return {"rounded": rounded, "sqrt": math.sqrt}


def record(run: Run, tensors: Sequence[Tensor], numbers: Sequence[float]) -> RecordedUpdate:
    """What `run` does with stand-ins of `tensors`, and with these numbers; what it returns is the
    graph's result.

    Raises Unrecorded where it does what is no program. It is run twice, with other marks: a mark
    that went into a constant unseen shows itself.
    """
    first, second = (_record(run, tensors, numbers, shift) for shift in (1, 2))
    if first.signature() != second.signature():
        raise Unrecorded(
            "a number of its step", "goes into something that is not recorded", OWN_STEP
        )
    return first.update()


class _Recording(TorchDispatchMode):
    """Each call below autograd, as a node."""

    def __init__(self, tensors: Sequence[Tensor], shift: int) -> None:
        super().__init__()
        self.root = torch.nn.Module()
        self.graph = fx.Graph()
        self.book = NumberBook(self.graph, shift)
        self.alive: list[Tensor] = []  # so that no other tensor has the `id` of one
        self.nodes: dict[int, fx.Node] = {}  # of each tensor, by its `id`
        # By the `id` of a tensor on the CPU that counts: its value as Python, of `c`, and by now.
        self.counters: dict[int, str] = {}
        self.values: dict[int, float] = {}
        self.inputs: list[fx.Node] = []  # placeholders of tensors
        self.given: list[fx.Node] = []  # and of numbers
        self.results: list[fx.Node] = []
        self.specs: tuple[Any, ...] = ()  # RecordedUpdate.specs

    def add_tensor(self, fake: Tensor, real: Tensor) -> None:
        node = self.graph.placeholder(f"tensor{len(self.inputs)}")
        if real.device.type == "cpu" and real.dim() == 0 and real.dtype.is_floating_point:
            self.counters[id(fake)] = f"c[{len(self.inputs)}]"
            with unset_fake_temporarily():
                self.values[id(fake)] = float(real.item())
        self.inputs.append(node)
        self.know(fake, node)

    def know(self, value: Any, node: fx.Node) -> None:
        node.meta["val"] = value
        if isinstance(value, Tensor):
            self.alive.append(value)
            self.nodes[id(value)] = node

    def result(self, value: Any) -> fx.Node:
        node = self.nodes.get(id(local_of(value)))
        if node is None or node.op != "call_function":
            raise Unrecorded("what it returns", "is no tensor that it computes", OWN_STEP)
        return node

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ("profiler", "prim"):  # what is said, and asked of a stand-in
            return func(*args, **kwargs)
        if func is _READ:
            raise Unrecorded("its step", "reads a number in a way that is not seen", OWN_STEP)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Unrecorded("its step", f"draws random numbers ({func})", OWN_STEP)
        if any(map(is_dtensor, pytree.tree_leaves((args, kwargs)))):
            return NotImplemented  # it comes again, with what they hold
        if func is not torch.ops.aten.lift_fresh.default:
            _refuse_unknown((args, kwargs))
        self._refuse_ints(func, (args, kwargs))
        if torch.Tag.inplace_view in func.tags and self.nodes[id(args[0])].op == "placeholder":
            raise Unrecorded("its step", f"changes a tensor's shape in place ({func})", OWN_STEP)
        taken = pytree.tree_map(self._argument, (tuple(args), dict(kwargs)))
        result = func(*args, **kwargs)
        node = self.graph.call_function(func, *taken)
        node.meta["val"] = result
        self._advance(func, args, kwargs)
        if isinstance(result, Tensor):
            if id(result) not in self.nodes:
                self.know(result, node)
        elif isinstance(result, (tuple, list)):
            for i, member in enumerate(result):
                if isinstance(member, Tensor) and id(member) not in self.nodes:
                    self.know(member, self.graph.call_function(operator.getitem, (node, i)))
        return result

    def _refuse_ints(self, func: Any, arguments: Any) -> None:
        """Raises Unrecorded for an int of Python's where its being one decides what is computed:
        the program has a float."""
        leaves = pytree.tree_leaves(arguments)
        if any(isinstance(v, Tensor) and v.dtype.is_floating_point for v in leaves):
            return
        numbers = [self.book.marked(v) for v in leaves if type(v) is float]
        if any(number is not None and number.whole for number in numbers):
            raise Unrecorded("its step", f"gives an int that changes to {func}", OWN_STEP)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self.nodes:
                if isinstance(value, FakeTensor):
                    raise Unrecorded("its step", "uses a tensor from before", OWN_STEP)
                self._constant(value)  # made of Python's values
            return self.nodes[id(value)]
        if type(value) is float:
            number = self.book.marked(value)
            return value if number is None else number.node
        return value

    def _constant(self, value: Tensor) -> None:
        with unset_fake_temporarily():
            held = value.detach().clone()
        name = f"constant{len(self.alive)}"
        setattr(self.root, name, held)
        node = self.graph.get_attr(name)
        node.meta["val"] = value
        self.alive.append(value)
        self.nodes[id(value)] = node

    def _advance(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps the values of counters that count; of what else is written they are unknown."""
        schema = schema_of(func)
        by = self._count(args[1], kwargs) if len(args) > 1 else None
        for argument, value in zip(schema.arguments, args, strict=False):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in value if isinstance(value, (tuple, list)) else [value]:
                source = self.counters.get(id(tensor))
                if source is None:
                    continue
                if by is None or schema.name not in ("aten::add_", "aten::_foreach_add_"):
                    del self.counters[id(tensor)]
                    continue
                exact = tensor.dtype == torch.float64
                if tensor.dtype not in (torch.float32, torch.float64):
                    del self.counters[id(tensor)]
                    continue
                total = self.values[id(tensor)] + by
                self.values[id(tensor)] = total if exact else rounded(total)
                self.counters[id(tensor)] = f"({source} + {by!r})" if exact else (
                    f"rounded({source} + {by!r})"
                )  # fmt: skip

    def _count(self, value: Any, kwargs: dict[str, Any]) -> float | None:
        """What is added, where it is the same each time."""
        if kwargs.get("alpha", 1) != 1:
            return None
        if isinstance(value, Tensor):
            node = self.nodes.get(id(value))
            while node is not None and node.op == "call_function":
                if node.target is not torch.ops.aten.lift_fresh.default:
                    return None
                node = node.args[0]  # type: ignore[assignment]
            if node is None or node.op != "get_attr":
                return None
            held = getattr(self.root, str(node.target))
            with unset_fake_temporarily():
                return float(held.item()) if held.dim() == 0 else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return None if self.book.marked(float(value)) is not None else float(value)

    def signature(self) -> list[Any]:
        """All of the graph, with its constants."""
        index = {node: i for i, node in enumerate(self.graph.nodes)}

        def plain(value: Any) -> Any:
            return f"%{index[value]}" if isinstance(value, fx.Node) else repr(value)

        found: list[Any] = [self.book.conditions]
        for node in self.graph.nodes:
            held = ""
            if node.op == "get_attr":
                with unset_fake_temporarily():
                    held = repr(getattr(self.root, str(node.target)).tolist())
            parts = pytree.tree_leaves((node.args, node.kwargs))
            found.append((str(node.target), held, list(map(plain, parts))))
        return found

    def update(self) -> RecordedUpdate:
        self.graph.output(tuple(self.results))
        for node in reversed(list(self.graph.nodes)):
            number = isinstance(node.meta.get("val"), float)
            if number and not node.users and node.op != "placeholder":
                self.graph.erase_node(node)
        numbers = [i for i, node in enumerate(self.given) if node.users]
        for node in self.given:
            if not node.users:
                self.graph.erase_node(node)
        conditions = list(dict.fromkeys(self.book.conditions))
        read = [i for i in range(len(self.inputs)) if any(f"c[{i}]" in c for c in conditions)]
        reads = bool(read or self.graph.find_nodes(op="call_function", target=_READ))
        graph = fx.GraphModule(self.root, self.graph)
        return RecordedUpdate(graph, numbers, conditions, read, reads, self.specs)


def _refuse_unknown(arguments: Any) -> None:
    for value in pytree.tree_leaves(arguments):
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
            shape = list(value.shape)
            what = f"uses a tensor of shape {shape} that is neither an argument nor made in it"
            raise Unrecorded("its step", what, OWN_STEP)


class _Reads(TorchFunctionMode):
    """Python's reads of a tensor's value, and tensors that it makes of numbers."""

    def __init__(self, recording: _Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.item and id(args[0]) in self._recording.nodes:
            return self._read(args[0])
        if func in _CONVERSIONS:
            raise Unrecorded("its step", f"reads a tensor by {func.__name__}", OWN_STEP)
        if func in (torch.as_tensor, torch.tensor) and len(args) == 1:
            value = args[0]
            if type(value) is Number and kwargs.keys() <= {"dtype", "device"}:
                return torch.full((), value, dtype=kwargs.get("dtype", torch.get_default_dtype()),
                                  device=kwargs.get("device", "cpu"))  # fmt: skip
        is_lerp = getattr(func, "__name__", "") == "_foreach_lerp_"
        if is_lerp and len(args) > 2 and isinstance(args[2], Tensor):  # its parser would read it
            return func(args[0], args[1], self._read(args[2]), *args[3:], **kwargs)
        if func is Tensor.__setitem__ and type(args[2]) is Number:
            _refuse_marks(func, args[:2], {})
            value = torch.full((), args[2], dtype=args[0].dtype, device=args[0].device)
            return func(args[0], args[1], value)
        _refuse_marks(func, args, kwargs)
        return func(*args, **kwargs)

    def _read(self, tensor: Tensor) -> float:
        if not tensor.dtype.is_floating_point or tensor.numel() != 1:
            raise Unrecorded("its step", f"reads a {tensor.dtype} on the host", OWN_STEP)
        recording = self._recording
        node = recording.graph.call_function(_READ, (recording.nodes[id(tensor)],))
        source = recording.counters.get(id(tensor))
        real = recording.values[id(tensor)] if source is not None else _UNKNOWN
        return recording.book.make(node, real, source)


def _refuse_marks(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises Unrecorded where PyTorch's parsers would make something of a number's mark."""
    name = getattr(func, "__name__", "")
    given = [*args, *kwargs.values()]
    if not name.startswith("_foreach_"):  # which take lists of numbers as they are
        inner = [value for value in given if isinstance(value, (list, tuple, dict))]
        if any(type(leaf) is Number for leaf in pytree.tree_leaves(inner)):
            what = f"gives {name} a number within a list"
            raise Unrecorded("its step", what, OWN_STEP)
    consumes = name in _CONSUMERS or name.startswith("linalg_")
    if consumes and any(type(value) is Number for value in given):
        raise Unrecorded("its step", f"gives {name} a number", OWN_STEP)


# Functions that make a constant of a number, or choose by it what they compute.
_CONSUMERS = frozenset(
    "tensor as_tensor asarray new_tensor new arange range logspace norm float_power "
    "__getitem__ __setitem__".split()
)
_UNKNOWN = 0.37  # stands for a value that nobody may branch on
_CONVERSIONS = (Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__, Tensor.tolist)


def rounded(value: float) -> float:
    """To a float32, as a tensor of one holds it."""
    return struct.unpack("f", struct.pack("f", value))[0]  # type: ignore[no-any-return]


def _record(
    run: Run, tensors: Sequence[Tensor], numbers: Sequence[float], shift: int
) -> _Recording:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    held = locals_of(tensors)
    fakes = [mode.from_tensor(t.detach(), static_shapes=True) for t in held]
    recording = _Recording(fakes, shift)
    for fake, real in zip(fakes, held, strict=True):
        recording.add_tensor(fake, real)
    made: list[float] = []
    for i, value in enumerate(numbers):
        node = recording.graph.placeholder(f"number{i}")
        recording.given.append(node)
        whole = isinstance(value, int)
        made.append(recording.book.make(node, float(value), f"n[{i}]", whole=whole))
    given = [lying_as(spec_of(t), fake) for t, fake in zip(tensors, fakes, strict=True)]
    inside = (mode, recording, _Reads(recording), torch.no_grad(), recorded_functions())
    with contextlib.ExitStack() as stack:
        stack.enter_context(remembering())
        if any(map(is_dtensor, tensors)):
            stack.enter_context(specs_found_aside())
        for each in inside:
            stack.enter_context(each)
        results = run(given, made) or ()
    recording.results = [recording.result(value) for value in results]
    recording.specs = tuple(map(spec_of, results))
    return recording
