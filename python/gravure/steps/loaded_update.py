"""A recorded update as a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..calls.compiled_graph import CompiledGraph
from ..calls.instance import Instance
from ..calls.live_graphs import follow_update
from ..errors import ExportError, reason_and_cure
from ..graphs.devices import device_of
from ..graphs.names import InputSpec, Namer
from ..graphs.update_recorder import RecordedUpdate, conditions_of, conditions_on_counts
from ..library.direct_calls import direct
from ..library.load import program_class
from ..options import CompileOptions
from ..text.fx_import import EntryWriter
from ..text.program_text import HEADER
from ..torch_api.dispatch import without_modes
from ..torch_api.dtensors import local_of, locals_of, lying_as

_ENTRY = "step"


def _nobody() -> None:
    """In the place of a traced function, which a Namer asks for names: inputs have theirs."""


class _Loaded(Instance):
    """For reports alone: LoadedUpdate calls the program itself."""

    def __init__(self, program: Any) -> None:
        super().__init__(_nobody_calls, None)
        self.program = program


def _nobody_calls(args: list[Any]) -> Any:
    raise AssertionError("an update is called by its owner")


class SharedMemory(ExportError):
    """Two tensors of an update share memory that it writes: for other tensors it is right."""


class LoadedUpdate:
    """Right for as long as `holds`. Numbers that the update does not use are not passed on."""

    def __init__(
        self,
        name: str,
        update: RecordedUpdate,
        inputs: Sequence[tuple[str, str, Tensor]],
        options: CompileOptions,
    ) -> None:
        """`inputs`: role, name and an example of each tensor. Raises ExportError."""
        self._update = update
        self._holds = conditions_of(update, [tensor for _, _, tensor in inputs])
        with without_modes():
            self._program = self._load(name, inputs, options)
        self._reported = CompiledGraph.around(name, options, _Loaded(self._program))
        follow_update(self._reported)
        self._run = direct(self._program, "run", _ENTRY)
        self._repeat = direct(self._program, "run_update", _ENTRY)
        self._run_on: Callable[..., list[Any]] | None = None  # keep_gradients()
        self._holds_of_counts = conditions_on_counts(update)
        self._counts: list[float] = []  # of counters, before the next step

    def holds(self, numbers: list[float]) -> bool:
        """Whether all that its code branched on is as it was."""
        return self._holds is None or self._holds(numbers)

    def bind(self, positions: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """From now on run() takes the other tensors alone."""
        self._program.bind(_ENTRY, list(positions), locals_of(tensors))

    def watch(self, tensors: Sequence[Tensor]) -> None:
        """Conditions are on these, one an input, from now on."""
        self._holds = conditions_of(self._update, tensors)

    def run(self, tensors: Sequence[Tensor], numbers: list[float]) -> list[Any]:
        """Runs on the tensors that are not bound, and on all numbers. What the update returns.

        Raises SharedMemory, and nothing has run.
        """
        given = [float(numbers[i]) for i in self._update.numbers]
        values = [*locals_of(tensors), *given]
        try:
            results = self._run(values)
        except RuntimeError:
            shared = self._program.shared_inputs(_ENTRY, values)
            if not shared:
                raise
            raise SharedMemory(_ENTRY, *reason_and_cure(shared)) from None
        return [lying_as(*pair) for pair in zip(self._update.specs, results, strict=True)]

    def keep_gradients(self, examples: Sequence[Tensor]) -> None:
        """Has run_on() take gradients like these, its inputs, where they are plain tensors."""
        self._program.keep_gradients(_ENTRY, list(examples))
        self._run_on = direct(self._program, "run_on_gradients", _ENTRY)

    def run_on(self, owners: Sequence[Tensor], numbers: list[float]) -> list[Any] | None:
        """run() on the gradients that these have. None, and nothing has run, where they are of
        other kinds, or were not kept."""
        if self._run_on is None:
            return None
        given = [float(numbers[i]) for i in self._update.numbers]
        ran, *results = self._run_on(owners, given) or (False,)
        return results if ran else None

    def keep(
        self,
        gradients: Sequence[int],
        owners: Sequence[int],
        without: Sequence[Tensor],
        label: str,
    ) -> bool:
        """Has repeat() take the gradients of the inputs at `owners`, which are the inputs at
        `gradients`; all else but numbers is bound. False where one of its conditions is on two
        counters."""
        if self._holds_of_counts is None:
            return False
        count = len(self._program.inputs(_ENTRY))
        roles = [role for role, _ in self._program.inputs(_ENTRY)]
        numbers = [i for i in range(count) if roles[i] == "symint"]
        self._program.keep_update(
            _ENTRY,
            list(gradients),
            list(owners),
            numbers,
            self._update.counters,
            list(without),
            label,
        )
        self._counts = []
        return True

    def repeat(self, numbers: list[float]) -> bool:
        """run(), where all but numbers is as in the step before. False, and nothing has run, where
        it is not."""
        given = [numbers[i] for i in self._update.numbers]
        for _ in range(2):
            if not self._holds_of_counts(numbers, self._counts):
                return False
            answer = self._repeat(given, self._counts)
            if not answer:
                return False
            ran, *self._counts = answer
            if ran:
                return True
        return False

    def stats(self) -> dict[str, int]:
        return dict(self._program.stats())

    def text(self) -> str:
        return str(self._program.text())

    def _load(
        self, name: str, inputs: Sequence[tuple[str, str, Tensor]], options: CompileOptions
    ) -> Any:
        writer = EntryWriter(Namer(_nobody, ()))
        bound: list[Any] = [
            writer.add_input(InputSpec(role, of, None), writer.types.of(local_of(tensor).detach()))
            for role, of, tensor in inputs
        ]
        bound += [write_number(writer, i) for i in self._update.numbers]
        results = writer.add_graph(self._update.graph, bound)
        outputs = [f'{writer.env[r]} {{output "{i}"}}' for i, r in enumerate(results)]
        text = f"{HEADER}\n{writer.text(_ENTRY, outputs)}"
        device = device_of([self._update.graph], name)
        # A foreach call is many kernels.
        library = {"min_partition_size": "1", "write_numbers": "1"} | options.for_library()
        # GRAVURE_OPTIONS may say whose memory results of steps are: a norm is the caller's.
        library["results"] = "owned"
        program = program_class().of_text(text, device, library)
        constants = {
            i: spec.value for i, (spec, _, _) in enumerate(writer.inputs) if spec.role == "constant"
        }
        program.bind(_ENTRY, list(constants), list(constants.values()))
        return program


def write_number(writer: EntryWriter, i: int) -> str:
    """The input for a number that each step is given."""
    return writer.add_input(InputSpec("symint", f"number{i}", None), "float")
