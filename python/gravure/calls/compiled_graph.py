"""Runs a graph of `torch.compile`: chooses the program for the sizes and the module at hand."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..graphs.codegen import ATEN, Style
from ..graphs.devices import SPARE, free_bytes
from ..graphs.node_facts import has_effects, is_collective
from ..graphs.traced_graphs import TracedGraphs
from ..options import PAGE_AT_EXIT, WRITTEN_TO, CompileOptions
from ..torch_api.aot_autograd import boxed
from ..torch_api.aot_metadata import Metadata
from ..torch_api.autograd import keeps_graph
from ..torch_api.compile_lock import compile_lock
from ..torch_api.dynamo_errors import first_line
from ..torch_api.fake_tensors import expression_of, is_nested_number, unset_fake_temporarily
from ..torch_api.operators import OpOverload
from . import reports
from .first_run import is_of_operator, told
from .instance import Instance
from .program_maker import ProgramMaker
from .reports import GraphReport, ProgramReport, kernels_of, program_report
from .size_choice import SizeChoice, most_sizes
from .step_clock import StepClock
from .weak_tensors import WeakTensors
from .written_program import LoadedFrom

_NUMBERS = itertools.count(1)
_PENDING = 4096  # backwards that are still to come, of which it is known whose they are
_MOST_UNREPLAYED = 8  # programs in a row whose module was gone before they were replayed
_MOST_BUFFERS = 4  # sets of living buffers that go with the same parameters
_KNOWN = {"aten", "prims", "rngprims", "profiler", "gravure"}  # namespaces that are not the user's
_PATIENCE = 4  # calls with the same module, before it gets a program nevertheless
logger = logging.getLogger("gravure")

# Where a symbol's value is found: which argument, and which of its sizes (-1: itself).
SizeSource = tuple[int, int]
# What programs are for: sizes, and a module, by the `id` of each parameter.
Key = tuple[tuple[int, ...], tuple[int, ...]]


class CompiledGraph:
    """Runs one graph. `failure` is why calls run as they are, without a program; "" if none does.

    Modules of one class share a graph of Dynamo's (layers that are compiled one by one), and a
    program is captured with the addresses of one: each module has its own. It belongs to all of the
    module's parameters (its buffers, if it has none), and goes when one of them is gone.
    """

    def __init__(
        self,
        label: str,
        options: CompileOptions,
        style: Style = ATEN,
    ) -> None:
        self.number = next(_NUMBERS)
        self.label = label
        self.options = options
        self.failure = ""
        self.passed_by = ""  # why calls do not come here; "" where they do
        self.graph_break = ""  # where Dynamo ended it before its function did, and why
        self.clock: StepClock | None = None  # with the option times
        self.style = style
        self.made_for: int | None = None  # the settings of kernels that it was traced under
        self._made_by: ProgramMaker | None = None  # None before AOTAutograd's graphs are here
        self._instances: dict[Key, list[Instance]] = {}
        self._ended: list[ProgramReport] = []  # of programs that are gone, for a report at exit
        self._last_report: GraphReport | None = None  # what it was when it was shut down
        self._any: Instance | None = None  # for all sizes and modules that have none of their own
        self._spare: Instance | None = None  # made while compiling, for the first call
        self._current: Instance | None = None  # of the last call
        self._sizes = SizeChoice(label)
        self._absent: tuple[int, ...] = ()  # gradients of outputs that backwards come without
        # Arguments of a native call that need another program than this graph's.
        self.refuses: Callable[[Sequence[Any]], bool] = lambda _: False
        # Called with the reason where its calls are eager's from now on.
        self.leaves: Callable[[str], None] = lambda _: None
        self._ran_backward = False  # by Python, without an error
        # There is more than one instance, or was: a backward may be that of one that is gone.
        self._several = False
        self._is_around = False  # made by around()
        # First instances whose lack of a further one was logged.
        self._told: weakref.WeakSet[Instance] = weakref.WeakSet()
        self._symbols: dict[Any, SizeSource] = {}
        self._backward_symbols: dict[Any, SizeSource] = {}  # those that the backward is given, too
        self._kept: list[int] = []  # positions of parameters and buffers
        self._owners: list[int] | None = None  # and of those that a program belongs to
        self._unreplayed = 0  # instances in a row whose module was gone before a replay
        self._unserved = WeakTensors()  # owners of the last call for which no program was made
        self._unserved_calls = 0  # such calls in a row with the same owners
        self._marker: tuple[int, int] | None = None  # ProgramMaker.marker()
        # Instances whose backward is still to come, by the address of what their forward saved.
        self._pending: weakref.WeakValueDictionary[int, Instance] = weakref.WeakValueDictionary()

    def __del__(self) -> None:
        # Where the interpreter ends, the report is written already.
        if WRITTEN_TO and not sys.is_finalizing():
            reports.ended.append(self.whole_report())

    @classmethod
    def around(cls, label: str, options: CompileOptions, instance: Instance) -> CompiledGraph:
        """One of `instance`, which is loaded already and loads itself again when it is called
        after it was let go of."""
        graph = cls(label, options)
        graph._any, graph._is_around = instance, True
        return graph

    def all_instances(self) -> list[Instance]:
        others = [i for i in (self._spare, self._any) if i is not None]
        return [*self._of_modules(), *others]

    def _of_modules(self) -> list[Instance]:
        return [each for first in self._firsts() for each in (first, *list(first.further))]

    def _firsts(self) -> list[Instance]:
        """One for each module and its sizes: without those for further calls in flight."""
        # Others may end while this looks.
        return [each for several in list(self._instances.values()) for each in list(several)]

    def report(self, *, detailed: bool = False) -> GraphReport:
        """What became of it and of the programs that it has. `detailed`: with every call."""
        made = [i for i in self.all_instances() if i.program is not None]
        return GraphReport(
            self.number,
            self.label,
            self.failure or self.passed_by,
            [program_report(each, self.options, detailed=detailed) for each in made],
            self.graph_break,
            kernels_of(self.options),
            self.options.chosen(),
            self.clock.read() if self.clock is not None else {},
        )

    def whole_report(self) -> GraphReport:
        """The same with the programs that are gone, where a report is written at exit."""
        if self._last_report is not None:
            return self._last_report
        found = self.report(detailed=PAGE_AT_EXIT)
        found.programs[:0] = self._ended
        return found

    def shutdown(self) -> None:
        """Gives back graphs and arenas of all its programs, which cannot run afterwards."""
        if WRITTEN_TO:  # what they were is gone then
            self._last_report = self.whole_report()
        for instance in self.all_instances():
            if instance.program is not None:
                instance.program.shutdown()

    # ---- what is let go of

    def drop(self, tensors: Set[int] | None = None) -> int:
        """Lets go of the programs for modules with one of these tensors, by `id`, or of all.

        Returns how many. The next call makes what it needs.
        """
        dropped = [i for i in self._of_modules() if tensors is None or i.knows(tensors)]
        if tensors is None:
            others = [i for i in (self._spare, self._any) if i is not None]
            dropped += [each for each in others if each.program is not None]
        for instance in dropped:
            self._let_go(instance)
        return len(dropped)

    def drop_converted(self) -> None:
        """Those whose module is on another device by now, or of another dtype: what they hold, the
        module has left."""
        for instance in self._of_modules():
            if instance.was_converted():
                self._let_go(instance)

    def _let_go(self, instance: Instance) -> None:
        for further in list(instance.further):
            self._let_go(further)
        if WRITTEN_TO and instance.program is not None:
            ended = program_report(instance, self.options, detailed=PAGE_AT_EXIT)
            self._ended.append(ended)
        for first in self._firsts():
            if instance in first.further:
                first.further.remove(instance)
        for key, several in list(self._instances.items()):
            if instance in several:
                several.remove(instance)
            if not several:
                self._instances.pop(key, None)
        self._several = True  # a backward of its calls may still come, beside the next one's
        if self._current is instance:
            self._current = None
        if self._spare is instance:
            self._spare = None
        if self._any is instance and not self._is_around:
            self._any = None
        instance.let_go()

    def end_unrun(self) -> bool:
        """Lets go of the program that was made while compiling, if no call has taken it. Returns
        whether no program is left."""
        if self._spare is not None:
            spare, self._spare = self._spare, None
            spare.let_go()
        return not self.all_instances()

    def _end(self, instance: Instance) -> None:
        """Its module is gone."""
        replayed = instance.program.stats()["replays"] > 0
        self._unreplayed = 0 if replayed else self._unreplayed + 1
        self._let_go(instance)

    # ---- what AOTAutograd compiles

    def take(self, traced: TracedGraphs, *, native: bool) -> None:
        """The graphs to run: makes the first program now, unless sizes are still open.

        `native`: autograd may be given a node of the library's.
        """
        self._made_by = ProgramMaker(
            self.label, traced, self.options, self.style, self.made_for, native=native
        )
        self._symbols = _size_sources(traced.forward)
        roles = [spec.role if spec is not None else "" for spec in traced.inputs]
        self._kept = [i for i, role in enumerate(roles) if role in ("parameter", "buffer")]
        if traced.backward is not None:
            self._marker = self._maker.marker()
            sources = _size_sources(traced.backward)
            self._backward_symbols = {s: sources[s] for s in self._symbols if s in sources}
        if not self._symbols:
            # As a whole by Inductor is only a try: where it fails, all of it is made anew.
            raises = self.options.raises or self.style.whole
            self._spare = self._make((), keeps=True, raises=raises)

    @property
    def _maker(self) -> ProgramMaker:
        assert self._made_by is not None
        return self._made_by

    # ---- calls

    @property
    def may_run_native(self) -> bool:
        """Whether a program that there is can be a node of autograd's."""
        return any(instance.native is not None for instance in self.all_instances())

    @property
    def metadata(self) -> Metadata | None:
        """What AOTAutograd found out; None before it has, and of what it did not trace."""
        return self._made_by.traced.metadata if self._made_by is not None else None

    def _nodes(self) -> Iterator[fx.Node]:
        return (node for module in self._maker.traced.modules for node in module.graph.nodes)

    @functools.cached_property
    def has_foreign_operators(self) -> bool:
        """Whether it calls operators of the user's."""
        targets = (node.target for node in self._nodes())
        return any(isinstance(t, OpOverload) and t.namespace not in _KNOWN for t in targets)

    @functools.cached_property
    def may_run_again(self) -> bool:
        """Whether a run that failed may be made once more: no other rank, and nobody outside, knows
        of it."""
        if self._made_by is None:
            return False
        return not any(is_collective(node) or has_effects(node) for node in self._nodes())

    @functools.cached_property
    def _may_be_several(self) -> bool:
        """Whether calls in flight may have instances of their own.

        Ranks would have to agree on their number; static results have one address.
        """
        options = self.options
        wanted = options.max_in_flight > 1 and options.results in ("owned", "copied")
        return wanted and not options.uncaptured and not any(map(is_collective, self._nodes()))

    def run_native(self, args: Sequence[Any]) -> list[Any] | None:
        """The results of the graph, as a node of autograd's; None, and nothing has run, where it
        needs AOTAutograd's wrapper."""
        instance = self._current_for(args)
        if instance is None:
            if self.refuses(args):
                return None
            instance = self._choose(args)
        if instance.native is None:
            return None
        results = instance.native(args)
        if results is None and self._heard(instance, instance, args):
            results = instance.native(args)
        if results is None and (other := self._beside(instance, args)) is not None:
            if (results := other.native(args)) is None and self._heard(instance, other, args):
                results = other.native(args)
        return results

    def _heard(self, first: Instance, instance: Instance, args: Sequence[Any]) -> bool:
        """Whether `instance` has another program from now on, since its last backward was given
        other gradients than its program is for: fewer, or more.

        `first`: the instance for these sizes and this module, whose further one `instance` may be.
        """
        news = tuple(instance.program.take_tangent_news())
        if not news:
            return False
        if instance.whole is not None:
            logger.info("%s: an output has a gradient that had none before", self.label)
            instance.leave_lean()
            self._absent = ()
            return True
        self._absent = news
        self._make_lean(first, instance, args)
        return True

    def _make_lean(self, first: Instance, instance: Instance, args: Sequence[Any]) -> None:
        """Has `instance` go without the gradients that backwards come without, where it can."""
        same = next((i for i in (first, *first.further) if i.absent == self._absent), None)
        lean = self._lean(instance, self._absent, self._lean_one_for(instance.sizes))
        if lean is None or lean.native is None:
            return
        if same is not None:
            lean.program.warm_up_with(same.program)
        else:
            self._teach(lean, self._absent)
        instance.take_lean(lean, args, self._absent)

    def _lean(
        self, instance: Instance, absent: tuple[int, ...], like: LoadedFrom | None
    ) -> Instance | None:
        known = dict(zip(self._symbols, instance.sizes, strict=False))
        try:
            with compile_lock, unset_fake_temporarily():
                if not self._maker.goes_without(absent):
                    return None
                return self._maker.make(known, keeps=True, absent=absent, like=like)
        except Exception as error:  # the whole program is right, too, and slower
            logger.debug("%s: not without %s: %r", self.label, absent, error)
            return None

    def _instance_for(self, args: Sequence[Any]) -> Instance:
        return self._current_for(args) or self._choose(args)

    def _current_for(self, args: Sequence[Any]) -> Instance | None:
        """The instance of the last call, if it is for these."""
        instance = self._current
        if (
            instance is None
            or instance is self._any
            or not instance.holds(args)
            or (self._symbols and instance.sizes != _read(args, self._symbols))
        ):
            return None
        return instance

    def _beside(self, first: Instance, args: Sequence[Any]) -> Instance | None:
        """Another instance for this call, where what an earlier call saved is held in `first`.

        Where all instances hold something, and no further one can be had, it is the last one, which
        runs the call uncaptured. None where that is `first`.
        """
        if not first.defers or not first.holds_saved():
            return None
        found = next((each for each in first.further if not each.holds_saved()), None)
        if found is None:
            found = self._further(first, args)
        if found is not None:
            found.keep(args)
        return found

    def _further(self, first: Instance, args: Sequence[Any]) -> Instance | None:
        """An instance more; the last one where there can be no more, None if that is `first`."""
        why = first.unrepeatable or self._in_flight_excess(first)
        if not why:
            made = self._make_further(first)
            if made is not None:
                made.number = 1 + len(first.further)
                assert first.made is not None
                made.program.warm_up_with(first.made.program)
                if first.absent:
                    self._make_lean(first, made, args)
                first.further.append(made)
                self._several = True
                return made
            why = first.unrepeatable
        if first not in self._told:
            self._told.add(first)
            logger.info(
                "%s: no further instance for calls in flight: %s; they run uncaptured",
                self.label,
                why,
            )
        if first.further:
            return first.further[-1]
        first.defer(False)
        return None

    def _make_further(self, first: Instance) -> Instance | None:
        """None where it cannot be made: `first.unrepeatable` says why, and its report."""
        try:
            made = self._program(first.sizes, keeps=True, like=first.made)
            if (made.native is None) == (first.native is None):
                return made
            first.unrepeatable = "autograd would see another node than the first one's"
        except Exception as error:
            if self.options.raises:
                raise
            first.unrepeatable = first_line(error)
        told = f"no further instance for calls in flight: {first.unrepeatable}"
        logger.warning("%s: %s; they run uncaptured", self.label, told)
        first.missed.append(f"saved-values-held: {told}")
        return None

    def _in_flight_excess(self, first: Instance) -> str:
        """Why there may be no further instance beside these; "" if there may be one."""
        count = 1 + len(first.further)
        if count >= self.options.max_in_flight:
            return f"{count} calls are in flight, which max_in_flight allows"
        need, free = first.program.stats()["arena_bytes"], free_bytes(self._maker.device)
        if free is not None and SPARE * need > free:
            return f"an arena takes {need} bytes, and {free} are free"
        return ""

    @boxed
    def run_forward(self, args: list[Any]) -> Any:
        """The forward, or the whole graph, with the arguments of AOTAutograd's."""
        instance = self._instance_for(args)
        instance = self._beside(instance, args) or instance
        results = instance.forward(args)
        if self._several and self._marker is not None:
            if len(self._pending) >= _PENDING:
                self._pending.clear()
            self._pending[results[self._marker[0]].data_ptr()] = instance
        return results

    @boxed
    def run_backward(self, args: list[Any]) -> Any:
        """The backward, likewise."""
        instance = self._current
        if instance is None or self._several:
            instance = self._instance_behind(args)
        if self._ran_backward:
            assert instance.backward is not None
            return instance.backward(args)
        results = self._first_backward(instance, args)
        self._ran_backward = True
        return results

    def _first_backward(self, instance: Instance, args: list[Any]) -> Any:
        """Where it fails, so would the next ones: eager's graph of autograd is not there, so this
        is an error, and later calls are eager's."""
        assert instance.backward is not None
        try:
            return instance.backward(args)
        except Exception as error:
            has_program = instance.program is not None
            if not self.options.raises and is_of_operator(error, has_program=has_program):
                self.leaves(told("backward", error))
            raise

    def _instance_behind(self, args: list[Any]) -> Instance:
        """Whose forward this backward belongs to, by what it saved.

        Where that is not known (saved values that were moved), or that instance is gone, it is one
        for the same sizes: the backward runs uncaptured there, and right.
        """
        found = None
        if self._marker is not None:
            address = args[self._marker[1]].data_ptr()
            again = keeps_graph()
            found = self._pending.get(address) if again else self._pending.pop(address, None)
        sizes = _read(args, self._backward_symbols)
        if found is not None and (found is self._any or self._in_backward(found.sizes) == sizes):
            return found
        alike = (each for each in self._of_modules() if self._in_backward(each.sizes) == sizes)
        found = next(alike, None) or self._any
        if found is None:
            known = (s for s in self._maker.known_sizes if self._in_backward(s) == sizes)
            found = self._make(next(known), keeps=False, captures=False)
        return found

    def _in_backward(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        known = dict(zip(self._symbols, sizes, strict=True))
        return tuple([known[symbol] for symbol in self._backward_symbols])

    def _choose(self, args: Sequence[Any]) -> Instance:
        if self._owners is None:
            self._owners = _owners_among(args, self._kept)
        owners = [args[i] for i in self._owners]
        key = _read(args, self._symbols), tuple(map(id, owners))
        if self._symbols:
            self._sizes.called(key[0], after=self._current.sizes if self._current else ())
        several = self._instances.get(key, [])
        for each in list(several):
            if each.holds(args):
                self._current = each
                return each
        instance = self._of_same_parameters(several, args)
        if instance is None:
            instance = self._instance(key, owners, args)
            count = len(self._of_modules()) + (self._any is not None)
            self._several = self._several or count > 1
        if instance is not self._any:
            instance.keep(args)
        self._current = instance
        return instance

    def _of_same_parameters(self, several: list[Instance], args: Sequence[Any]) -> Instance | None:
        """Of the instances for these parameters the one for these buffers, too, if there is one.

        A buffer that is another one since is the same module's if the former one is gone: else two
        modules may share their parameters.
        """
        found = next((each for each in list(several) if each.may_hold(args)), None)
        return found or (several[-1] if len(several) >= _MOST_BUFFERS else None)

    def _instance(self, key: Key, owners: Sequence[torch.Tensor], args: Sequence[Any]) -> Instance:
        """A new instance; where there are too many, the one for all that have none of their own."""
        if self._any is not None and self._any.program is None:
            return self._any
        if excess := self._excess(key, owners):
            if self._any is None:
                if self.options.raises:
                    raise ExportError(self.label, *excess)
                logger.warning("%s: %s; further ones run uncaptured; %s", self.label, *excess)
                # What it captured it would hold, whatever becomes of the module.
                self._any = self._make((), keeps=False, captures=bool(self._symbols))
                self._any.missed.append(
                    "program-missing: {}; further ones run uncaptured; {}".format(*excess)
                )
            return self._any
        instance = self._spare or self._make(key[0], keeps=True, like=self._one_for(key[0]))
        self._spare = None
        if instance.program is None:
            self._any = instance
        else:
            self._teach(instance)
            if self._absent and instance.native is not None:
                instance.keep(args)
                self._make_lean(instance, instance, args)
            instance.defer(instance.backward is not None and self._may_be_several)
            instance.belong(self._owners or (), _ending(weakref.ref(self)))
            self._instances.setdefault(key, []).append(instance)
        return instance

    def _one_for(self, sizes: tuple[int, ...]) -> LoadedFrom | None:
        """A program for these sizes, of whatever module, if there is one."""
        return next((i.made for i in self._firsts() if i.sizes == sizes), None)

    def _lean_one_for(self, sizes: tuple[int, ...]) -> LoadedFrom | None:
        """The same, without the gradients that backwards come without."""
        alike = (i for i in self._of_modules() if i.sizes == sizes and i.absent == self._absent)
        return next((i.made_lean for i in alike), None)

    def _teach(self, instance: Instance, absent: tuple[int, ...] = ()) -> None:
        """Tells it what a program for other sizes, or of another module, knows of the graph."""
        alike = (i for i in self._firsts() if i is not instance and i.absent == absent)
        if (teacher := next(alike, None)) is not None:
            instance.program.learn_from(teacher.program)

    def _has_room(self, sizes: tuple[int, ...]) -> bool:
        """Whether these sizes may have a program: beyond the limit another one goes for it."""
        firsts = self._firsts()
        made = {each.sizes for each in firsts}
        if sizes in made:
            return True
        held = {i.sizes for i in self._of_modules() if i.program.holds_saved()}
        has_room, gone = self._sizes.admit(sizes, made, held, self._most_sizes)
        if gone is not None:
            logger.info("%s: the program for sizes %s gives way to %s", self.label, gone, sizes)
            for each in [i for i in firsts if i.sizes == gone]:
                self._let_go(each)
        return has_room

    @functools.cached_property
    def _most_sizes(self) -> int:
        if self.options.max_shapes is not None:
            return self.options.max_shapes
        return most_sizes(sum(len(module.graph.nodes) for module in self._maker.traced.modules))

    def _excess(self, key: Key, owners: Sequence[torch.Tensor]) -> tuple[str, str] | None:
        """What there is too much of for another program, and the remedy; None if there may be
        another one."""
        if not self._has_room(key[0]):
            return (
                f"it is called with more than {self._most_sizes} sets of sizes",
                "raise the option max_shapes, or pad to fewer sizes",
            )
        modules = [each.sizes for each in self._firsts()].count(key[0])
        if modules >= self.options.max_modules:
            return f"it is called for more than {modules} modules", "raise the option max_modules"
        times = self._unreplayed
        if times >= _MOST_UNREPLAYED and not self._stays(owners):
            return (
                f"its parameters were others {times} times before a program was captured",
                "write new values into them (copy_), or pass what changes as an argument",
            )
        return None

    def _stays(self, owners: Sequence[torch.Tensor]) -> bool:
        """Whether it is the same module call after call, so that it gets a program after all."""
        if self._unserved.are(owners):
            self._unserved_calls += 1
        else:
            self._unserved.exchange(owners)
            self._unserved_calls = 1
        return self._unserved_calls > _PATIENCE

    def _make(
        self,
        sizes: tuple[int, ...],
        *,
        keeps: bool,
        captures: bool = True,
        raises: bool = False,
        like: LoadedFrom | None = None,
    ) -> Instance:
        """A program; the graphs as they are, with `failure`, where there can be none."""
        try:
            return self._program(sizes, keeps=keeps, captures=captures, like=like)
        except Exception as error:
            if raises or self.options.raises:
                raise
            self.failure = first_line(error)
            logger.warning(
                "%s runs as it is, without a program: %s",
                self.label,
                self.failure,
                exc_info=not isinstance(error, (ExportError, RuntimeError)),
            )
        return self._maker.as_it_is()

    def _program(
        self,
        sizes: tuple[int, ...],
        *,
        keeps: bool,
        captures: bool = True,
        like: LoadedFrom | None = None,
    ) -> Instance:
        """`like`: one for these sizes that captures, if there is one."""
        with compile_lock, unset_fake_temporarily():
            known = dict(zip(self._symbols, sizes, strict=False))
            return self._maker.make(known, keeps=keeps, captures=captures, like=like)


def _ending(graph: weakref.ref[CompiledGraph]) -> Callable[[Instance], None]:
    """CompiledGraph._end, which does not keep the graph alive."""

    def end(instance: Instance) -> None:
        found = graph()
        if found is not None:
            found._end(instance)

    return end


def _owners_among(args: Sequence[Any], kept: list[int]) -> list[int]:
    """Of what a module keeps, what does not change: its parameters, frozen ones too."""
    return [i for i in kept if isinstance(args[i], torch.nn.Parameter)] or kept


def _read(args: Sequence[Any], symbols: dict[Any, SizeSource]) -> tuple[int, ...]:
    return tuple([args[i] if d < 0 else args[i].shape[d] for i, d in symbols.values()])


def _size_sources(module: fx.GraphModule) -> dict[Any, SizeSource]:
    """Where each integer symbol of the graph's arguments is found, as far as one stands alone."""
    sources: dict[Any, SizeSource] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes = list(value.shape) if isinstance(value, torch.Tensor) else [value]
        for d, size in enumerate(sizes):
            symbolic = isinstance(size, torch.SymInt) and not is_nested_number(size)
            if symbolic and (symbol := expression_of(size)).is_Symbol:
                sources.setdefault(symbol, (i, d if isinstance(value, torch.Tensor) else -1))
    return sources
