"""What AOTAutograd is asked for, and what becomes of its graphs, by the option `codegen`."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import fx

from ..errors import ExportError
from ..library.load import program_class
from ..library.progress import under_way
from ..options import CompileOptions
from ..torch_api.eager_kernels import eager_kernels
from ..torch_api.inductor import (
    compile_region,
    cut_for_inductor,
    decompositions,
    load_inductor,
    must_draw_by_seeds,
    start_compiling_processes,
)
from ..torch_api.recurrent_modules import eager_recurrent_modules
from .compiled_ops import CompiledCode
from .compiled_regions import compile_regions, has_host_parts
from .constant_numbers import with_numbers
from .constants import fold_constants, share_constants
from .known_numbers import KnownNumbers
from .partition import drawn_twice, partition
from .seeded_draws import draws_by_seed

logger = logging.getLogger("gravure")

Made = TypeVar("Made")


class HostParts(Exception):
    """Inductor was to compile the graphs as a whole, and they have parts that it cannot: these, and
    what lies between them, run faster as eager's own operators."""


class DrawnTwice(Exception):
    """Inductor's cut makes a draw of the forward once more in the backward."""


@dataclass(frozen=True)
class Style:
    """How AOTAutograd makes graphs.

    `whole`: as Inductor wants them, taken apart and with what is cheap recomputed; for graphs
    without a node for the host. Otherwise: eager's operators, from which Inductor takes regions.
    """

    inductor: bool = False
    whole: bool = False
    fused_random: bool = False  # compiled regions draw random numbers of Inductor's own

    @property
    def decompositions(self) -> dict[Any, Callable[..., Any]]:
        if not self.inductor:
            return {}
        taken_apart = decompositions(fused_random=self.fused_random) if self.whole else {}
        return with_numbers(taken_apart)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        with eager_recurrent_modules() if self.whole else eager_kernels():
            yield

    def partition(
        self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        fold_constants(joint)
        cut: Callable[..., Any] = partition
        if self.whole:
            cut = functools.partial(cut_for_inductor, fused_random=self.fused_random)
        forward, backward = cut(joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest)
        if self.whole and (twice := drawn_twice(forward, backward)):
            logger.warning(
                "a backward would draw %s anew, with other numbers than its forward: the graph is "
                "cut as eager saves. Leave activation_memory_budget of torch._functorch.config at "
                "1, and aggressive_recomputation off; torch.utils.checkpoint repeats its draws",
                twice[0],
            )
            raise DrawnTwice
        share_constants(forward, backward, num_fwd_outputs)
        return forward, backward


ATEN = Style()


def load_compiler(options: CompileOptions) -> None:
    """Imports what these options need. Called where a user says what is to be compiled."""
    if options.codegen == "inductor":
        load_inductor()


def make_ready(options: CompileOptions) -> None:
    """Starts what compiling by these options will wait for. Called ahead of the tracing."""
    if options.codegen == "inductor":
        start_compiling_processes()


def styles(options: CompileOptions, *, symbolic: bool) -> list[Style]:
    """The styles to try, until one does not fail."""
    if options.codegen == "aten":
        return [ATEN]
    if options.fused_random:
        must_draw_by_seeds()
    # With open sizes the plan, which tells of host nodes, comes later than the graphs.
    wholes = (True, False)[int(symbolic) :]
    return [Style(inductor=True, whole=w, fused_random=options.fused_random) for w in wholes]


def in_first_style(
    options: CompileOptions, label: str, make: Callable[[Style], Made], *, symbolic: bool
) -> Made:
    """`make` of the first style that does not fail; the last one's error is raised."""
    *others, last = styles(options, symbolic=symbolic)
    for style in others:
        try:
            return make(style)
        except Exception as error:  # what is wrong with the graph shows again in the last one
            logger.debug("%s: not whole by Inductor: %r", label, error)
    return make(last)


@dataclass
class CompiledRegions:
    """Some graphs with their regions compiled: what a program needs as long as it runs."""

    modules: list[fx.GraphModule]  # the graphs, which call `codes`
    codes: list[CompiledCode] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)  # remarks on regions that stayed as they were


def compile_graphs(
    graphs: list[tuple[fx.GraphModule, str]],
    owners: dict[str, list[fx.Node | None]],
    text: str,
    known: KnownNumbers,
    style: Style,
    options: CompileOptions,
    label: str,
    *,
    inference: bool = False,
    donatable: Collection[fx.Node] = (),
) -> CompiledRegions:
    """The graphs, each with the name of its entry, with Inductor's code for their partitions.

    `text` is the program as ATen's operators, `owners` says by entry for which node each statement
    was written; with `inference` nothing was differentiated. Code of the last graph may write over
    its placeholders that are `donatable`. Raises HostParts where `style` is for
    graphs without any; ExportError, with on_missed="raise", for what Inductor cannot compile.
    """
    planned = program_class().planned_sections(text, options.for_library())
    if style.whole and any(map(has_host_parts, planned.values())):
        raise HostParts
    made = CompiledRegions([])
    for i, (module, entry) in enumerate(graphs):
        compiler = functools.partial(
            compile_region,
            decompose=not style.whole or bool(known),
            backward=i > 0,
            inference=inference,
            mode=options.mode,
            fused_random=style.fused_random,
        )
        name = f"{label} {('forward', 'backward')[i] if len(graphs) > 1 else 'step'}"
        with under_way(f"compiling {name} with Inductor"):
            given = donatable if i > 0 else ()
            compiled = compile_regions(
                module, owners[entry], planned[entry], known, name, compiler, given
            )
        if compiled.missed and style.whole:
            raise HostParts  # what is left of it runs better as eager's operators
        if any(map(draws_by_seed, compiled.module.graph.nodes)):
            raise HostParts  # outside of Inductor's code they draw without their seed
        if compiled.missed and options.on_missed == "raise":
            raise ExportError(
                label, compiled.missed[0], 'use codegen="aten", or keep this out of the graph'
            )
        made.modules.append(compiled.module)
        made.codes += compiled.codes
        made.missed += compiled.missed
    return made
