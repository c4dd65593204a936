"""Draws training loops from seeds, runs them as they are and compiled, and shrinks what differs.

    python tests/python/drawn_loops.py --loops 0:200 --seconds 240 --device cuda

prints, for each loop that differs, a script of its own, and in the end what was compared. A loop is
a value: the same seed draws the same one.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import drawn_models
import loop_sides
import torch
from drawn_models import ModelPlan, PartPlan, draw_plan
from loop_actions import ACTIONS, Action, Writer
from loop_models import MODELS, Drawn

WAYS = ("call", "call", "call", "layers", "step", "optimizer")
OPTIONS = (
    {},
    {},
    {},
    {"host": ["aten::mm", "aten::relu"], "min_partition_size": 1},
    {"order": "program"},
    {"results": "copied"},
)
DYNAMIC = (None, None, None, None, False, True)
CHECKS = ("captures", "alive")
# No failure: the documents refuse it, or AOTAutograd alone does the same: it cannot trace it, or
# differs in the same way and bits (docs/export.md, and Limits in docs/torch-compile.md).
FINE = ("equal", "refused", "untraceable", "as aot_eager")

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Loop:
    """`model`: a class of loop_models.py, or the plan of a drawn model."""

    model: str | ModelPlan
    actions: tuple[Action, ...]
    way: str = "call"
    optimizer: str = "sgd"
    options: int = 0
    dynamic: bool | None = None


def draw(seed: int) -> Loop:
    """A loop of some of the actions: no one does everything at once."""
    drawn = Random(seed)
    way = drawn.choice(WAYS)
    optimizers = ["sgd", "momentum", "momentum", "adamw", "fused"]
    optimizers += ["scaled", "lookahead"] if way == "optimizer" else []
    known = [name for name, (_, _, ways) in ACTIONS.items() if way in ways.split()]
    share = drawn.choice([0.2, 0.35, 0.5])
    some = [name for name in known if name == "step" or drawn.random() < share]
    pairs = {"forward", "backward"} if way in ("call", "layers") else {"step"}
    some += [name for name in pairs if name not in some and drawn.random() < 0.7]
    weights = [ACTIONS[name][1] for name in some]
    names = drawn.choices(some, weights, k=drawn.randint(20, 45))
    numbers = [[drawn.randrange(60) for _ in range(3)] for _ in names]
    plain: str | ModelPlan = draw_plan(drawn, views=True)
    return Loop(
        drawn.choice([plain, *[drawn.choice(list(MODELS))] * 2]),
        tuple([Action(name, *n) for name, n in zip(names, numbers, strict=True)]),
        way,
        drawn.choice(optimizers),
        drawn.randrange(len(OPTIONS)),
        drawn.choice(DYNAMIC) if way == "call" else None,
    )


# ---- the script


def script(loop: Loop, checks: tuple[str, ...] = CHECKS, backend: str = "gravure") -> str:
    """The loop as a program that anybody can run: what is run here, too."""
    texts = [
        '"""Run it: python this_file.py [cuda]; it ends with status 0 where both sides agree."""',
        inspect.getsource(loop_sides).partition('"""\n\n')[2],
        *_model_text(loop),
        _starting_text(loop, backend),
        f"def loop(s, see):\n{_loop_text(loop, 'captures' in checks)}",
        'if __name__ == "__main__":\n'
        f"    outcome = compare(build, start, loop, {checks!r})\n"
        "    print(outcome.kind, outcome.text)\n"
        '    sys.exit(outcome.kind not in ("equal", "refused"))\n',
    ]
    return "\n\n".join(texts)


def _model_text(loop: Loop) -> Iterator[str]:
    yield "import itertools\nimport torch.nn.functional as F"
    yield "from torch.utils.checkpoint import checkpoint"
    if isinstance(loop.model, str):
        yield from map(inspect.getsource, MODELS[loop.model])
        yield f"build = {loop.model}"
        return
    kinds = sorted({part.kind for part in loop.model.parts})
    yield "from typing import NamedTuple"
    yield f"WIDTH, CLASSES = {drawn_models.WIDTH}, {drawn_models.CLASSES}"
    for kind in kinds:
        yield inspect.getsource(drawn_models.KINDS[kind])
    yield f"KINDS = {{{', '.join(f'{kind!r}: _{kind}' for kind in kinds)}}}"
    norms = '"layer": lambda: nn.LayerNorm(WIDTH), "batch": lambda: nn.BatchNorm1d(WIDTH)'
    yield f'NORMS = {{{norms}, "none": nn.Identity}}'
    for part in (PartPlan, ModelPlan, drawn_models.Part, drawn_models.DrawnModel, Drawn):
        yield inspect.getsource(part)
    yield f"def build():\n    return Drawn({loop.model!r})"


def _starting_text(loop: Loop, backend: str) -> str:
    given = "options=options" if backend == "gravure" else "options=None"
    options = OPTIONS[loop.options % len(OPTIONS)] | {"poison": True}
    if loop.way not in ("step", "optimizer"):
        options.pop("results", None)
    lines = [
        f'make_optimizer = OPTIMIZERS["{loop.optimizer}"]',
        "",
        "",
        "def start(s, compiled):",
        f"    options = {options!r}",
        "    s.optimizer = make_optimizer(s.model)",
        "    s.compile = lambda model: model",
        "    if compiled:",
        "        s.compile = lambda model: torch.compile(",
        f'            model, backend="{backend}", dynamic={loop.dynamic}, {given}',
        "        )",
    ]
    if loop.way == "call":
        lines += ["    s.call = s.compile(s.model)"]
    elif loop.way == "layers":
        lines += [
            "    children = list(s.model.children())",
            "    lists = [c if isinstance(c, nn.ModuleList) else [c] for c in children]",
            "    layers = [layer for some in lists for layer in some]",
            "    if compiled:",
            "        for layer in layers:",
            f'            layer.compile(backend="{backend}", {given})',
            "    s.call = s.model",
        ]
    else:
        optimizer = "s.optimizer" if loop.way == "optimizer" else "None"
        lines += [
            "    model, optimizer = s.model, " + optimizer,
            "",
            "    def objective(*args):",
            "        result = model(*args)",
            "        return total(result), *tensors(result)",
            "",
            "    def step(*args):",
            "        results = objective(*args)",
            "        results[0].backward()",
            "        if optimizer is not None:",
            "            optimizer.step()",
            "            optimizer.zero_grad()",
            "        return tuple([t.detach() for t in results])",
            "",
            "    s.step = step",
            "    if compiled:",
            "        s.step = gravure.compile_step(",
            "            objective, optimizer=optimizer, options=options",
            "        )",
        ]
    return "\n".join(lines)


def _loop_text(loop: Loop, ends: bool) -> str:
    """`ends`: with plain steps at the end, which must run captured."""
    model = MODELS[loop.model][-1]() if isinstance(loop.model, str) else Drawn(loop.model)
    writer = Writer(model, loop.way)
    for number, (name, a, b, c) in enumerate(loop.actions):
        writer.number = number
        at = len(writer.lines)
        ACTIONS[name][0](writer, a, b, c)
        if len(writer.lines) > at:
            writer.lines.insert(at, f'    with see("{number} {name}"):')
    names = [*writer.held, *writer.batches, *writer.waiting]
    if names:
        held = ", ".join(f'"{name[2:]}"' for name in names)
        writer.lines.append(f"    let_go(s, {held})")
    for count in (20, 6) if ends else ():  # behind gradients that are held, the arena is made anew
        writer.lines.append(f"    for i in range({count}):")
        writer.lines.append('        with see("plain step"):')
        writer.step("batch(s.model, i, 5)", 1)
        writer.lines.append("    see.count()")
    return "\n".join(writer.lines or ["    pass"])


# ---- running


def run(loop: Loop, checks: tuple[str, ...] = CHECKS, backend: str = "gravure") -> Any:
    """The outcome of the loop's own script, as a module of this process."""
    with tempfile.TemporaryDirectory(prefix="gravure-loop") as folder:
        path = Path(folder) / "loop.py"
        path.write_text(script(loop, checks, backend))
        # Dynamo remembers a module by its name.
        name = f"drawn_loop_script_{next(_NUMBERS)}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
            return module.compare(module.build, module.start, module.loop, checks)
        finally:
            del sys.modules[spec.name]


# ---- shrinking


def shrink(loop: Loop, fails: Callable[[Loop], bool], seconds: float) -> Loop:
    """A simpler loop that still `fails`; as simple as `seconds` allow."""
    end = time.monotonic() + seconds
    loop = replace(loop, actions=_that_write(loop))

    def better(found: Loop) -> bool:
        return time.monotonic() < end and found != loop and fails(found)

    def without(count: int) -> bool:
        nonlocal loop
        shorter, at = False, len(loop.actions)
        while at > 0:
            at = max(0, at - count)
            found = replace(loop, actions=loop.actions[:at] + loop.actions[at + count :])
            if better(found):
                loop, shorter = found, True
        return shorter

    count = max(1, len(loop.actions) // 2)
    while count:
        if not without(count) or count > len(loop.actions):
            count //= 2
    for change in _simpler(loop):
        found = change(loop)
        if better(found):
            loop = found
    return loop


def _that_write(loop: Loop) -> tuple[Action, ...]:
    """Without the actions that find nothing to do."""
    named = {int(n) for n in re.findall(r'with see\("(\d+) ', _loop_text(loop, ends=False))}
    return tuple([action for i, action in enumerate(loop.actions) if i in named])


def _simpler(loop: Loop) -> Iterator[Callable[[Loop], Loop]]:
    yield lambda x: replace(x, options=0)
    yield lambda x: replace(x, dynamic=None)
    yield lambda x: replace(x, optimizer="sgd")
    yield lambda x: replace(x, way="call")
    if isinstance(loop.model, ModelPlan):
        for i in reversed(range(len(loop.model.parts))):
            yield lambda x, i=i: replace(x, model=_without(x.model, i))
        for name in ("more", "views", "none"):
            yield lambda x, n=name: replace(x, model=x.model._replace(**{n: type(x.model.more)()}))
        yield lambda x: replace(x, model="Mlp")
    for i in range(len(loop.actions)):
        for part in ("a", "b", "c"):
            yield lambda x, i=i, part=part: _lowered(x, i, part)


def _without(model: ModelPlan, i: int) -> ModelPlan:
    parts = model.parts[:i] + model.parts[i + 1 :]
    return model._replace(parts=parts) if parts else model


def _lowered(loop: Loop, i: int, part: str) -> Loop:
    actions = list(loop.actions)
    actions[i] = actions[i]._replace(**{part: 0})
    return replace(loop, actions=tuple(actions))


# ---- the command


def _judged(loop: Loop, checks: tuple[str, ...], backend: str = "gravure") -> dict[str, Any]:
    try:
        # Where a backward comes twice, what it is given must outlive the first.
        with torch._functorch.config.patch(donated_buffer=False):
            return run(loop, checks, backend)._asdict()
    except Exception:
        return {"kind": "fell over", "action": 0, "text": traceback.format_exc(), "values": 0}


def one(seed: int, checks: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """The verdict on a seed's loop; a shrunk one beside it where it fails."""
    loop = draw(seed)
    begun = time.monotonic()
    found = _judged(loop, checks) | {"seed": seed, "actions": len(loop.actions)}
    found["seconds"] = round(time.monotonic() - begun, 2)
    if found["kind"] in FINE:
        return found
    if found["kind"] == "raised" and "BackendCompilerFailed" in found["text"]:
        if _judged(loop, (), "aot_eager")["kind"] == "raised":
            return found | {"kind": "untraceable"}
    if found["kind"] not in ("uncaptured", "alive", "fell over"):
        if _is_theirs(loop, found):
            return found | {"kind": "as aot_eager"}
    if not seconds:
        return found | {"script": script(loop, checks)}
    kind = found["kind"]
    checks = {"uncaptured": ("captures",), "alive": ("alive",)}.get(kind, ())
    first = replace(loop, actions=loop.actions[: found["action"] + 1])
    if kind in ("uncaptured", "alive") or _judged(first, checks)["kind"] != kind:
        first = loop
    small = shrink(first, lambda x: _judged(x, checks)["kind"] == kind, seconds)
    last = _judged(small, checks)
    # In the whole loop aot_eager may have failed of something else, and earlier.
    if not checks and _is_theirs(small, last):
        return found | {"kind": "as aot_eager"}
    return found | {"shrunk": repr(small), "script": script(small, checks)} | {"text": last["text"]}


def _is_theirs(loop: Loop, found: dict[str, Any]) -> bool:
    theirs = _judged(loop, (), "aot_eager")
    return all(_told(theirs[key]) == _told(found[key]) for key in ("kind", "action", "text"))


def _told(value: Any) -> Any:
    """Without how often a tensor was written: two programs need not save the same one first.

    Without what to do about it, either: each gives advice of its own.
    """
    pattern = r"version \d+|\[[A-Za-z0-9.]+Tensor[^]]*\]+|instead\. .*"
    return re.sub(pattern, "", value) if isinstance(value, str) else value


def _chosen(seeds: Sequence[int], only: str) -> list[int]:
    def fits(loop: Loop) -> bool:
        model = loop.model if isinstance(loop.model, str) else "Drawn"
        return only in ("", loop.way, model, f"{model}-{loop.way}")

    return [seed for seed in seeds if fits(draw(seed))]


def _work(seeds: Sequence[int], checks: tuple[str, ...], seconds: float) -> None:
    torch.set_num_threads(1)  # the tensors are tiny
    for seed in seeds:
        print("found " + json.dumps(one(seed, checks, seconds)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--loops", default="0:20", help="seeds, from:to")
    parser.add_argument("--seconds", type=float, default=1e9, help="no loop begins later")
    parser.add_argument("--shrink", type=float, default=60, help="seconds for each that fails")
    parser.add_argument("--checks", default=",".join(CHECKS), help="what holds beside bits")
    parser.add_argument("--only", default="", help="loops of this model or way alone")
    parser.add_argument("--into", type=Path, help="a folder for scripts; else they are printed")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    seeds = range(*map(int, args.loops.split(":")))
    checks = tuple([c for c in args.checks.split(",") if c])
    if args.work:
        loop_sides.DEVICE = args.device
        sys.argv[1:] = [args.device]
        _work(_chosen(seeds, args.only), checks, args.shrink)
        return 0
    return _campaign(args, seeds)


def _campaign(args: argparse.Namespace, seeds: range) -> int:
    """Runs the loops in processes of their own, since one may die: then the next one goes on."""
    begun, kinds, sums = time.monotonic(), Counter[str](), Counter[str]()
    left = _chosen(seeds, args.only)
    while left and time.monotonic() - begun < args.seconds:
        for found in _in_a_process(args, left[:20], begun + args.seconds):
            _tell(found, args.into)
            kinds[found["kind"]] += 1
            sums += Counter({k: found.get(k, 0) for k in ("actions", "values")})
            left.remove(found["seed"])
    loops, seconds = sum(kinds.values()), time.monotonic() - begun
    bad = sum(n for kind, n in kinds.items() if kind not in FINE)
    print(
        f"{loops} loops, {sums['actions']} actions, {sums['values']} values compared, "
        f"{bad} failures, {seconds:.0f} s: {dict(kinds)}",
        flush=True,
    )
    return int(bad > 0)


def _in_a_process(
    args: argparse.Namespace, seeds: list[int], end: float
) -> Iterator[dict[str, Any]]:
    """The verdicts as they come; the last one is "died" where the process did."""
    command = [sys.executable, __file__, "--work", "--device", args.device]
    command += ["--checks", args.checks, "--shrink", str(args.shrink)]
    command += ["--only", args.only, "--loops", f"{seeds[0]}:{seeds[-1] + 1}"]
    with tempfile.TemporaryFile("w+") as errors:
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        late = threading.Timer(max(10.0, end - time.monotonic()), worker.kill)
        late.start()
        assert worker.stdout is not None
        waiting = list(seeds)
        for line in worker.stdout:
            if line.startswith("found "):
                waiting.pop(0)
                yield json.loads(line[6:])
        status = worker.wait()
        late.cancel()
        if waiting and time.monotonic() < end:
            errors.seek(0)
            text = f"status {status}: {errors.read()[-2000:]}"
            dead = waiting[0]
            yield {"seed": dead, "kind": "died", "text": text, "script": script(draw(dead))}


def _tell(found: dict[str, Any], into: Path | None) -> None:
    if found["kind"] == "equal":
        return
    print(f"loop {found['seed']}: {found['kind']}: {found['text'][:600]}", flush=True)
    if "shrunk" in found:
        print(found["shrunk"])
    if "script" in found:
        if into is None:
            print(found["script"], flush=True)
        else:
            into.mkdir(parents=True, exist_ok=True)
            (into / f"loop_{found['seed']}.py").write_text(found["script"])


if __name__ == "__main__":
    sys.exit(main())
