"""Options of `torch.compile(backend="gravure")` and `compile_step`: docs/torch-compile.md."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .torch_api.symmetric_memory import watch_workspaces
from .torch_api.whether_compiled import Answer

ORDERS = ("levels", "program")
ON_MISSED = ("warn", "raise")
RESULTS = ("owned", "copied", "static", "accumulate")
AGREE = ("capture", "step")
CODEGENS = ("aten", "inductor")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
REGIONS = ("auto", "divided", "undivided")


def library_options(
    *,
    host: Sequence[str] = (),
    order: str = "levels",
    min_partition_size: int | None = None,
    memory_growth: float | None = None,
    memory_slack: int | None = None,
    uncaptured: bool = False,
    require_capture: bool | str = False,
    results: str = "owned",
    agree: str = "capture",
    poison: bool | None = None,
    shadow: int = 0,
    times: bool = False,
) -> dict[str, str]:
    """Options as the C++ library reads them: `require_capture` may also be "partitions"."""
    options = {"order": order, "uncaptured": str(int(uncaptured))}
    named = require_capture if isinstance(require_capture, str) else str(int(require_capture))
    options["require_capture"] = named
    options["results"] = results
    options["agree"] = agree
    # Every program's options pass here, before it runs.
    if host := (*host, *watch_workspaces()):
        options["host"] = ",".join(host)
    if min_partition_size is not None:
        options["min_partition_size"] = str(min_partition_size)
    if memory_growth is not None:
        options["memory_growth"] = repr(float(memory_growth))
    if memory_slack is not None:
        options["memory_slack"] = str(int(memory_slack))
    if shadow:
        options["shadow"] = str(int(shadow))
    if times:
        options["times"] = "1"
    if poison is not None:
        options["poison"] = str(int(poison))
    return options


VARIABLE = "GRAVURE_OPTIONS"
WRITTEN_TO = os.environ.get("GRAVURE_REPORT", "")  # at exit; "" for nowhere
PAGE_AT_EXIT = WRITTEN_TO.endswith((".html", ".htm"))  # whose programs need every call and its time
_TRUTHS = {"1": True, "true": True, "0": False, "false": False}


def defaults_of(text: str) -> dict[str, Any]:
    """Options as GRAVURE_OPTIONS has them: `codegen=inductor,host=aten::mm,blocks.3`.

    What has no `=` goes on with the list before it. Values are checked by CompileOptions.parse.
    Raises ValueError for a text that is none.
    """
    found: dict[str, Any] = {}
    name = ""
    for part in filter(None, map(str.strip, text.split(","))):
        key, equals, value = map(str.strip, part.partition("="))
        if equals and key:
            name = key
            if name == "host":
                found[name] = [value] if value else []
            else:
                found[name] = _value_of(name, value)
        elif name == "host" and not equals:
            found[name].append(part)
        else:
            raise ValueError(f"expected name=value, found {part!r}")
    return found


def _value_of(name: str, text: str) -> Any:
    """As the option is typed; what is no such value stays text, and is refused later."""
    kinds = {each.name: str(each.type) for each in fields(CompileOptions)}
    kind = kinds.get(name, "")
    try:
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
    except ValueError:
        return text
    return _TRUTHS.get(text.lower(), text) if kind.startswith("bool") else text


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


_CHECKS: dict[str, tuple[Any, str]] = {
    "host": (_is_names, "a list of operators and module paths"),
    "order": (ORDERS.__contains__, " or ".join(map(repr, ORDERS))),
    "min_partition_size": (_is_count, "a whole number of at least 1"),
    "memory_growth": (_is_share, "a share of at least 0"),
    "memory_slack": (_is_whole, "a whole number of bytes"),
    "shadow": (_is_whole, "a whole number of runs, 0 for none"),
    "max_shapes": (_is_count, "a whole number of at least 1"),
    "max_modules": (_is_count, "a whole number of at least 1"),
    "max_in_flight": (_is_count, "a whole number of at least 1"),
    "results": (RESULTS.__contains__, " or ".join(map(repr, RESULTS))),
    "agree": (AGREE.__contains__, " or ".join(map(repr, AGREE))),
    "codegen": (CODEGENS.__contains__, " or ".join(map(repr, CODEGENS))),
    "mode": (MODES.__contains__, "a mode of torch.compile: " + ", ".join(map(repr, MODES))),
    "regions": (REGIONS.__contains__, " or ".join(map(repr, REGIONS))),
    "on_missed": (ON_MISSED.__contains__, " or ".join(map(repr, ON_MISSED))),
}


@dataclass(frozen=True)
class CompileOptions:
    """Options of torch.compile(backend="gravure"), compile_step and compile_optimizer, checked."""

    codegen: str = "aten"
    """whose kernels: `"aten"` or `"inductor"`"""
    mode: str | None = None
    """a mode of torch.compile's, and so `codegen="inductor"`: see [Inductor's
    kernels](torch-compile.md#inductors-kernels)"""
    fused_random: bool = False
    """Inductor's kernels draw random numbers of their own, in place of eager's: see
    [above](torch-compile.md#random-numbers-of-inductors-own)"""
    regions: str = "auto"
    """with Inductor's kernels, what forward and backward of a step are to it: `"divided"`, two
    graphs, `"undivided"`, one, or `"auto"`, by size; for `compile_step` alone"""
    host: Sequence[str] = ()
    """operators (`"aten::mm"`) and module paths (`"blocks.3.moe"`) to keep out of graphs"""
    order: str = "levels"
    """order of partitions: `"levels"` or `"program"`"""
    min_partition_size: int | None = None
    """smaller partitions run on the host"""
    memory_growth: float | None = None
    """the share by which `"levels"` may raise the planned peak"""
    memory_slack: int | None = None
    """the bytes by which it may raise it in any case"""
    uncaptured: bool = False
    """run node by node, for comparisons"""
    require_capture: bool = False
    """a missed capture is an error: see below"""
    results: str = "owned"
    """whose memory results are, `"accumulate"` for gradients that are added to `.grad` inside the
    step (`compile_step` alone): see [runtime.md](runtime.md)"""
    agree: str = "capture"
    """when ranks decide together how a step runs: `"capture"`, until all have captured it, or
    `"step"`, always: see [distributed.md](distributed.md)"""
    poison: bool = False
    """the host device overwrites dead memory, for tests"""
    shadow: int = 0
    """each Nth run of an entry is compared with the uncaptured path, and a warning names the first
    value that differs, with its line; `0`: none: see [below](torch-compile.md#is-a-replay-right)
    """
    times: bool = False
    """runs of each entry are timed, uncaptured and replayed, and each call of one, for the page; so
    where `GRAVURE_REPORT` names a page: see [see it](see-it.md#times)"""
    eager_rng: bool = False
    """checkpointed random operators on CUDA repeat eager's own draws, on the host"""
    is_compiling: bool | None = None
    """what code is told that asks whether it is compiled, and may take another way; by default
    `False`, and with Inductor's kernels `True` for a function whose other way branches on data: see
    [above](torch-compile.md#code-that-asks-whether-it-is-compiled)"""
    max_shapes: int | None = None
    """sets of sizes of one graph that get programs of their own; by default 8 to 64, as many as
    take a GiB: see [below](torch-compile.md#sizes); not for `compile_step`"""
    max_modules: int = 256
    """modules sharing one graph that get programs of their own; not for `compile_step`"""
    max_in_flight: int = 32
    """calls of one graph whose backwards are still to come that are captured; `1` for no further
    instances; not for `compile_step`"""
    on_missed: str = "warn"
    """`"raise"`: a graph that cannot become a program, and a planned partition that fails to
    capture, are errors; not for `compile_step`, where the first always is"""

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> CompileOptions:
        """`given`, over what the environment's GRAVURE_OPTIONS has.

        Raises ValueError for a name or a value that is none, TypeError for what is no mapping.
        """
        defaults = cls.defaults()
        if not defaults:
            return cls._checked(given)
        cls._check_mapping(given)
        if given and (given.get("mode") or given.get("codegen")):
            without = ["mode", "codegen"]
            if given.get("codegen") == "aten":
                without.append("fused_random")
            defaults = {k: v for k, v in defaults.items() if k not in without}
        return cls._checked(defaults | dict(given or {}))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """What the environment's GRAVURE_OPTIONS has.

        Raises ValueError for a name or a value that is none.
        """
        try:
            found = defaults_of(os.environ.get(VARIABLE, ""))
            cls._checked(found)
        except ValueError as error:
            raise ValueError(f"{VARIABLE}: {error}") from None
        return found

    @staticmethod
    def _check_mapping(given: Any) -> None:
        if given is not None and not isinstance(given, Mapping):
            example = '{"codegen": "inductor"}'
            raise TypeError(f"options: expected a dictionary, as {example}, found {given!r}")

    @classmethod
    def _checked(cls, given: Mapping[str, Any] | None) -> CompileOptions:
        cls._check_mapping(given)
        known = [field.name for field in fields(cls)]
        for name, value in (given or {}).items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ValueError(f"there is no option {name!r}; {hint}there are {', '.join(known)}")
            if value is None and name in ("mode", "max_shapes", "is_compiling"):
                continue
            check, expected = _CHECKS.get(name, (lambda v: isinstance(v, bool), "True or False"))
            if not check(value):
                raise ValueError(f"option {name!r}: expected {expected}, found {value!r}")
        chosen = dict(given or {})
        if chosen.get("mode") is not None and chosen.setdefault("codegen", "inductor") == "aten":
            raise ValueError(
                "option 'mode' is about Inductor's kernels, and option 'codegen' asks for ATen's: "
                "leave one of them out"
            )
        if chosen.get("fused_random"):
            cls._check_fused_random(chosen)
        return cls(**chosen)

    @staticmethod
    def _check_fused_random(chosen: Mapping[str, Any]) -> None:
        if chosen.get("codegen", "aten") == "aten":
            raise ValueError(
                "option 'fused_random' is about Inductor's kernels: give \"codegen\": "
                '"inductor", or a "mode", too'
            )
        if chosen.get("eager_rng"):
            raise ValueError(
                "option 'fused_random' is for Inductor's random numbers, and option 'eager_rng' "
                "asks for eager's: leave one of them out"
            )

    @classmethod
    def check(cls, **given: Any) -> None:
        """Of a way in whose options are arguments: None is what the library has by default.

        Raises ValueError for a value that is none.
        """
        cls._checked({name: value for name, value in given.items() if value is not None})

    def chosen(self) -> dict[str, Any]:
        """Those that are not what they are by default."""
        values = ((each.name, each.default, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, default, value in values if value != default}

    @property
    def answer(self) -> Answer:
        """What code is told that asks whether it is compiled."""
        if self.is_compiling is None and self.codegen == "inductor":
            return Answer.EAGERS_UNTIL_IT_BRANCHES
        return Answer.TRUTH if self.is_compiling else Answer.EAGERS

    @property
    def has_eagers_bits(self) -> bool:
        """Whether kernels are ATen's, as eager's are."""
        return self.codegen == "aten"

    @property
    def raises(self) -> bool:
        """Whether it is an error that a graph, or a call of it, gets no program."""
        return self.require_capture or self.on_missed == "raise"

    @property
    def is_timed(self) -> bool:
        return self.times or PAGE_AT_EXIT

    def for_library(self) -> dict[str, str]:
        planned = "partitions" if self.on_missed == "raise" else False
        return library_options(
            host=self.host,
            order=self.order,
            min_partition_size=self.min_partition_size,
            memory_growth=self.memory_growth,
            memory_slack=self.memory_slack,
            uncaptured=self.uncaptured,
            require_capture=self.require_capture or planned,
            results=self.results,
            agree=self.agree,
            poison=self.poison,
            shadow=self.shadow,
            times=self.is_timed,
        )
