"""Graphs with regions as compiled code: where the passes would cut partitions."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from ..errors import ExportError
from ..torch_api.dynamo_errors import first_line
from ..torch_api.fake_tensors import FakeTensorMode, mode_of_any
from ..torch_api.operators import pytree
from .attention_seeds import seeds_of
from .compiled_ops import CompiledCode, Layout
from .donated import sharing
from .known_numbers import KnownNumbers
from .node_facts import (
    costs_nothing,
    is_collective,
    is_graph,
    is_inductors_own,
    is_known,
    is_on_cpu,
    is_recurrent,
    number_of,
    runs_on_cpu,
    schema,
    takes_member,
    takes_numbers,
    writes,
)
from .read_graph import ReadGraph

logger = logging.getLogger("gravure")

# Sections of the plan: of each a kind, then statements by their position in the text
# (python/csrc/planning/planned_sections.h).
Sections = Sequence[Sequence[int]]
_HOST_SECTION, _DRAWS = -1, -3  # kinds; the latter, behind all sections, says which nodes draw


def has_host_parts(sections: Sections) -> bool:
    """True if anything but numbers is computed outside of partitions."""
    return any(section[0] == _HOST_SECTION for section in sections)


class Compiler(Protocol):
    """Compiles one region, as inductor.compile_region does."""

    def __call__(
        self, module: fx.GraphModule, *, donated: Sequence[int]
    ) -> Callable[[list[Any]], Sequence[Tensor]]: ...


@dataclass
class CutGraph:
    """A graph with calls of `codes` for its regions. Somebody must hold these."""

    module: fx.GraphModule
    codes: list[CompiledCode] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)  # why a region stayed as it was


def compile_regions(
    module: fx.GraphModule,
    owners: Sequence[fx.Node | None],
    sections: Sections,
    known: KnownNumbers,
    label: str,
    compiler: Compiler,
    donatable: Collection[fx.Node] = (),
) -> CutGraph:
    """A copy of `module` in planned order, each region of a partition as one call.

    `owners` says for each statement of the text which node it was written for. A region that the
    compiler refuses stays as it was; `missed` says why. The last code that reads a placeholder of
    those that are `donatable` may write over it.
    """
    draws = {owners[at] for kind, *statements in sections if kind == _DRAWS for at in statements}
    cutter = _Cutter(module, known, label, compiler, draws, sharing(module, donatable))
    for partition, nodes in _planned(module, owners, sections):
        if partition < 0:
            cutter.copy(nodes)
            continue
        numbers, nodes = _ready(nodes, cutter.is_elsewhere)
        cutter.copy(numbers)  # first, so that they divide no region
        for region, rest in _alternating(nodes, cutter.can_be_compiled):
            cutter.compile(region)
            cutter.copy(rest)
    return cutter.finish()


# ---- the plan's order


def _planned(
    module: fx.GraphModule, owners: Sequence[fx.Node | None], sections: Sections
) -> Iterator[tuple[int, list[fx.Node]]]:
    """The calls of `module` in planned order, by sections, each with the index of its partition; -1
    for those outside of partitions.

    A node without a statement (a member of a tuple, a known number) goes with what it is made of.
    """
    planned: dict[fx.Node, tuple[int, int]] = {}  # position of its last statement, partition
    position = 0
    for kind, *statements in sections:
        for at in statements if kind != _DRAWS else ():
            position += 1
            node = owners[at]
            if node is None or node.graph is not module.graph:
                continue
            partition = kind
            if node in planned and planned[node][1] != kind:
                partition = -1  # its statements lie apart
            planned[node] = (position, max(partition, -1))
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    for node in nodes:
        made_of = [planned[i] for i in node.all_input_nodes if i in planned]
        latest = max(made_of, default=(0, -1))
        own, partition = planned.get(node, latest)
        # What a node is made of may end later: of its several statements only the first is needed.
        planned[node] = max(own, latest[0]), partition
    nodes.sort(key=lambda node: planned[node][0])  # stable
    group: list[fx.Node] = []
    for node in nodes:
        if group and planned[node][1] != planned[group[-1]][1]:
            yield planned[group[-1]][1], group
            group = []
        group.append(node)
    if group:
        yield planned[group[-1]][1], group


def _alternating(
    nodes: list[fx.Node], wanted: Callable[[fx.Node], bool]
) -> Iterator[tuple[list[fx.Node], list[fx.Node]]]:
    """Cuts a partition: what can be compiled as early as may be, then what cannot, and so on.

    A node that writes stays behind all before it and ahead of all after it.
    """
    left = nodes
    while left:
        region, left = _ready(left, wanted)
        rest, left = _ready(left, lambda node: not wanted(node))
        yield region, rest


def _ready(
    nodes: list[fx.Node], wanted: Callable[[fx.Node], bool]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes that are wanted and may run before all others, and these others; both in order."""
    taken: list[fx.Node] = []
    left: dict[fx.Node, None] = {}
    writer_left = False  # nothing behind it may run before it
    for node in nodes:
        may_move = not writer_left and not (writes(node) and left)
        if may_move and wanted(node) and left.keys().isdisjoint(node.all_input_nodes):
            taken.append(node)
        else:
            left[node] = None
            writer_left |= writes(node)
    return taken, list(left)


# ---- the new graph


def say_what_constants_are(module: fx.GraphModule) -> None:
    """Gives each tensor constant of the graph its `meta["val"]`."""
    nodes = module.graph.find_nodes(op="placeholder")
    mode = mode_of_any(n.meta.get("val") for n in nodes)
    for node in module.graph.nodes:
        if node.op != "get_attr" or "val" in node.meta:
            continue
        held = operator.attrgetter(str(node.target))(module)
        if isinstance(held, Tensor):
            node.meta["val"] = mode.from_tensor(held.detach(), static_shapes=True)


class _Cutter:
    """Writes the new graph: nodes are copied, or compiled as regions, in the order of the calls."""

    def __init__(
        self,
        module: fx.GraphModule,
        known: KnownNumbers,
        label: str,
        compiler: Compiler,
        draws: set[fx.Node | None],
        donatable: dict[fx.Node, set[fx.Node]],
    ) -> None:
        """`donatable`: with all nodes that have their memory."""
        self._module = module
        self._known = known
        self._label = label
        self._compiler = compiler
        self._draws = draws
        self._donatable = donatable
        self._done: set[fx.Node] = set()  # what stands in the new graph, as it is or in code
        self._graph = fx.Graph()
        self._env: dict[fx.Node, fx.Node] = {}
        self._codes: list[CompiledCode] = []
        self._missed: list[str] = []
        say_what_constants_are(module)
        self._on_cpu = runs_on_cpu(module)
        self.copy([n for n in module.graph.nodes if n.op in ("placeholder", "get_attr")])

    def copy(self, nodes: list[fx.Node]) -> None:
        for node in nodes:
            self._env[node] = self._graph.node_copy(node, self._env.__getitem__)
        self._done.update(nodes)

    def finish(self) -> CutGraph:
        self.copy(self._module.graph.find_nodes(op="output"))
        module = ReadGraph(self._module, self._graph)
        module.meta = dict(self._module.meta)
        return CutGraph(module, self._codes, self._missed)

    def can_be_compiled(self, node: fx.Node) -> bool:
        if takes_member(node):
            source = node.args[0]
            return isinstance(source, fx.Node) and self.can_be_compiled(source)
        if not is_inductors_own(node) and schema(node) is None:
            return False
        if writes(node) or is_collective(node) or is_recurrent(node):
            return False
        operands = [n for n in node.all_input_nodes if not is_graph(n)]
        numbers = any(map(self.is_elsewhere, operands))
        if self.is_elsewhere(node) or (numbers and not takes_numbers(node)):
            return False  # Inductor's code may copy it to the GPU, which cannot be captured
        return all(is_known(n.meta.get("val"), self._known) for n in [node, *operands])

    def is_elsewhere(self, node: fx.Node) -> bool:
        """Whether it is on the CPU, and the program is not: in a partition a constant, since the
        planner keeps all else of the CPU's out of partitions."""
        return not self._on_cpu and is_on_cpu(node)

    def compile(self, nodes: list[fx.Node]) -> None:
        calls = sum(not costs_nothing(n) and not takes_member(n) for n in nodes)
        if calls < 2:  # nothing to fuse
            return self.copy(nodes)
        region = _Region(self._module, nodes, self._known)
        if not region.outputs:
            return self.copy(nodes)
        label = f"{self._label} {len(self._codes)}"
        random = not self._draws.isdisjoint(nodes)
        donated = region.put_last([] if random else self._donated(region, nodes))
        try:
            run = self._compiler(region.module, donated=donated)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            logger.warning(
                "%s: Inductor cannot compile %d of its operators, which run as they are: %s",
                label, calls, reason,
            )  # fmt: skip
            self._missed.append(f"compile-failed: {label}: {reason}")
            return self.copy(nodes)
        inputs, outputs = region.layouts()
        code = CompiledCode(
            label, run, inputs, outputs, random=random, donated=len(donated), seeds=region.seeds()
        )
        self._codes.append(code)
        self._call(code, region, calls, len(donated))
        self._done.update(nodes)

    def _donated(self, region: _Region, nodes: list[fx.Node]) -> list[fx.Node]:
        """Inputs of the region that nobody needs behind it, by whatever name."""
        over = self._done.union(nodes)
        found = []
        for node in region.inputs:
            same = self._donatable.get(node)
            if same is None or not same.isdisjoint(region.outputs):
                continue
            users = {user for each in same for user in each.users}
            alone = sum(each in same for each in region.inputs) == 1
            if alone and users <= over and not region.has_result_like(node):
                found.append(node)
        return found

    def _call(self, code: CompiledCode, region: _Region, calls: int, donated: int) -> None:
        operands = [self._env[node] for node in region.inputs]
        kept = len(operands) - donated
        arguments = (operands[:kept], operands[kept:]) if donated else (operands,)
        call = self._graph.call_function(code.operator, (code.name, calls, *arguments))
        call.meta = {
            key: value
            for key, value in region.first.meta.items()
            if key in ("stack_trace", "nn_module_stack", "fwd_nn_module_stack")
        }
        call.meta["val"] = [node.meta["val"] for node in region.outputs]
        for i, node in enumerate(region.outputs):
            member = self._graph.call_function(operator.getitem, (call, i))
            member.meta = dict(node.meta)
            self._env[node] = member
        self.copy(region.views)


def _may_lie_over(result: Any, operand: Tensor) -> bool:
    """As Inductor asks (`can_match_buffer_size`): the same dtype, and about as large."""
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return any(
        leaf.dtype == operand.dtype and 0.9 * operand.numel() <= leaf.numel() <= operand.numel()
        for leaf in leaves
    )


class _Region:
    """Some nodes as a module of their own, which takes `inputs` and `numbers`, and returns the
    `outputs` that others need; with `always` all of them.

    Of what others need, views and numbers (`views`) are made again, outside, of what the module
    takes and returns, so that no two of its tensors share memory.
    """

    def __init__(
        self,
        owner: fx.GraphModule,
        nodes: list[fx.Node],
        known: KnownNumbers,
        *,
        always: bool = False,
    ) -> None:
        inside = set(nodes)
        self.first = nodes[0]
        needed = [n for n in nodes if always or any(user not in inside for user in n.users)]
        views = {n for n in needed if costs_nothing(n)}
        pending = list(views)
        outputs = {n for n in needed if n not in views}
        while pending:
            for source in pending.pop().all_input_nodes:
                if source not in inside or source in views:
                    continue
                if costs_nothing(source):
                    views.add(source)
                    pending.append(source)
                elif isinstance(source.meta.get("val"), Tensor):
                    outputs.add(source)
        self.outputs = [n for n in nodes if n in outputs]
        self.views = [n for n in nodes if n in views]
        self.inputs: list[fx.Node] = []
        self.numbers: list[fx.Node] = []  # what else it takes: ints known only at run time
        self._known = known
        self._mode = FakeTensorMode() if known else None
        self._env: dict[fx.Node, Any] = {}
        self._graph = fx.Graph()
        self._seeds = seeds_of(nodes)
        for node in nodes:
            self._take(node, inside)
        for number in self.numbers:
            self._env[number] = self._graph.placeholder(number.name)
        for node in nodes:
            arguments = fx.node.map_arg((node.args, node.kwargs), self._env.__getitem__)
            copy = self._graph.call_function(node.target, *arguments)
            copy.meta = dict(node.meta)
            self._env[node] = copy
        self._graph.output(tuple(self._env[n] for n in self.outputs))
        self.module = fx.GraphModule(owner, self._graph)

    def put_last(self, nodes: Sequence[fx.Node]) -> range:
        """Makes these its last inputs, in this order. Their positions among all."""
        if not nodes:
            return range(0)
        for node in nodes:
            placeholders = self._graph.find_nodes(op="placeholder")
            if placeholders[-1] is not self._env[node]:
                placeholders[-1].append(self._env[node])
            self.inputs.remove(node)
            self.inputs.append(node)
        self.module.recompile()
        return range(len(self.inputs) - len(nodes), len(self.inputs))

    def seeds(self) -> list[int]:
        """Which of its inputs attention_seeds.py is about."""
        return [at for at, node in enumerate(self.inputs) if node in self._seeds]

    def has_result_like(self, node: fx.Node) -> bool:
        """Whether a result might lie over this input, so that it would be copied."""
        return any(_may_lie_over(r.meta["val"], node.meta["val"]) for r in self.outputs)

    def _take(self, node: fx.Node, inside: set[fx.Node]) -> None:
        """Makes each operand from outside a placeholder, or the number that it is."""
        for operand in node.all_input_nodes:
            if operand in inside or operand in self._env:
                continue
            value = operand.meta.get("val")
            if is_graph(operand):
                self._env[operand] = self._graph.node_copy(operand)
                continue
            if not isinstance(value, Tensor):
                self._env[operand] = number = number_of(value, self._known)
                if number is None and isinstance(value, torch.SymInt):
                    self.numbers.append(operand)
                elif number is None and value is not None:
                    raise ExportError(
                        f"%{node.name}",
                        f"it takes %{operand.name}, which is known only at run time and is no int",
                        "pass it as a tensor",
                    )
                continue
            placeholder = self._graph.placeholder(operand.name)
            placeholder.meta = {"val": self._static(value)}
            self._env[operand] = placeholder
            self.inputs.append(operand)

    def _static(self, value: Tensor) -> Tensor:
        layout = self._layout(value)
        if self._mode is None or layout.is_open:
            return value
        with self._mode:
            return torch.empty_strided(
                layout.size, layout.stride, dtype=value.dtype, device=value.device
            )

    def _layout(self, value: Tensor) -> Layout:
        size, stride = (
            tuple(number_of(n, self._known) for n in numbers)
            for numbers in (value.shape, value.stride())
        )
        return Layout(size, stride)

    def layouts(self) -> tuple[list[Layout], list[Layout]]:
        """Of all tensors that it takes, and that it returns."""
        of = []
        for nodes in (self.inputs, self.outputs):
            leaves = pytree.tree_leaves([n.meta["val"] for n in nodes])
            of.append([self._layout(leaf) for leaf in leaves if isinstance(leaf, Tensor)])
        return of[0], of[1]


def carried_code(
    node: fx.Node,
    known: KnownNumbers,
    *,
    random: bool,
    collectives: Sequence[tuple[str, str]] = (),
) -> tuple[CompiledCode, list[fx.Node], list[fx.Node]]:
    """A node that runs other graphs or kernels, as compiled code, and the tensors and numbers that
    the code takes. It returns all results as one flat list.
    """
    owner = node.graph.owning_module
    assert owner is not None
    say_what_constants_are(owner)
    region = _Region(owner, [node], known, always=True)
    module = region.module

    def run(inputs: list[Any]) -> list[Tensor]:
        leaves = pytree.tree_leaves(module(*inputs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    layouts = region.layouts()
    code = CompiledCode(
        node.name, run, *layouts, random=random, collectives=collectives, seeds=region.seeds()
    )
    return code, region.inputs, region.numbers
