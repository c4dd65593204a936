"""Runs a graph of `torch.compile`: chooses the program for the sizes and the module at hand.

A program is captured for one set of sizes, for the addresses of one module's parameters, and for
one call in flight. So a graph has instances, each with a program of the same graphs:

    first instances     one for each set of sizes and each module: `_instances`
    further ones        of a first one, for calls while its saved values are held: Instance.further
    the shared one      for all sizes and modules beyond the limits; its calls run uncaptured
    the unclaimed one   made while compiling; the first call takes it as its first instance

A call looks for its instance in this order: that of the last call, if it fits (`_current_for`); a
first instance, made now if there is none (`_choose`); a further one, where the first is busy
(`_in_flight`). A backward goes to the instance of its forward (`_instance_behind`).
"""

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
from ..graphs.devices import arena_excess
from ..graphs.given_gradients import Forms, absent_alone, forms_of
from ..graphs.node_facts import has_effects, is_collective
from ..graphs.traced_graphs import TracedGraphs
from ..library.load import program_class
from ..options import PAGE_AT_EXIT, WRITTEN_TO, CompileOptions
from ..torch_api.aot_autograd import boxed
from ..torch_api.aot_metadata import Metadata
from ..torch_api.compile_lock import compile_lock
from ..torch_api.dynamo_errors import first_line
from ..torch_api.fake_tensors import unset_fake_temporarily
from ..torch_api.operators import OpOverload
from . import reports
from .first_run import is_of_operator, why_it_failed
from .instance import Instance
from .module_choice import ModuleChoice
from .pending_backwards import PendingBackwards
from .program_maker import ProgramMaker
from .programs_beside import unlike_eagers
from .reports import GraphReport, ProgramReport, kernels_of, program_report
from .seen_results import ResultsSeen
from .size_choice import SizeChoice, most_sizes
from .step_clock import StepClock
from .symbol_sizes import SymbolSizes
from .written_program import LoadedFrom

_NUMBERS = itertools.count(1)
_CAME_AFTER_ALL = -1  # LoadedProgram::takeTangentNews
_MOST_BUFFERS = 4  # sets of living buffers that go with the same parameters
_KNOWN = {"aten", "prims", "rngprims", "profiler", "gravure"}  # namespaces that are not the user's
logger = logging.getLogger("gravure")

# What a first instance is for: sizes, and a module, by the `id` of each of its owners.
Key = tuple[tuple[int, ...], tuple[int, ...]]


class CompiledGraph:
    """Runs one graph. `failure` is why calls run as they are, without a program; "" if none does.

    Modules of one class share a graph of Dynamo's (layers that are compiled one by one), and each
    has instances of its own. These belong to all of the module's parameters (its buffers, if it has
    none), their owners, and go when one of them is gone; buffers may be assigned anew, so the last
    program of such owners waits for the next call.
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
        self.style = style
        self.made_for: int | None = None  # the settings of kernels that it was traced under

        # For reports.
        self.failure = ""
        self.passed_by = ""  # why calls do not come here; "" where they do
        self.graph_break = ""  # where Dynamo ended it before its function did, and why
        self.clock: StepClock | None = None  # with the option times
        self._ended: list[ProgramReport] = []  # of programs that are gone, for a report at exit
        self._last_report: GraphReport | None = None  # what it was when it was shut down

        # What FrameCall may set.
        # Arguments of a native call that need another program than this graph's.
        self.refuses: Callable[[Sequence[Any]], bool] = lambda _: False
        # Called with the reason where its calls are eager's from now on.
        self.leaves: Callable[[str], None] = lambda _: None

        # The graphs, known from take() on.
        self._seen: ResultsSeen | None = None
        self._made_by: ProgramMaker | None = None
        self._symbols = SymbolSizes()
        self._backward_symbols = SymbolSizes()  # those that the backward is given, too
        self._kept: list[int] = []  # arguments that are parameters and buffers
        self._owners: list[int] | None = None  # of these, the owners; known from the first call on
        self._owners_are_buffers = False

        # The instances.
        self._instances: dict[Key, list[Instance]] = {}
        self._shared: Instance | None = None
        self._is_around = False  # the shared one was given to around(), and stays
        self._unclaimed: Instance | None = None
        # One whose owners, buffers, are gone: their module may have others by now.
        self._orphan: Instance | None = None
        self._current: Instance | None = None  # of the last call
        self._sizes = SizeChoice(label)
        self._modules = ModuleChoice()
        # First instances of which it was said that they can have no further one.
        self._at_limit: weakref.WeakSet[Instance] = weakref.WeakSet()

        # Backwards.
        # There is more than one instance, or was: a backward may be that of one that is gone.
        self._had_several = False
        self._pending: PendingBackwards | None = None  # None where nothing tells whose one is
        self._ran_backward = False  # by Python, without an error
        self._forms: Forms = ()  # of the gradients of outputs, as backwards are given them
        self._apart = False  # terms of gradients were asked for one by one
        # Of AOTAutograd's wrapper: by the edge of its node, each input whose gradient is a sum.
        self._sums: dict[int, str] = {}

    def __del__(self) -> None:
        # Where the interpreter ends, the report is written already.
        if WRITTEN_TO and not sys.is_finalizing():
            reports.ended.append(self.whole_report())

    @classmethod
    def around(cls, label: str, options: CompileOptions, instance: Instance) -> CompiledGraph:
        """One of `instance`, which is loaded already and loads itself again when it is called
        after it was let go of."""
        graph = cls(label, options)
        graph._shared, graph._is_around = instance, True
        return graph

    # ---- what AOTAutograd compiles

    def take(self, traced: TracedGraphs, *, native: bool) -> None:
        """The graphs to run: makes the first program now, unless sizes are still open.

        `native`: autograd may be given a node of the library's.
        """
        self._seen = ResultsSeen(self, traced)
        self._made_by = ProgramMaker(
            self.label,
            traced,
            self.options,
            self.style,
            self.made_for,
            native=native,
            seen=self._seen,
        )
        self._symbols = SymbolSizes.of(traced.forward)
        roles = [spec.role if spec is not None else "" for spec in traced.inputs]
        self._kept = [i for i, role in enumerate(roles) if role in ("parameter", "buffer")]
        if traced.backward is not None:
            marker = self._maker.marker()
            self._pending = PendingBackwards(marker) if marker is not None else None
            self._backward_symbols = self._symbols.shared_with(SymbolSizes.of(traced.backward))
            self._sums = _summed_edges(self._maker.traced)
        if not self._symbols:
            # As a whole by Inductor is only a try: where it fails, all of it is made anew.
            raises = self.options.raises or self.style.whole
            self._unclaimed = self._make((), keeps=True, raises=raises)

    @property
    def _maker(self) -> ProgramMaker:
        assert self._made_by is not None
        return self._made_by

    @property
    def metadata(self) -> Metadata | None:
        """What AOTAutograd found out; None before it has, and of what it did not trace."""
        return self._made_by.traced.metadata if self._made_by is not None else None

    @property
    def has_open_sizes(self) -> bool:
        return bool(self._symbols)

    def watch_results(self, results: Any) -> None:
        """Those of a call by AOTAutograd's wrapper."""
        if self._seen is not None:
            self._seen.watch(results)

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

    # ---- calls

    @property
    def may_run_native(self) -> bool:
        """Whether a program that there is can be a node of autograd's."""
        return any(instance.native is not None for instance in self.all_instances())

    def run_native(self, args: Sequence[Any]) -> list[Any] | None:
        """The results of the graph, as a node of autograd's; None, and nothing has run, where it
        needs AOTAutograd's wrapper."""
        first = self._current_for(args)
        if first is None:
            if self.refuses(args):
                return None
            first = self._choose(args)
        if first.native is None:
            return None
        results = first.native(args)
        # Why nothing has run may be mended: other gradients came than before, or it is busy.
        if results is None and self._follow_tangents(first, first, args):
            results = first.native(args)
        if results is None and (other := self._in_flight(first, args)) is not None:
            if (results := other.native(args)) is None and self._follow_tangents(
                first, other, args
            ):
                results = other.native(args)
        return results

    @boxed
    def run_forward(self, args: list[Any]) -> Any:
        """The forward, or the whole graph, with the arguments of AOTAutograd's."""
        first = self._current_for(args) or self._choose(args)
        instance = self._in_flight(first, args) or first
        results = instance.forward(args)
        if self._had_several and self._pending is not None:
            self._pending.note(results, instance)
        return results

    @boxed
    def run_backward(self, args: list[Any]) -> Any:
        """The backward, likewise."""
        if self._sums:
            self._look_for_terms()
        instance = self._current
        if instance is None or self._had_several:
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
                self.leaves(why_it_failed("backward", error))
            raise

    def _look_for_terms(self) -> None:
        """Says once that gradients come to an input ahead of the sum of its own uses: AOTAutograd's
        node, which runs, has one edge for each input."""
        arrived = program_class().has_arrived_gradient
        found = next((name for edge, name in self._sums.items() if arrived(edge)), None)
        if found is not None:
            why = "this call runs by AOTAutograd's wrapper"
            logger.warning("%s: %s", self.label, unlike_eagers(f'"{found}"', why))
            self._sums = {}

    # ---- the first instance of a call

    def _current_for(self, args: Sequence[Any]) -> Instance | None:
        """The instance of the last call, if it is for these."""
        instance = self._current
        if (
            instance is None
            or instance is self._shared
            or not instance.holds(args)
            or (self._symbols and instance.sizes != self._symbols.read(args))
        ):
            return None
        return instance

    def _choose(self, args: Sequence[Any]) -> Instance:
        """The one for these sizes and this module; current from now on."""
        if self._owners is None:
            self._owners = _owners_among(args, self._kept)
            self._owners_are_buffers = not any(_is_parameter(args[i]) for i in self._owners)
        owners = [args[i] for i in self._owners]
        key = self._symbols.read(args), tuple(map(id, owners))
        if self._symbols:
            self._sizes.called(key[0], after=self._current.sizes if self._current else ())
        several = self._instances.get(key, [])
        for each in list(several):
            if each.holds(args):
                self._current = each
                return each
        instance = self._of_same_parameters(several, args)
        if instance is None:
            instance = self._new_first(key, owners, args)
            count = len(self._of_modules()) + (self._shared is not None)
            self._had_several = self._had_several or count > 1
        if instance is not self._shared:
            instance.keep(args)
        self._current = instance
        return instance

    def _of_same_parameters(self, several: list[Instance], args: Sequence[Any]) -> Instance | None:
        """Of the instances for these parameters the one that may take these buffers, if any.

        A buffer that is another one since is the same module's if the former one is gone: else two
        modules may share their parameters.
        """
        found = next((each for each in list(several) if each.may_hold(args)), None)
        return found or (several[-1] if len(several) >= _MOST_BUFFERS else None)

    def _new_first(self, key: Key, owners: Sequence[torch.Tensor], args: Sequence[Any]) -> Instance:
        """A new instance; where there are too many, the shared one."""
        if self._shared is not None and self._shared.program is None:
            return self._shared  # a program could not be made: none can
        if excess := self._excess(key, owners):
            return self._shared if self._shared is not None else self._make_shared(*excess)
        instance = self._take_orphan(key[0]) or self._unclaimed or self._make_first(key[0])
        if instance is self._unclaimed:
            self._unclaimed = None
        if instance.program is None:
            self._shared = instance
            return instance
        self._teach(instance)
        if self._forms and instance.native is not None and not instance.forms:
            instance.keep(args)
            self._fit(instance, instance, args)
        instance.defer(instance.backward is not None and self._may_be_several)
        instance.belong(self._owners or (), _ending(weakref.ref(self)))
        self._instances.setdefault(key, []).append(instance)
        return instance

    def _make_first(self, sizes: tuple[int, ...]) -> Instance:
        apart = self._apart
        return self._make(sizes, keeps=True, apart=apart, like=self._alike(sizes, apart=apart))

    def _make_shared(self, excess: str, remedy: str) -> Instance:
        """For the sizes and modules that have no instance of their own, since there is `excess`."""
        if self.options.raises:
            raise ExportError(self.label, excess, remedy)
        why = f"{excess}; further ones run uncaptured; {remedy}"
        logger.warning("%s: %s", self.label, why)
        # What it captured it would hold, whatever becomes of the module.
        self._shared = self._make((), keeps=False, captures=bool(self._symbols))
        self._shared.missed.append(f"program-missing: {why}")
        return self._shared

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
        if not self._modules.admit(owners):
            times = self._modules.unreplayed
            return (
                f"its parameters were others {times} times before a program was captured",
                "write new values into them (copy_), or pass what changes as an argument",
            )
        return None

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

    # ---- further instances, for calls in flight

    def _in_flight(self, first: Instance, args: Sequence[Any]) -> Instance | None:
        """Another instance for this call, where what an earlier call saved is held in `first`; None
        where `first` itself is for it.

        Where all instances hold something, and no further one can be had, it is the last one, which
        runs the call uncaptured.
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
                if first.forms:
                    self._fit(first, made, args)
                first.further.append(made)
                self._had_several = True
                return made
            why = first.unrepeatable
        if first not in self._at_limit:
            self._at_limit.add(first)
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
            made = self._program(first.sizes, keeps=True, apart=first.apart, like=first.made)
            if (made.native is None) == (first.native is None):
                return made
            first.unrepeatable = "autograd would see another node than the first one's"
        except Exception as error:
            if self.options.raises:
                raise
            first.unrepeatable = first_line(error)
        why = f"no further instance for calls in flight: {first.unrepeatable}"
        logger.warning("%s: %s; they run uncaptured", self.label, why)
        first.missed.append(f"saved-values-held: {why}")
        return None

    def _in_flight_excess(self, first: Instance) -> str:
        """Why there may be no further instance beside these; "" if there may be one."""
        count = 1 + len(first.further)
        if count >= self.options.max_in_flight:
            return f"{count} calls are in flight, which max_in_flight allows"
        return arena_excess(first.program, self._maker.device)

    # ---- whose forward a backward belongs to

    def _instance_behind(self, args: list[Any]) -> Instance:
        """The one whose forward saved what this backward is given.

        Where that is not known (saved values that were moved), or that instance is gone, it is one
        for the same sizes: the backward runs uncaptured there, and right.
        """
        found = self._pending.take(args) if self._pending is not None else None
        sizes = self._backward_symbols.read(args)
        if found is not None and (found is self._shared or self._in_backward(found.sizes) == sizes):
            return found
        alike = (each for each in self._of_modules() if self._in_backward(each.sizes) == sizes)
        found = next(alike, None) or self._shared
        if found is None:
            known = (s for s in self._maker.known_sizes if self._in_backward(s) == sizes)
            found = self._make(next(known), keeps=False, captures=False)
        return found

    def _in_backward(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Of `sizes` those that the backward is given."""
        known = self._symbols.known(sizes)
        return tuple([known[symbol] for symbol in self._backward_symbols])

    # ---- how the gradients of outputs come (given_gradients.py)
    #
    # Most loops give none for what a model returns beside its loss. A fitted program has a backward
    # for what the first one was given; the whole one stays behind it, for anything else.

    def _follow_tangents(self, first: Instance, instance: Instance, args: Sequence[Any]) -> bool:
        """Whether `instance` has another program from now on, since its last backward was given
        other gradients than its program is for.

        `first`: the instance for these sizes and this module, whose further one `instance` may be.
        """
        if instance.wants_apart:
            return self._make_apart(first, instance, args)
        news = instance.program.take_tangent_news()
        if not news:
            return False
        if instance.whole is not None:
            came = news[0] == _CAME_AFTER_ALL
            said = "has a gradient that had none before" if came else "has a gradient laid anew"
            logger.info("%s: an output %s", self.label, said)
            self._forms = () if came else absent_alone(instance.forms)
            instance.leave_fitted()
        else:
            self._forms = self._maker.fitting(forms_of(news), apart=instance.apart)
        self._fit(first, instance, args)
        return True

    def _fit(self, first: Instance, instance: Instance, args: Sequence[Any]) -> None:
        """Gives `instance` a fitted program, where there can be one."""
        if not self._forms:
            return
        family = (i for i in (first, *first.further) if i.apart == instance.apart)
        same = next((i for i in family if i.forms == self._forms), None)
        fitted = self._fitted(instance)
        if fitted is None or fitted.native is None:
            return
        if same is not None:
            fitted.program.warm_up_with(same.program)
        else:
            self._teach(fitted, self._forms)
        instance.take_fitted(fitted, args, self._forms)

    def _fitted(self, instance: Instance) -> Instance | None:
        sizes, apart, forms = instance.sizes, instance.apart, self._forms
        alike = (i for i in self._of_modules() if i.sizes == sizes and i.forms == forms)
        like = next((i.made_fitted for i in alike if i.apart == apart), None)
        if like is None and instance.beside is not None:
            made_for, made = instance.beside.fitted or ((), None)
            like = made if made_for == forms else None
        try:
            with compile_lock, unset_fake_temporarily():
                if self._maker.fitting(forms, apart=apart) != forms:
                    return None
                known = self._symbols.known(sizes)
                return self._maker.make(known, keeps=True, forms=forms, apart=apart, like=like)
        except Exception as error:  # the whole program is right, too, and slower
            logger.debug("%s: not for %s: %r", self.label, forms, error)
            return None

    # ---- terms of gradients one by one (programs_beside.py)

    def _make_apart(self, first: Instance, instance: Instance, args: Sequence[Any]) -> bool:
        """Gives `instance` the program that its last backward asked for, if there can be one; else
        its calls go by AOTAutograd's wrapper, which says what that means."""
        instance.wants_apart = False
        logger.info("%s: gradients of its inputs come from elsewhere, too", self.label)
        self._apart = True
        was_fitted = bool(instance.forms)
        like = self._alike(instance.sizes, apart=True)
        if like is None and instance.beside is not None and not was_fitted:
            like = instance.beside.apart
        try:
            made = self._program(instance.sizes, keeps=True, apart=True, like=like)
        except Exception as error:
            if self.options.raises:
                raise
            logger.warning("%s: calls take the slower way: %s", self.label, first_line(error))
            return False
        instance.take_apart(made, args)
        self._teach(instance)
        if was_fitted:
            self._fit(first, instance, args)
        return True

    # ---- making programs

    def _alike(self, sizes: tuple[int, ...], *, apart: bool) -> LoadedFrom | None:
        """A program for these sizes, of whatever module, if there is one."""
        alike = (i for i in self._firsts() if i.sizes == sizes and i.apart == apart)
        return next((i.made for i in alike), None)

    def _teach(self, instance: Instance, forms: Forms = ()) -> None:
        """Tells it what a program for other sizes, or of another module, knows of the graph."""
        others = (i for i in self._firsts() if i is not instance and i.apart == instance.apart)
        if (teacher := next((i for i in others if i.forms == forms), None)) is not None:
            instance.program.learn_from(teacher.program)

    def _make(
        self,
        sizes: tuple[int, ...],
        *,
        keeps: bool,
        captures: bool = True,
        raises: bool = False,
        apart: bool = False,
        like: LoadedFrom | None = None,
    ) -> Instance:
        """A program; the graphs as they are, with `failure`, where there can be none."""
        try:
            return self._program(sizes, keeps=keeps, captures=captures, apart=apart, like=like)
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
        apart: bool = False,
        like: LoadedFrom | None = None,
    ) -> Instance:
        """ProgramMaker.make() for these sizes. `like`: one for these that captures, if there is
        one."""
        with compile_lock, unset_fake_temporarily():
            known = self._symbols.known(sizes)
            return self._maker.make(known, keeps=keeps, captures=captures, apart=apart, like=like)

    # ---- what there is

    def all_instances(self) -> list[Instance]:
        return [*self._of_modules(), *self._of_no_module()]

    def _of_no_module(self) -> list[Instance]:
        found = self._unclaimed, self._orphan, self._shared
        return [each for each in found if each is not None]

    def _of_modules(self) -> list[Instance]:
        return [each for first in self._firsts() for each in (first, *list(first.further))]

    def _firsts(self) -> list[Instance]:
        """One for each set of sizes and each module: without those for further calls in flight."""
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

    # ---- letting go

    def shutdown(self) -> None:
        """Gives back graphs and arenas of all its programs, which cannot run afterwards."""
        if WRITTEN_TO:  # what they were is gone then
            self._last_report = self.whole_report()
        for instance in self.all_instances():
            if instance.program is not None:
                instance.program.shutdown()

    def drop(self, tensors: Set[int] | None = None) -> int:
        """Lets go of the programs for modules with one of these tensors, by `id`, or of all.

        Returns how many. The next call makes what it needs.
        """
        dropped = [i for i in self._of_modules() if tensors is None or i.knows(tensors)]
        if tensors is None:
            dropped += [each for each in self._of_no_module() if each.program is not None]
        for instance in dropped:
            self._let_go(instance)
        return len(dropped)

    def drop_converted(self) -> None:
        """Those whose module is on another device by now, or of another dtype: what they hold, the
        module has left."""
        for instance in self._of_modules():
            if instance.was_converted():
                self._let_go(instance)

    def end_unrun(self) -> bool:
        """Lets go of the program that was made while compiling, if no call has taken it. Returns
        whether no program is left."""
        if self._unclaimed is not None:
            unclaimed, self._unclaimed = self._unclaimed, None
            unclaimed.let_go()
        return not self.all_instances()

    def _end(self, instance: Instance) -> None:
        """An owner of it is gone: its module is, or has assigned a buffer anew."""
        if instance is self._orphan:
            return
        self._end_orphan()
        if self._owners and self._owners_are_buffers:
            self._remove(instance)
            self._orphan = instance
        else:
            self._finish(instance)

    def _end_orphan(self) -> None:
        orphan, self._orphan = self._orphan, None
        if orphan is not None:
            self._finish(orphan)

    def _finish(self, instance: Instance) -> None:
        self._modules.gone(replayed=instance.program.stats()["replays"] > 0)
        self._let_go(instance)

    def _take_orphan(self, sizes: tuple[int, ...]) -> Instance | None:
        """It is for the module that is called next, if sizes are the same; else it ends."""
        if self._orphan is not None and self._orphan.sizes == sizes:
            orphan, self._orphan = self._orphan, None
            return orphan
        self._end_orphan()
        return None

    def _let_go(self, instance: Instance) -> None:
        for further in list(instance.further):
            self._let_go(further)
        if WRITTEN_TO and instance.program is not None:
            ended = program_report(instance, self.options, detailed=PAGE_AT_EXIT)
            self._ended.append(ended)
        self._remove(instance)
        self._had_several = True  # a backward of its calls may still come, beside the next one's
        if self._unclaimed is instance:
            self._unclaimed = None
        if self._orphan is instance:
            self._orphan = None
        if self._shared is instance and not self._is_around:
            self._shared = None
        instance.let_go()

    def _remove(self, instance: Instance) -> None:
        """No call finds it any more."""
        for first in self._firsts():
            if instance in first.further:
                first.further.remove(instance)
        for key, several in list(self._instances.items()):
            if instance in several:
                several.remove(instance)
            if not several:
                self._instances.pop(key, None)
        if self._current is instance:
            self._current = None


def _ending(graph: weakref.ref[CompiledGraph]) -> Callable[[Instance], None]:
    """CompiledGraph._end, which does not keep the graph alive."""

    def end(instance: Instance) -> None:
        found = graph()
        if found is not None:
            found._end(instance)

    return end


def _summed_edges(traced: TracedGraphs) -> dict[int, str]:
    """The name of each argument whose gradient is a sum, by its position among the tensors."""
    inputs = traced.forward.graph.find_nodes(op="placeholder")
    tensors = [i for i, n in enumerate(inputs) if isinstance(n.meta.get("val"), torch.Tensor)]
    return {tensors.index(i): traced.differentiated[i] for i in traced.terms}


def _owners_among(args: Sequence[Any], kept: list[int]) -> list[int]:
    """Of what a module keeps, what does not change: its parameters, frozen ones too."""
    return [i for i in kept if _is_parameter(args[i])] or kept


def _is_parameter(value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter)
