"""Holds what Gravure knows of every registered operator against PyTorch: schema, tags, small runs.

    PYTHONPATH=python python tests/python/operator_walk.py [--device=cuda] [--jobs=N] [--report=F]
    PYTHONPATH=python python tests/python/operator_walk.py --update

prints what is wrong; --update writes operators_unjudged_2.11.txt, or that of another torch, anew.
--jobs shares the operators out to processes that run at once; --journals names a folder to keep
what was found, and to go on from.

The inputs come from PyTorch's own samples (OpInfo), under modes that see each overload that they
call; from those, by parameter name, for in-place, out= and copy variants; and else from the schema.
Kernels that are called with inputs made from a schema may end the process, so they run in a fork;
not on a GPU, where no fork can have what its parent began. Now and then a sample ends it, too. So
the whole walk is a process, and another one goes on behind the operator that ended it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._inductor.inductor_prims
import torch._prims.rng_prims
import torch.distributed._functional_collectives
import torch.distributed._symmetric_memory
import torch.distributed.fsdp._fully_shard._fsdp_collectives
import torch.distributed.tensor
from gravure.library.load import program_class
from gravure.text.operators import operator_of
from gravure.text.program_text import HEADER, TypeWriter, constant_text
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

with contextlib.suppress(ImportError):
    import torchvision  # noqa: F401

RELEASE = ".".join(torch.__version__.split(".")[:2])
UNJUDGED = Path(__file__).with_name(f"operators_unjudged_{RELEASE}.txt")
PER_OPINFO, PER_OVERLOAD, PER_CAPTURE = 6, 5, 2
SECONDS = 30  # an operator that takes longer is ended
HANG_SECONDS = 90  # where no fork can be ended: all of its calls, and a program planned for each

Overload = Any  # torch._ops.OpOverload


# ---- what is registered, and what is known of it


@dataclass(frozen=True)
class Known:
    """Gravure's facts; parameters by position."""

    reason: str | None
    writes: frozenset[int]
    aliases: tuple[frozenset[int], ...]
    flags: frozenset[str]

    @staticmethod
    def of(schema: Any) -> Known | None:
        text = program_class().operator_facts(schema.name, schema.overload_name)
        if not text:
            return None
        data = json.loads(text)
        return Known(
            data["reason"],
            frozenset(data["writes"]),
            tuple(map(frozenset, data["aliases"])),
            frozenset(data["flags"]),
        )

    @property
    def fate(self) -> str:
        """What becomes of a call of it, as far as the operator alone decides."""
        if "numbers" in self.flags:
            return "numbers"
        return f"host: {self.reason}" if self.reason else "captured"


def text_of(schema: Any) -> str:
    return schema.name + (f".{schema.overload_name}" if schema.overload_name else "")


def registered() -> dict[str, Any]:
    """Schemas of all operators that the process has, by name with overload."""
    return {
        text_of(s): s
        for s in sorted(torch._C._jit_get_all_schemas(), key=text_of)
        if not s.name.startswith(("gravure", "cudagraph::"))
    }


def overload_of(schema: Any) -> Overload | None:
    space, name = schema.name.split("::")
    try:
        return getattr(getattr(getattr(torch.ops, space), name), schema.overload_name or "default")
    except (AttributeError, RuntimeError):
        return None


def has_kernel(name: str, *keys: str) -> bool:
    try:
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)
    except RuntimeError:
        return False  # TorchScript's own


def is_dispatched(name: str) -> bool:
    try:
        torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    except RuntimeError:
        return False
    return True


# ---- schema and tags


def is_open(schema: Any) -> bool:
    return "..." in str(schema)


def holds_tensors(kind: Any) -> bool:
    return "Tensor" in str(kind)


def sets_of(argument: Any, which: str = "before_set") -> set[str]:
    info = argument.alias_info
    return set(getattr(info, which)) if info else set()


def annotations(text: str) -> tuple[list[set[str]], list[bool], list[set[str]]]:
    """Of a printed schema: alias sets and writes of parameters, alias sets of returns."""
    body, _, result = text.partition(") ->")
    inside = body[body.index("(") + 1 :]
    parts, depth, at = [], 0, ""
    for c in inside + ",":
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            if at.strip() and at.strip() != "*":
                parts.append(at)
            at = ""
        else:
            at += c

    def sets(part: str) -> set[str]:
        found: set[str] = set()
        for group in re.findall(r"\(([a-z|*]+)!?(?: -> [a-z|*]+)?!?\)", part):
            found |= set(group.split("|"))
        return found

    def writes(part: str) -> bool:
        return re.search(r"\([a-z|* ]+!( -> [a-z|*]+)?\)", part) is not None

    returns, depth, at = [], 0, ""
    result = result.strip()
    if result.startswith("(") and result.endswith(")"):
        result = result[1:-1]
    for c in result + ",":
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            if at.strip():
                returns.append(at)
            at = ""
        else:
            at += c
    return [sets(p) for p in parts], [writes(p) for p in parts], [sets(r) for r in returns]


def against_schema(name: str, schema: Any, known: Known) -> Iterator[str]:
    """What the facts lack of what schema, tags and names say."""
    overload = overload_of(schema) if is_dispatched(name) else None
    tags = {str(t).split(".")[-1] for t in overload.tags} if overload else set()
    parameters, returns = schema.arguments, schema.returns
    if is_open(schema):
        if known.reason is None:
            yield "its parameters are open, and it has no reason"
        return
    sets, writes, results = annotations(str(schema))
    if len(sets) == len(parameters) and len(results) == len(returns):
        for i, written in enumerate(writes):
            if written and i not in known.writes:
                yield f"its schema writes '{parameters[i].name}'"
        for r, found in enumerate(results):
            for i, given in enumerate(sets):
                if found & given and i not in known.aliases[r]:
                    yield f"by its schema result {r} shares '{parameters[i].name}'"
            if "*" in found:
                for i, p in enumerate(parameters):
                    if may_be_tensor(p) and i not in known.aliases[r]:
                        yield f"result {r} is a wildcard, which may be '{p.name}'"
    elif "..." not in str(schema):
        yield "its printed schema was not understood"
    tensors = {i for i, p in enumerate(parameters) if holds_tensors(p.type)}
    random = "nondeterministic_seeded" in tags or any(
        "Generator" in str(p.type) for p in parameters
    )
    # Of attention, some backwards have the tag and some not: all are given the forward's draws.
    repeats = {"philox_seed", "philox_offset"} <= {p.name for p in parameters}
    if repeats and "random" in known.flags:
        yield "it is given the seed of draws that were made"
    if random and not repeats and "random" not in known.flags:
        yield "it draws by its tag or its generator"
    if "maybe_aliasing_or_mutating" in tags:
        for r, found in enumerate(known.aliases):
            if not tensors <= found:
                yield f"by its tag result {r} may be any operand"
    if "data_dependent_output" in tags and known.reason is None:
        yield "by its tag it reads data on the host"
    if "cudagraph_unsafe" in tags and known.reason is None:
        yield "it carries the tag cudagraph_unsafe"
    kinds = ("str", "Any", "ProcessGroup")  # Any from 2.15 on: a name, or a group itself
    groups = {p.name for p in parameters if any(kind in str(p.type) for kind in kinds)}
    takes_group = groups & {"group_name", "process_group", "group"}
    if takes_group and not known.flags & {"collective", "wait"}:
        yield "it takes a process group and does not communicate"
    if schema.overload_name.endswith("out"):
        plain_name = schema.overload_name.removesuffix("out").rstrip("_")
        sibling = INNER.get(schema.name + (f".{plain_name}" if plain_name else ""))
        if sibling and sibling.reason and not known.reason:
            yield f"without out= it is {sibling.reason}"
        if sibling and "random" in sibling.flags and "random" not in known.flags:
            yield "without out= it draws"
    quiet = known.reason or known.flags & {"effects", "numbers"}
    if not returns and not known.writes and not quiet:
        yield "it returns nothing, and has no effect"
    if returns and tensors and not any(map(may_be_tensor, returns)) and not known.writes:
        if not quiet:
            yield "its numbers come of tensors, and it reads nothing"
    if schema.name.endswith("_") and not schema.name.endswith("__"):
        if not known.writes and known.fate == "captured":
            yield "its name says that it writes"
    if any("__torch__" in str(p.type) for p in [*parameters, *returns]) and not known.reason:
        yield "it takes or returns an object"


def may_be_tensor(argument: Any) -> bool:
    return re.search(r"Tensor|Any|\bt\d?\b", str(argument.type)) is not None


# ---- a run on small inputs


@dataclass(frozen=True)
class Sample:
    """One call; its tensors are copies that nobody else has."""

    overload: Overload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Seen:
    """What one run did."""

    written: set[int] = field(default_factory=set)
    aliased: set[tuple[int, int]] = field(default_factory=set)  # return, parameter
    shared: set[tuple[int, int]] = field(default_factory=set)  # returns, in memory of no operand
    drew: bool = False
    inner: set[str] = field(default_factory=set)  # what a composite kernel called


def plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def copied(tensor: Tensor) -> Tensor:
    """The same bytes, strides and bits in memory of its own."""
    tensor = tensor.detach()
    if not plain(tensor) or type(tensor) is not Tensor:
        return tensor.clone()
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage().clone()
    fresh.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        fresh = torch._C._VariableFunctions._conj(fresh)
    if tensor.is_neg():
        fresh = torch._C._VariableFunctions._neg_view(fresh)
    return fresh


def copies(value: Any) -> Any:
    return tree_map_only(Tensor, copied, value)


def bound(sample: Sample) -> list[list[Tensor]]:
    """The tensors of each parameter."""
    found = []
    for i, p in enumerate(sample.overload._schema.arguments):
        value = sample.args[i] if i < len(sample.args) else sample.kwargs.get(p.name)
        found.append([t for t in tree_leaves(value) if isinstance(t, Tensor)])
    return found


def storage_bytes(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


def extent(tensor: Tensor) -> tuple[int, int] | None:
    """Where its storage lies; None if it has none."""
    if not plain(tensor) or tensor.device.type == "meta":
        return None
    storage = tensor.untyped_storage()
    begin = storage.data_ptr()
    return (begin, begin + storage.nbytes()) if begin and storage.nbytes() else None


def overlap(a: tuple[int, int] | None, b: tuple[int, int] | None) -> bool:
    return a is not None and b is not None and a[0] < b[1] and b[0] < a[1]


def by_return(sample: Sample, result: Any) -> list[list[Tensor]]:
    returns = sample.overload._schema.returns
    values = [result] if len(returns) == 1 else list(result or ())
    return [[t for t in tree_leaves(v) if isinstance(t, Tensor)] for v in values]


class Inner(TorchDispatchMode):
    """Names of the operators that a kernel calls."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Overload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(text_of(func._schema))
        return func(*args, **(kwargs or {}))


def generator_state(device: str) -> Tensor:
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def observe(sample: Sample, device: str) -> Seen:
    """Runs it on copies. Raises what the operator raises."""
    args, kwargs = copies(sample.args), copies(sample.kwargs)
    call = Sample(sample.overload, args, kwargs)
    operands = bound(call)
    before = [
        [(t, t._version, extent(t), storage_bytes(t).clone() if plain(t) else None) for t in each]
        for each in operands
    ]
    state = generator_state(device)
    with torch.no_grad():
        result = sample.overload(*args, **kwargs)
    seen = Seen(drew=not torch.equal(state, generator_state(device)))
    for i, each in enumerate(before):
        for tensor, version, former, old in each:
            moved = extent(tensor) != former
            if moved or tensor._version != version:
                seen.written.add(i)
            elif old is not None and not torch.equal(old, storage_bytes(tensor)):
                seen.written.add(i)
    results = by_return(call, result)
    extents = [[extent(t) for t in each] for each in results]
    sources = [[p for _, _, p, _ in each] for each in before]
    for r, each in enumerate(extents):
        for found in each:
            for i, given in enumerate(sources):
                if any(overlap(found, p) for p in given):
                    seen.aliased.add((r, i))
    flat = [(r, p) for r, each in enumerate(extents) for p in each]
    for (r, p), (s, q) in itertools.combinations(flat, 2):
        own = not any(overlap(p, given) for each in sources for given in each)
        if own and overlap(p, q):
            seen.shared.add((r, s))
    seen.inner = inner_of(sample)
    return seen


def inner_of(sample: Sample) -> set[str]:
    """What a composite kernel calls, which it does on every device."""
    name = text_of(sample.overload._schema)
    if has_kernel(name, "CUDA") or not hasattr(sample.overload, "_op_dk"):
        return set()
    for key in ("CompositeExplicitAutograd", "CompositeImplicitAutograd"):
        if not has_kernel(name, key):
            continue
        mode = Inner()
        dispatch_key = getattr(torch._C.DispatchKey, key)
        args, kwargs = copies(sample.args), copies(sample.kwargs)
        with contextlib.suppress(Exception), torch.no_grad(), mode:
            sample.overload._op_dk(dispatch_key, *args, **kwargs)
        return mode.names - {name}
    return set()


HOST_WORK = ("host-sync", "data-dependent-shape", "unsafe-operator")
# Kernels give an out= tensor its size by these, which does nothing where it has it.
RESIZES = ("aten::resize_", "aten::resize_as_", "aten::set_.source_Storage_storage_offset")


def against_run(schema: Any, known: Known, seen: Seen) -> Iterator[str]:
    parameters = schema.arguments
    for i in sorted(seen.written - known.writes):
        yield f"it writes '{parameters[i].name}'"
    for r, i in sorted(seen.aliased):
        if i not in known.aliases[r]:
            yield f"result {r} shares the memory of '{parameters[i].name}'"
    for r, s in sorted(seen.shared):
        if not known.aliases[r] & known.aliases[s] and text_of(schema) not in PIECES:
            yield f"results {r} and {s} share memory"
    if seen.drew and "random" not in known.flags:
        yield "it draws from the default generator"
    if known.reason is None and "numbers" not in known.flags and text_of(schema) not in BY_CALL:
        for name in sorted(seen.inner):
            inner = INNER.get(name)
            if inner and inner.reason in HOST_WORK and name not in RESIZES:
                yield f"it calls {name}, {inner.reason}"


INNER: dict[str, Known] = {}

# Whether these read on the host is decided for each call (passes/analysis/verdict.cpp).
BY_CALL = ("aten::one_hot",)
# Pieces of one new tensor. They run on the host, and no memory is planned for results of open size.
PIECES = ("aten::where", "aten::nonzero_numpy")


# ---- a capture on a GPU


def call_text(sample: Sample, result: Any) -> str:
    """A program of this one call. LookupError where program text cannot write an operand."""
    writer, inputs, schema = TypeWriter(), [], sample.overload._schema
    described = operator_of(sample.overload)

    def text(value: Any, parameter: Any) -> str:
        if isinstance(value, Tensor):
            name = f"t{len(inputs)}"
            inputs.append(f'%{name} : {writer.tensor(value)} {{user_input "{name}"}}')
            return f"%{name}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(text(v, parameter) for v in value)}]"
        if parameter.is_float and type(value) is int:
            value = float(value)
        if parameter.is_int and type(value) is bool:
            value = int(value)
        found = constant_text(value)
        if found is None:
            raise LookupError(f"{parameter.name} = {value!r}")
        return found

    words = [text(v, p) for v, p in zip(sample.args, described.parameters, strict=False)]
    by_name = {p.name: p for p in described.parameters}
    words += [f"{k}={text(v, by_name[k])}" for k, v in sample.kwargs.items()]
    values = [result] if len(schema.returns) == 1 else list(result or ())
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        values = list(values[0])
    kinds = ["Tensor[]" if isinstance(v, (list, tuple)) else writer.of(v) for v in values]
    outs = ", ".join(f"%o{i} : {kind}" for i, kind in enumerate(kinds))
    call = f"{text_of(schema)}({', '.join(words)})"
    statement = f"{outs} = {call}" if outs else call
    returned = ", ".join(f'%o{i} {{output "o{i}"}}' for i in range(len(kinds)))
    return f"{HEADER}\ngraph step({', '.join(inputs)}):\n  {statement}\n  return ({returned})\n"


def verdict_on(sample: Sample, result: Any) -> str | None:
    """Why Gravure keeps this call out of graphs; None if it captures it."""
    device = "cuda:0" if any(t.is_cuda for t in tensors_of(sample)) else "host"
    said = json.loads(program_class().explain(call_text(sample, result), device, {}))
    missed = [r["name"] for r in said["remarks"] if r["kind"] == "missed"]
    names = [name for name in missed if name != "too-small"]  # one call is no partition
    return names[0] if names else None


def against_capture(sample: Sample) -> Iterator[str]:
    """What a CUDA graph of a call that Gravure would capture does otherwise than eager."""

    def run() -> tuple[Any, Sample]:
        call = Sample(sample.overload, copies(sample.args), copies(sample.kwargs))
        with torch.no_grad():
            return sample.overload(*call.args, **call.kwargs), call

    def content(result: Any, call: Sample) -> list[Tensor]:
        found = [t for t in tree_leaves(result) if isinstance(t, Tensor)] + tensors_of(call)
        return [storage_bytes(t.contiguous()).clone() for t in found if plain(t)]

    result, call = run()
    if not any(t.is_cuda for t in [*tensors_of(call), *tree_leaves(result)] if torch.is_tensor(t)):
        return
    try:
        if verdict_on(sample, result) is not None:
            return
    except (LookupError, RuntimeError):  # no text for an operand, or none that is read
        return
    eager, again = content(result, call), content(*run())
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        yield f"it is captured, and waits for the device: {str(error).splitlines()[0][:120]}"
        return
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    held = Sample(sample.overload, copies(sample.args), copies(sample.kwargs))
    try:
        with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            kept = sample.overload(*held.args, **held.kwargs)
    except RuntimeError as error:
        torch.cuda.synchronize()
        yield f"it is captured, and cannot be: {str(error).splitlines()[0][:120]}"
        return
    graph.replay()
    torch.cuda.synchronize()
    same = "empty" not in sample.overload._schema.name and all(map(torch.equal, eager, again))
    if same and not all(map(torch.equal, eager, content(kept, held))):
        yield "a replay gives other bits than eager"


# ---- where inputs come from


def key_of(sample: Sample) -> str:
    """What tells two samples of one overload apart."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return repr(value)
        if not plain(value):
            return str(value.layout)
        return (value.dtype, value.dim(), value.numel() == 0, value.is_contiguous())

    leaves, spec = tree_flatten((sample.args, sample.kwargs))
    return f"{[one(leaf) for leaf in leaves]}{spec}"


class Samples:
    """Calls by operator, few of each."""

    def __init__(self) -> None:
        self.of: dict[str, list[Sample]] = defaultdict(list)
        self._keys: set[tuple[str, str]] = set()

    def add(self, overload: Overload, args: Any, kwargs: Any) -> None:
        name = text_of(overload._schema)
        held = self.of[name]
        if len(held) >= PER_OVERLOAD:
            return
        sample = Sample(overload, tuple(args), dict(kwargs))
        if any(type(t) not in (Tensor, torch.nn.Parameter) for t in tensors_of(sample)):
            return
        numbers = (p for p in overload._schema.arguments if not holds_tensors(p.type))
        given = dict(zip((p.name for p in overload._schema.arguments), args, strict=False))
        if any(isinstance((given | sample.kwargs).get(p.name), Tensor) for p in numbers):
            return  # a tensor taken as a number: Python's parser reads it, no operator does
        if any(t.numel() > 1 << 20 for t in tensors_of(sample)):
            return
        try:
            key = (name, key_of(sample))
            if key in self._keys:
                return
            held.append(Sample(overload, copies(sample.args), copies(sample.kwargs)))
            self._keys.add(key)
        except Exception:  # a tensor that cannot be copied
            return


def tensors_of(sample: Sample) -> list[Tensor]:
    return [t for t in tree_leaves((sample.args, sample.kwargs)) if isinstance(t, Tensor)]


class DispatchedCalls(TorchDispatchMode):
    """Sees what reaches a kernel."""

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self._samples = samples

    def __torch_dispatch__(
        self, func: Overload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self._samples.add(func, args, kwargs)
        return func(*args, **kwargs)


class FunctionCalls(TorchFunctionMode):
    """Sees what Python calls, composite operators too, which the dispatcher takes apart."""

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self._samples = samples

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        packet = getattr(torch.ops.aten, name, None) if name and name.isidentifier() else None
        if isinstance(packet, torch._ops.OpOverloadPacket):
            with contextlib.suppress(RuntimeError, TypeError):
                overload = torch._C._jit_resolve_packet(f"aten::{name}", *args, **kwargs)
                self._samples.add(getattr(packet, overload or "default"), args, kwargs)
        return func(*args, **kwargs)


def opinfos() -> Iterable[Any]:
    from torch.testing._internal import common_methods_invocations as found

    lists = (
        found.op_db,
        found.foreach_unary_op_db,
        found.foreach_binary_op_db,
        found.foreach_pointwise_op_db,
        found.foreach_reduce_op_db,
        found.foreach_other_op_db,
        found.python_ref_db,
    )
    return itertools.chain(*lists)


def sampled(device: str) -> Samples:
    """What PyTorch's own samples call, forward and backward, in place too."""
    samples = Samples()
    for info in opinfos():
        dtypes = info.supported_dtypes(device) or {torch.float32}
        dtype = torch.float32 if torch.float32 in dtypes else sorted(dtypes, key=str)[0]
        differentiable = info.supports_autograd and dtype.is_floating_point
        variants = [v for v in (info.op, info.inplace_variant) if v is not None]
        for i, variant in enumerate(variants):
            with contextlib.suppress(Exception):
                drawn = info.sample_inputs(device, dtype, requires_grad=differentiable and i == 0)
                for sample in itertools.islice(drawn, PER_OPINFO):
                    with contextlib.suppress(Exception):
                        run_opinfo(variant, sample, samples)
    return samples


def run_opinfo(variant: Callable[..., Any], sample: Any, samples: Samples) -> None:
    with DispatchedCalls(samples), FunctionCalls(samples):
        out = variant(sample.input, *sample.args, **sample.kwargs)
        grad = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
        if grad:
            torch.autograd.backward([t.abs().sum() if t.is_complex() else t.sum() for t in grad])


def family(name: str) -> str:
    """One name for add, add_, add_copy, _foreach_add: where inputs of one may serve another."""
    space, base = name.split("::")
    base = base.split(".")[0].rstrip("_")
    for end in ("_copy", "_functional", "_out", "_scatter", "_nocheck", "_hacked_twin"):
        base = base.removesuffix(end)
    for begin in ("_foreach_", "_unsafe_", "_sparse_", "_native_", "special_", "linalg_", "fft_"):
        base = base.removeprefix(begin)
    return base.strip("_")


def derived(schema: Any, sources: list[Sample]) -> Iterator[Sample]:
    """Calls of `schema` with operands of related operators, by name, and their results as out=."""
    overload = overload_of(schema)
    if overload is None:
        return
    for source in sources:
        theirs = source.overload._schema.arguments
        values = {p.name: a for p, a in zip(theirs, source.args, strict=False)} | source.kwargs
        outs = [p for p in schema.arguments if p.kwarg_only and p.alias_info is not None]
        made: list[Any] = []
        if outs:
            try:
                with torch.no_grad():
                    result = source.overload(*copies(source.args), **copies(source.kwargs))
            except Exception:
                continue
            made = [result] if len(source.overload._schema.returns) == 1 else list(result or ())
        args, kwargs, missing = [], {}, False
        for p in schema.arguments:
            if p in outs and made:
                kwargs[p.name] = copies(made.pop(0))
            elif p.name in values:
                value = values[p.name]
                if p.kwarg_only:
                    kwargs[p.name] = value
                else:
                    args.append(value)
            elif p.has_default_value():
                if not p.kwarg_only:
                    args.append(p.default_value)
            else:
                missing = True
                break
        if not missing:
            yield Sample(overload, tuple(copies(args)), copies(kwargs))


FLOATS = ((2, 3), (3, 3), (4,), (2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4, 4), ())
INDEX_NAMES = ("ind", "offset", "target", "length", "size", "row", "col", "perm", "pivots", "cu_")


def from_schema(schema: Any, device: str) -> Iterator[Sample]:
    """Calls with small operands that only the types and names of the parameters tell."""
    overload = overload_of(schema)
    if overload is None:
        return
    for shape in FLOATS:
        for ints in (1, 0, 2):
            for dtype in (torch.float32, torch.int64, torch.bool, torch.uint8):
                values = [operand(p, shape, ints, dtype, device) for p in schema.arguments]
                if any(v is NotImplemented for v in values):
                    return
                pairs = list(zip(schema.arguments, values, strict=True))
                args = tuple(v for p, v in pairs if not p.kwarg_only)
                kwargs = {p.name: v for p, v in pairs if p.kwarg_only}
                yield Sample(overload, args, kwargs)


def operand(p: Any, shape: tuple[int, ...], ints: int, dtype: torch.dtype, device: str) -> Any:
    kind = str(p.type).replace("SymInt", "int")
    if kind.startswith("Optional[") and not p.has_default_value():
        inner = kind.removeprefix("Optional[").removesuffix("]")
        kind = inner if inner in ("Tensor",) else "None"
    if p.has_default_value() and not holds_tensors(p.type):
        return p.default_value
    if kind.startswith("Optional[Tensor"):
        return None
    if kind == "None":
        return None
    generator = torch.Generator(device=device).manual_seed(len(p.name))
    if kind == "Tensor":
        if any(part in p.name for part in INDEX_NAMES):
            return torch.zeros(shape or (1,), dtype=torch.int64, device=device)
        if "mask" in p.name:
            return torch.ones(shape, dtype=torch.bool, device=device)
        if dtype.is_floating_point:
            return torch.rand(shape, dtype=dtype, device=device, generator=generator)
        return torch.ones(shape, dtype=dtype, device=device)
    if kind == "List[Tensor]" or kind == "List[Optional[Tensor]]":
        return [torch.rand(shape, device=device, generator=generator) for _ in range(2)]
    if kind == "int":
        if p.name == "dim" or p.name.endswith("dim"):
            return 0
        return {"dtype": 6, "start": 0, "end": 2, "reduction": 1}.get(p.name, ints)
    if kind == "float":
        return 0.5
    if kind in ("number", "Scalar"):
        return ints
    if kind == "bool":
        return ints == 2
    if kind == "str":
        return "mean"
    if kind == "Device":
        return torch.device(device)
    if kind == "complex":
        return 1j
    if kind.startswith("List[int") or kind == "int[]":
        return list(shape) if "size" in p.name else [ints] * (p.N or max(len(shape), 1))
    if kind.startswith("List[bool"):
        return [True] * (p.N or 2)
    if kind.startswith("List[float") or kind.startswith("List[number"):
        return [0.5] * (p.N or 2)
    return NotImplemented


# ---- the walk


@dataclass
class Report:
    judged: dict[str, str] = field(default_factory=dict)  # by what: samples, derived, schema
    unjudged: dict[str, str] = field(default_factory=dict)  # why not
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def add_wrong(self, name: str, found: Iterable[str]) -> None:
        held = self.wrong.setdefault(name, [])
        held.extend(f for f in found if f not in held)
        if not held:
            del self.wrong[name]


def judge(name: str, schema: Any, known: Known, calls: Iterable[Sample], device: str) -> Any:
    """What its runs contradict; None if no call succeeded."""
    wrong: list[str] = []
    ran = 0
    for call in calls:
        try:
            seen = observe(call, device)
        except Exception:
            if device == "cuda":
                torch.cuda.synchronize()  # an error that sticks ends the walk here
            continue
        wrong.extend(against_run(schema, known, seen))
        if device == "cuda" and ran < PER_CAPTURE and known.fate == "captured" and not seen.drew:
            wrong.extend(against_capture(call))
        ran += 1
        if ran >= PER_OVERLOAD:
            break
    return wrong if ran else None


def forked(names: list[str], work: Callable[[str], Any]) -> dict[str, Any]:
    """`work` of each name in a child of this process; without the names at which the child dies."""
    results: dict[str, Any] = {}
    left = list(names)
    while left:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            with contextlib.suppress(BaseException), os.fdopen(write, "wb") as pipe:
                for name in left:
                    signal.alarm(SECONDS)
                    pickle.dump(work(name), pipe)
                    pipe.flush()
            os._exit(0)
        os.close(write)
        done = 0
        with os.fdopen(read, "rb") as pipe, contextlib.suppress(EOFError, pickle.UnpicklingError):
            for name in left:
                results[name] = pickle.load(pipe)
                done += 1
        _, status = os.waitpid(child, 0)
        if done < len(left):
            print(f"{left[done]} ended its process: {status}", file=sys.stderr)
        left = left[done + 1 :]
    return results


class Journal:
    """What was found of each operator, in a file: the walk goes on behind the one that ended it."""

    def __init__(self, path: str) -> None:
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        self.found = {(by, name): rest[0] for by, name, *rest in lines if rest}
        self.fatal = {name for by, name, *rest in lines if not rest} - {n for _, n in self.found}
        self._file = open(path, "a")  # noqa: SIM115

    def note(self, by: str, name: str, work: Callable[[], Any]) -> Any:
        if name in self.fatal or (by, name) in self.found:
            return self.found.get((by, name))
        self._write(by, name)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        found = work()
        faulthandler.cancel_dump_traceback_later()
        self._write(by, name, found)
        return found

    def _write(self, *values: Any) -> None:
        print(json.dumps(values), file=self._file, flush=True)


@dataclass(frozen=True)
class Share:
    """The operators of one process of several: whole families, which share their samples."""

    index: int = 0
    of: int = 1

    @staticmethod
    def parse(text: str) -> Share:
        index, of = map(int, text.split("/"))
        return Share(index, of)

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    def has(self, name: str) -> bool:
        return zlib.crc32(family(name).encode()) % self.of == self.index


def walk_in_processes(
    device: str, *options: str, jobs: int = 1, journals: str | None = None
) -> dict[str, Any]:
    """The report of a walk that goes on in another process wherever a kernel ends one."""
    with contextlib.ExitStack() as stack:
        folder = journals or stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder).mkdir(parents=True, exist_ok=True)
        work = partial(walk_share, device, options, Path(folder))
        with ThreadPoolExecutor(jobs) as pool:
            reports = list(pool.map(work, [Share(i, jobs) for i in range(jobs)]))
    joined: dict[str, Any] = {"judged": {}, "unjudged": {}, "wrong": {}}
    for report in reports:
        for key, found in joined.items():
            found.update(report[key])
    lines = [line for report in reports for line in report["text"].splitlines(keepends=True)]
    return joined | {"text": "".join(sorted(lines))}


def walk_share(device: str, options: Iterable[str], folder: Path, share: Share) -> dict[str, Any]:
    stem = f"{share.index}_of_{share.of}"
    journal, report = folder / f"journal_{stem}", folder / f"report_{stem}"
    journal.touch()
    command = [sys.executable, __file__, "--device", device, "--share", str(share), *options]
    command += ["--journal", str(journal), "--report", str(report)]
    while not report.exists():
        before = journal.read_text().splitlines()
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        after = journal.read_text().splitlines()
        if report.exists():
            break
        if not after or len(json.loads(after[-1])) == 3:
            raise RuntimeError(f"the walk ended outside of an operator: {done.stderr[-4000:]}")
        if after == before:
            raise RuntimeError(f"the walk does not go on: {done.stderr[-4000:]}")
        by, name = json.loads(after[-1])
        print(f"{name} ({by}) ended its process: {done.returncode}", flush=True)
        print("\n".join(done.stderr.splitlines()[-12:]), flush=True)
    return json.loads(report.read_text())


# Not called with invented operands: they change the process, wait for it or end it.
NOT_CALLED = (
    "aten::set_grad_enabled",
    "aten::manual_seed",
    "aten::save",
    "aten::from_file",
    "aten::_cufft",
    "aten::warn",
    "aten::_print",
    "aten::backward",
    "prim::RaiseException",
    "prim::Print",
    "prim::rpc",
    "image::write_file",
    "image::read_file",
    "cuda::",
    "streams::",
    "debug",
)


def why_not_run(name: str, schema: Any, known: Known) -> str:
    """A reason that holds before any input is looked for; "" if there is none."""
    kinds = [str(a.type) for a in [*schema.arguments, *schema.returns]]
    if is_open(schema):
        return "its parameters are open"
    if any("__torch__" in k or "Capsule" in k or "PyObject" in k for k in kinds):
        return "takes or returns an object of a class"
    if "collective" in known.flags or "wait" in known.flags:
        return "communicates with other ranks"
    if name.startswith(NOT_CALLED):
        return "changes or ends the process that calls it"
    return ""


BACKENDS = (
    "CPU",
    "CUDA",
    "MkldnnCPU",
    "QuantizedCPU",
    "QuantizedCUDA",
    "SparseCPU",
    "SparseCUDA",
    "SparseCsrCPU",
    "SparseCsrCUDA",
    "NestedTensorCPU",
    "NestedTensorCUDA",
)


def no_kernel(name: str, device: str) -> str:
    composite = ("CompositeImplicitAutograd", "CompositeExplicitAutograd",
                 "CompositeExplicitAutogradNonFunctional")  # fmt: skip
    backend = "CUDA" if device == "cuda" else "CPU"
    if not is_dispatched(name) or has_kernel(name, backend, *composite):
        return ""
    kinds = [key for key in BACKENDS if has_kernel(name, key)]
    return f"has kernels for {', '.join(kinds)} alone" if kinds else "has no kernel here"


def walk(device: str, invent: bool, journal: Journal, share: Share) -> Report:
    """`journal`: what earlier walks found, which a kernel ended with their process."""
    report = Report()
    every = registered()
    known = {name: Known.of(schema) for name, schema in every.items()}
    INNER.update((name, facts) for name, facts in known.items() if facts)
    schemas = {name: schema for name, schema in every.items() if share.has(name)}
    for name, schema in schemas.items():
        facts = known[name]
        if facts is None:
            report.add_wrong(name, ["Gravure does not know it"])
            continue
        report.add_wrong(name, against_schema(name, schema, facts))
    samples = sampled(device)
    families: dict[str, list[Sample]] = defaultdict(list)
    left: list[str] = []

    def take(name: str, by: str, wrong: list[str]) -> None:
        report.judged[name] = by
        report.add_wrong(name, wrong)

    for name, schema in schemas.items():
        facts = known[name]
        if facts is None:
            continue
        why = why_not_run(name, schema, facts)
        if why:
            report.unjudged[name] = why
            continue
        calls = samples.of.get(name, [])
        wrong = None
        if calls:
            of_this = partial(judge, name, schema, facts, calls, device)
            wrong = journal.note("samples", name, of_this)
        if wrong is None:
            left.append(name)
            continue
        families[family(name)].extend(calls)
        take(name, "samples", wrong)
    for name in left:
        missing = no_kernel(name, device)
        if missing:
            report.unjudged[name] = missing
    left = [name for name in left if name not in report.unjudged]

    def derive(name: str) -> Any:
        schema = schemas[name]
        calls = derived(schema, families[family(name)])
        return judge(name, schema, INNER[name], calls, device)

    def make(name: str) -> Any:
        calls = itertools.islice(from_schema(schemas[name], device), 100)
        return judge(name, schemas[name], INNER[name], calls, device)

    for by, work in (("derived", derive), ("schema", make)):
        if by == "schema" and not invent:
            continue
        if device == "cuda":  # no fork has the parent's context
            names = left if by == "derived" else []
            found = {name: journal.note(by, name, partial(work, name)) for name in names}
        else:
            found = forked(left, work)
        for name, wrong in found.items():
            if wrong is not None:
                take(name, by, wrong)
        left = [name for name in left if name not in report.judged]
    report.unjudged |= dict.fromkeys(left, "no small inputs found")
    fatal = journal.fatal - set(report.judged)
    report.unjudged |= dict.fromkeys(fatal, "ends the process that calls it")
    return report


def unjudged_text(report: Report) -> str:
    """operators_unjudged_2.11.txt: name, what Gravure does with it, why nobody could look."""
    schemas = registered()
    lines = []
    for name, why in sorted(report.unjudged.items()):
        facts = Known.of(schemas[name])
        lines.append(f"{name} | {facts.fate if facts else '?'} | {why}\n")
    return "".join(lines)


def print_summary(
    judged: dict[str, str], unjudged: dict[str, str], wrong: dict[str, list[str]]
) -> None:
    for name, found in sorted(wrong.items()):
        print(f"{name}: {'; '.join(found)}")
    print(f"{len(judged)} judged ({dict(Counter(judged.values()))}), {len(unjudged)} not, "
          f"{len(wrong)} wrong")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--report")
    parser.add_argument("--no-invent", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--journals")
    parser.add_argument("--journal", help=argparse.SUPPRESS)  # what to go on from
    parser.add_argument("--share", type=Share.parse, default=Share(), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if not chosen.journal:
        if chosen.update and chosen.device != "cpu":
            parser.error("--update is for a walk without a GPU, whose list it is")
        options = ["--no-invent"] * chosen.no_invent
        found = walk_in_processes(
            chosen.device, *options, jobs=chosen.jobs, journals=chosen.journals
        )
        if chosen.jobs > 1:
            print_summary(found["judged"], found["unjudged"], found["wrong"])
        if chosen.update:
            UNJUDGED.write_text(found["text"])
        if chosen.report:
            Path(chosen.report).write_text(json.dumps(found))
        return 1 if found["wrong"] else 0
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    program_class()
    torch.manual_seed(0)
    report = walk(chosen.device, not chosen.no_invent, Journal(chosen.journal), chosen.share)
    data = {"judged": report.judged, "unjudged": report.unjudged, "wrong": report.wrong,
            "text": unjudged_text(report)}  # fmt: skip
    Path(chosen.report).write_text(json.dumps(data))
    if chosen.share.of == 1:
        print_summary(report.judged, report.unjudged, report.wrong)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
