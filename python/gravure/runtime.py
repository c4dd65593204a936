"""Runs exported programs: `gravure.load` gives one that is warmed up, captured and replayed."""

from __future__ import annotations

import inspect
import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .export import INPUTS_FILE, PROGRAM_FILE
from .graphs.devices import arena_excess
from .library.direct_calls import direct
from .library.load import program_class
from .options import CompileOptions, library_options
from .page.step_data import read_step
from .report import write_program
from .sizes import share_text
from .torch_api.dispatch import not_traced
from .torch_api.fake_tensors import storage_key

_KEPT = ("parameter", "buffer", "constant", "rng_state")
_COLLECTIVES = "_c10d_functional"
_SUMMED = ("steps", "uncaptured_steps", "captures", "replays", "host_calls")


class Slot(NamedTuple):
    """One input or output of an entry: its role (docs/program-text.md) and its name."""

    role: str
    name: str


@not_traced
def release_memory() -> int:
    """Gives back the memory of every program that is at rest, on all devices; returns its bytes.

    Captures and what somebody holds stay. The next step of a program takes its memory again.
    """
    return program_class().release_memory()


def loaded_programs() -> list[Any]:
    """Those of `load` that are alive, of the library's class."""
    return [program for each in list(_LOADED) for program in each._instances]


class Program:
    """An exported program on one device. One step at a time, from one thread at a time.

    A forward may be called again before its backward: each call in flight has an instance, a
    program of the same text with captures of its own. `instance` says which one; everything else
    that is asked of a program is of the first.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: str,
        options: dict[str, str],
        max_in_flight: int = 1,
    ) -> None:
        given = Path(path)
        self._settings = {"device": device} | options
        file = given / PROGRAM_FILE if given.is_dir() else given
        self._program = program_class()(str(file), device, options)
        # Looked up anew, each would cost as much as a launch.
        self._runs = [self._direct_runs(self._program)]
        saving = max_in_flight > 1 and len(self._program.entries()) > 1
        # Ranks would have to agree on the number of instances.
        alone = not saving or _COLLECTIVES in self._program.text()
        self._most = 1 if alone else max_in_flight
        self._instances = [self._program]
        self._last = 0
        self._bound: dict[str, dict[int, Any]] = {}  # by position
        self._readers: dict[str, bool] = {}  # entries, and whether they are given saved values
        self._file, self._folder = file, file.parent
        self._device = torch.device("cpu" if device == "host" else device)
        self._slots: dict[str, list[Slot]] = {}
        self._open: dict[str, list[int]] = {}  # positions that are not bound
        _LOADED.add(self)

    def __repr__(self) -> str:
        step = read_step(json.loads(self._program.detail_json()))
        planned = share_text(step.captured(), step.operators)
        states = {entry: self.partition_states(entry) for entry in self.entries}
        captured = step.captured(states)
        share = share_text(captured, step.operators) if captured else f"nothing of {planned} yet"
        if step.captured() and not any(states.values()) and self._program.stats()["steps"]:
            share = "released"
        if self._settings["uncaptured"] == "1":
            share = "nothing, as asked"
        return (
            f"Program({os.fspath(self._file)!r}, device={self._settings['device']!r}, "
            f"entries={self.entries}, nodes={len(step.calls)}, captured={share!r})"
        )

    @property
    def entries(self) -> list[str]:
        """`["step"]`, or `["forward", "backward"]`."""
        return self._program.entries()

    def inputs(self, entry: str = "step") -> list[Slot]:
        """What the entry takes, in order. Random states come last where the passes added them."""
        if entry not in self._slots:
            self._slots[entry] = [Slot(*pair) for pair in self._program.inputs(entry)]
        return self._slots[entry]

    def outputs(self, entry: str = "step") -> list[Slot]:
        """What the entry returns, in order."""
        return [Slot(*pair) for pair in self._program.outputs(entry)]

    def saved_inputs(
        self, entry: str = "step", roles: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """The values at export, by name, each on the program's device; random states as generators.

        `roles` takes those of some roles alone. Tensors that shared memory at export share it here.
        """
        saved = torch.load(self._folder / INPUTS_FILE, weights_only=True)[entry]
        slots = {slot.name: slot for slot in self.inputs(entry)}
        moved: dict[int, torch.UntypedStorage] = {}
        values: dict[str, Any] = {}
        for name, value in saved.items():
            role = slots[name].role if name in slots else None
            if roles is not None and role not in roles:
                continue
            if role == "rng_state":
                value = self._generator(value)
            elif isinstance(value, torch.Tensor):
                value = self._on_device(value, moved)
            values[name] = value
        return values

    def bind(self, values: Mapping[str, Any], entry: str = "step") -> None:
        """Keeps these inputs, by name, for every run to come.

        What stays at its address from step to step belongs here: a run then takes only the rest,
        and costs less. Raises KeyError for a name that the entry does not take.
        """
        slots = self.inputs(entry)
        positions = self._positions(entry, values)
        given = {i: values[slots[i].name] for i in positions}
        for program in self._instances:
            program.bind(entry, list(given), list(given.values()))
        if self._most > 1:  # for those that come
            self._bound.setdefault(entry, {}).update(given)
        self._open[entry] = [i for i in self._open_positions(entry) if i not in set(positions)]

    def bind_saved(self, entry: str = "step", roles: Sequence[str] = _KEPT) -> None:
        """Binds inputs as they were at export: parameters, buffers, constants and random states.

        `roles` takes some of these: `("constant", "rng_state")` where the caller's own parameters
        are bound, which would be in memory twice otherwise.
        """
        self.bind(self.saved_inputs(entry, roles), entry)

    def run(
        self,
        inputs: Sequence[Any] | Mapping[str, Any],
        entry: str = "step",
        *,
        instance: int | None = None,
    ) -> list[Any]:
        """One step. `inputs`: what is not bound, in order, or by name.

        A default random state may be left out, or None. Returns one value an output; they are the
        caller's. Raises RuntimeError, which names the input, where one does not fit the program;
        where an operator fails, what eager raises, with the operator's location.

        A forward runs on an instance of which nobody holds saved values, a backward on the one that
        saved what it is given; or on `instance`, for who sees to it himself: one that there is, or
        the next one.
        """
        # What is in the way costs a part of a launch: nothing is called for a plain list.
        positions = self._open.get(entry)
        plain = type(inputs) is tuple or type(inputs) is list
        if plain and positions is not None and len(inputs) == len(positions):
            values: Any = inputs
        else:
            values = self._values(inputs, entry)
        if self._most > 1 or instance is not None:
            self._last = self._choose(entry, values) if instance is None else self._at(instance)
        run = self._runs[self._last].get(entry)
        return self._program.run(entry, values) if run is None else run(values)

    @property
    def instance(self) -> int:
        """Which instance ran the last step: 0 where one call is in flight at a time."""
        return self._last

    @property
    def instances(self) -> int:
        """How many there are: as many as calls were in flight at once."""
        return len(self._instances)

    @staticmethod
    def _direct_runs(program: Any) -> dict[str, Callable[[Any], list[Any]]]:
        """By entry."""
        return {entry: direct(program, "run", entry) for entry in program.entries()}

    def _at(self, instance: int) -> int:
        if not 0 <= instance <= len(self._instances) or instance >= self._most:
            raise IndexError(
                f"instance {instance} of {len(self._instances)}, of which {self._most} may be made "
                "(max_in_flight)"
            )
        if instance == len(self._instances):
            made = self._program.again()
            made.warm_up_with(self._program)
            for entry, given in self._bound.items():
                made.bind(entry, list(given), list(given.values()))
            self._instances.append(made)
            self._runs.append(self._direct_runs(made))
        return instance

    def _choose(self, entry: str, values: Sequence[Any]) -> int:
        if self._reads_saved(entry):
            owns = (i for i, p in enumerate(self._instances) if p.has_saved(entry, values))
            return next(owns, 0)  # what ran uncaptured saved it: any instance takes it so
        free = (i for i, p in enumerate(self._instances) if not p.holds_saved())
        if (found := next(free, None)) is not None:
            return found
        count = len(self._instances)
        if count >= self._most or arena_excess(self._program, str(self._device)):
            return count - 1  # uncaptured
        return self._at(count)

    def _reads_saved(self, entry: str) -> bool:
        if entry not in self._readers:
            self._readers[entry] = any(slot.role == "saved" for slot in self.inputs(entry))
        return self._readers[entry]

    def _values(self, inputs: Sequence[Any] | Mapping[str, Any], entry: str) -> list[Any]:
        positions = self._open_positions(entry)
        # A tuple is told apart in a third of the time that an abstract class takes.
        if not isinstance(inputs, (tuple, list)) and isinstance(inputs, Mapping):
            return self._by_name(entry, inputs, positions)
        values = list(inputs)
        for position in positions[len(values) :]:
            if self.inputs(entry)[position].role != "rng_state":
                break
            values.append(None)
        return values

    def remarks(self) -> list[dict[str, str]]:
        """What was done, missed and found, in order: kind, pass, name, node, source, message."""
        return json.loads(self._program.remarks_json())

    def remarks_text(self) -> str:
        return self._program.remarks_text()

    def plan(self) -> str:
        """How the program is cut; once warmed up, also where its memory lies."""
        return self._program.plan()

    def text(self) -> str:
        """The program as the passes left it."""
        return self._program.text()

    def stats(self) -> dict[str, int]:
        """Steps, captures, replays, bytes: `RuntimeStats` of runtime/runtime.h. Steps, captures and
        replays are those of all instances."""
        found = dict(self._program.stats())
        for further in self._instances[1:]:
            theirs = further.stats()
            for name in _SUMMED:
                found[name] += theirs[name]
        return found

    def partition_states(self, entry: str = "step") -> list[str]:
        """`cold`, `warmed-up`, `captured` or `quarantined`, one a partition."""
        return self._program.partition_states(entry)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page to look at, as `gravure.report(html=path)` does of compiled graphs.

        Raises OSError, which names the path, where it cannot be written.
        """
        file = self._file
        name = self._folder.name if file.name == PROGRAM_FILE else file.name
        write_program(path, name or str(file), self._program, self._settings)

    def inject_fault(self, point: str, countdown: int = 1) -> None:
        """Fails a coming capture-begin, capture-call, capture-end, launch or allocation."""
        self._program.inject_fault(point, countdown)

    def synchronize(self) -> None:
        self._program.synchronize()

    def shutdown(self) -> None:
        """Gives back graphs and arena. Results that a step returned live on."""
        for program in self._instances:
            program.shutdown()

    def _open_positions(self, entry: str) -> list[int]:
        if entry not in self._open:
            self._open[entry] = list(range(len(self.inputs(entry))))
        return self._open[entry]

    def _positions(self, entry: str, values: Mapping[str, Any]) -> list[int]:
        slots = self.inputs(entry)
        unknown = values.keys() - {slot.name for slot in slots}
        if unknown:
            raise KeyError(f"entry {entry} has no input {', '.join(sorted(unknown))}")
        return [i for i, slot in enumerate(slots) if slot.name in values]

    def _by_name(self, entry: str, inputs: Mapping[str, Any], positions: list[int]) -> list[Any]:
        bound = set(self._positions(entry, inputs)) - set(positions)
        slots = self.inputs(entry)
        if bound:
            names = ", ".join(slots[i].name for i in sorted(bound))
            raise KeyError(f"entry {entry} has {names} bound; bind them anew to change them")
        for i in positions:
            if slots[i].name not in inputs and slots[i].role != "rng_state":
                raise KeyError(f"entry {entry} needs the {slots[i].role} {slots[i].name}")
        return [inputs.get(slots[i].name) for i in positions]

    def _generator(self, state: Any) -> Any:
        if not isinstance(state, torch.Tensor):
            return state
        generator = torch.Generator(self._device)
        if (state.numel() == 16) == (self._device.type == "cuda"):
            generator.set_state(state)
        else:  # a state of the other device: its seed alone means something here
            generator.manual_seed(int(state[:8].view(torch.int64)) & (2**63 - 1))
        return generator

    def _on_device(self, tensor: torch.Tensor, moved: dict[int, torch.UntypedStorage]) -> Any:
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        if self._device.type == "cpu":
            return tensor
        if key not in moved:
            moved[key] = torch.UntypedStorage(len(storage), device=self._device)
            moved[key].copy_(storage)
        empty = torch.empty(0, dtype=tensor.dtype, device=self._device)
        return empty.set_(moved[key], tensor.storage_offset(), tensor.shape, tensor.stride())


def load(
    path: str | os.PathLike[str],
    device: str = "host",
    *,
    host: Sequence[str] = (),
    order: str = "levels",
    min_partition_size: int | None = None,
    memory_growth: float | None = None,
    memory_slack: int | None = None,
    uncaptured: bool = False,
    require_capture: bool = False,
    results: str = "owned",
    agree: str = "capture",
    poison: bool | None = None,
    shadow: int = 0,
    max_in_flight: int = 32,
    times: bool = False,
) -> Program:
    """Reads an exported program, cuts it, and makes it ready to run on `device`.

    `path` is what `export_step` or `export_joint` wrote: the folder, or a program text. `device` is
    `"host"`, which emulates capture on the CPU, or `"cuda"`, `"cuda:1"`. `host` names operators
    (`"aten::mm"`) and module paths (`"blocks.3.moe"`) to keep out of graphs; `order` is
    `"levels"` or `"program"`. `uncaptured` runs node by node, for comparisons; `require_capture`
    makes it an error that a node which `host` does not name stays out of graphs, or that a capture
    fails. `results` are the caller's (`"owned"`: gradients are lent
    without a copy until somebody still holds one when the next step comes; `"copied"`: always a
    copy), or the arena's own, at the same address each step (`"static"`). With `"accumulate"`
    they are owned, but gradients are no results: the program adds that of the parameter `w` to a
    buffer of the caller's, its input `w.grad`. With collectives in graphs the ranks `agree` on how
    a step runs until all have captured it (`"capture"`), or always (`"step"`). With `shadow=N` each
    Nth run of an entry is compared with the uncaptured path, and a warning names the first value
    that differs. Calls of a forward before its backward are captured for up to `max_in_flight` of
    them, where no collectives are in graphs and results are owned or copied. With `times`, runs of
    each entry are timed for the page (`Program.to_html`). GRAVURE_OPTIONS in the environment is in
    force for what is not given, or given as it is by default. Raises ValueError for an option's
    value that is none; RuntimeError, which names the location or the node.
    """
    given: dict[str, Any] = {
        "host": host,
        "order": order,
        "min_partition_size": min_partition_size,
        "memory_growth": memory_growth,
        "memory_slack": memory_slack,
        "uncaptured": uncaptured,
        "require_capture": require_capture,
        "results": results,
        "agree": agree,
        "poison": poison,
        "shadow": shadow,
        "times": times,
    }
    given["max_in_flight"] = max_in_flight
    CompileOptions.check(**given)
    for name, value in CompileOptions.defaults().items():
        if name in given and given[name] == _DEFAULTS[name]:
            given[name] = value
    max_in_flight = given.pop("max_in_flight")
    results, uncaptured = given["results"], given["uncaptured"]
    options = library_options(**given)
    several = results in ("owned", "copied") and not uncaptured
    return Program(path, device, options, max_in_flight if several else 1)


_LOADED: weakref.WeakSet[Program] = weakref.WeakSet()
_DEFAULTS = {each.name: each.default for each in inspect.signature(load).parameters.values()}
