"""One rank of a test on several processes: `rank.py SCENARIO...`; RANK, WORLD_SIZE, STORE, OUT.

Writes what each scenario found into OUT, as JSON. With DEVICE=cuda each rank has a GPU, with NCCL.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import gravure
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from gravure.graphs.compiled_ops import CompiledCode, Layout
from running import bits

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
OUT = Path(os.environ["OUT"])
CUDA = os.environ.get("DEVICE") == "cuda"
DEVICE = torch.device("cuda", RANK) if CUDA else torch.device("cpu")
ROWS, WIDTH = int(os.environ.get("ROWS", "4")), int(os.environ.get("WIDTH", "8"))
STEPS = 8
found: dict[str, Any] = {}


def program(group: str = "0", *, reduce: str = "sum", other: str = "") -> str:
    """Tensor parallelism in small: what each rank has is reduced, gathered and scattered.

    With `other`, a second group reduces the result.
    """
    rows = f"Float({ROWS}, {WIDTH}, strides=[{WIDTH}, 1], device={DEVICE})"
    all_rows = f"Float({ROWS * WORLD}, {WIDTH}, strides=[{WIDTH}, 1], device={DEVICE})"
    square = f"Float({WIDTH}, {WIDTH}, strides=[{WIDTH}, 1], device={DEVICE})"
    scalar = f"Float(device={DEVICE})"
    space = "_c10d_functional"
    last = "%s"
    lines = [
        f"%y : {rows} = aten::mm(%x, %w)",
        f'%a : {rows} = {space}::all_reduce(%y, "{reduce}", "{group}")',
        f"%t : {rows} = aten::tanh(%x)",
        f"%b : {rows} = {space}::wait_tensor(%a)",
        f"%c : {rows} = aten::add.Tensor(%b, %t)",
        f'%d : {all_rows} = {space}::all_gather_into_tensor(%c, {WORLD}, "{group}")',
        f"%e : {all_rows} = {space}::wait_tensor(%d)",
        f"%f : {all_rows} = aten::relu(%e)",
        f'%g : {rows} = {space}::reduce_scatter_tensor(%f, "sum", {WORLD}, "{group}")',
        f"%h : {rows} = {space}::wait_tensor(%g)",
        f"%s : {scalar} = aten::sum(%h)",
    ]
    if other:
        lines += [
            f'%o : {scalar} = {space}::all_reduce(%s, "sum", "{other}")',
            f"%p : {scalar} = {space}::wait_tensor(%o)",
        ]
        last = "%p"
    head = f'graph step(%w : {square} {{parameter "w"}}, %x : {rows} {{user_input "x"}}):'
    body = "\n".join(f"  {line}" for line in lines)
    return f'gravure 1\n{head}\n{body}\n  return ({last} {{loss}}, %h {{output "h"}})\n'


def load(text: str, **options: Any) -> gravure.Program:
    path = OUT.with_suffix(".gv")
    path.write_text(text)
    return gravure.load(path, str(DEVICE) if CUDA else "host", **options)


def weight() -> torch.Tensor:
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(7)).to(DEVICE)


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + RANK)
    return torch.randn(ROWS, WIDTH, generator=generator).to(DEVICE)


def names(program: gravure.Program) -> list[str]:
    return [r["name"] for r in program.remarks() if r["kind"] == "missed"]


def messages(program: gravure.Program) -> str:
    return "\n".join(r["message"] for r in program.remarks() if r["kind"] == "missed")


def note(program: gravure.Program, key: str = "") -> None:
    found[key + "states"] = program.partition_states()
    found[key + "missed"] = names(program)
    found[key + "messages"] = messages(program)
    found[key + "stats"] = program.stats()


def same(program: gravure.Program, reference: gravure.Program, w: Any, steps: range) -> bool:
    equal = True
    for step in steps:
        x = batch(step)
        expected = [bits(value) for value in reference.run([w, x])]
        equal &= [bits(value) for value in program.run([w, x])] == expected
    return equal


# ---- scenarios


def pairing() -> None:
    """Collectives are captured and replayed, in the bits of the uncaptured path."""
    ours, reference = load(program()), load(program(), uncaptured=True)
    found["equal"] = same(ours, reference, weight(), range(STEPS))
    note(ours)


class Sharded(torch.nn.Module):
    """Two layers, each rank with its share of their rows, gathered as FSDP does."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(RANK)
        self.shards = torch.nn.ParameterList(
            [torch.randn(WIDTH // WORLD, WIDTH, generator=generator).to(DEVICE) for _ in range(2)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = dist.group.WORLD
        for shard in self.shards:
            x = torch.tanh(x @ funcol.all_gather_tensor_autograd(shard, 0, group).t())
        return x.square().mean()


def compiled() -> None:
    """torch.compile: all-gathers in the forward, reduce-scatters in the backward."""
    ours, eager = Sharded(), Sharded()
    run = torch.compile(ours, backend="gravure")
    found["equal"] = True
    for step in range(STEPS):
        x = batch(step)
        for model, call in ((ours, run), (eager, eager)):
            model.zero_grad()
            call(x).backward()
        pairs = zip(ours.parameters(), eager.parameters(), strict=True)
        found["equal"] &= all(bits(a.grad) == bits(b.grad) for a, b in pairs)
    (graph,) = gravure.report().graphs
    found["states"] = graph.programs[0].partitions
    found["missed"] = list(graph.programs[0].remarks)
    found["nodes"] = list(graph.programs[0].host_nodes)


def mesh() -> None:
    """Two groups a rank, in a grid of 2 by 2: every rank must know of every other."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    row, column = rows[RANK // 2], columns[RANK % 2]
    text = program(row.group_name, other=column.group_name).replace(f", {WORLD}, ", ", 2, ")
    text = text.replace(f"Float({ROWS * WORLD},", f"Float({ROWS * 2},")
    ours, reference = load(text), load(text, uncaptured=True)
    if RANK == 3:
        ours.inject_fault("capture-end", 1)
    found["equal"] = same(ours, reference, weight(), range(STEPS))
    note(ours)


def failed_capture() -> None:
    ours, reference = load(program()), load(program(), uncaptured=True)
    if RANK == 1:
        ours.inject_fault("capture-call", 3)
    found["equal"] = same(ours, reference, weight(), range(STEPS))
    note(ours)


def late_capture() -> None:
    """One rank asks for the uncaptured path where the others would capture."""
    ours, reference = load(program()), load(program(), uncaptured=True)
    w = weight()
    found["equal"] = same(ours, reference, w, range(2))
    if RANK == 1:
        for step in range(2, 4):
            reference.run([w, batch(step)])
            ours._program.run_uncaptured("step", [w, batch(step)])
    else:
        found["equal"] &= same(ours, reference, w, range(2, 4))
    note(ours, "meanwhile ")
    found["equal"] &= same(ours, reference, w, range(4, STEPS))
    note(ours)


def other_program() -> None:
    """One rank would reduce otherwise. All say so, and nothing is captured."""
    ours = load(program(reduce="max" if RANK == 1 else "sum"))
    ours.run([weight(), batch(0)])
    note(ours)


def products() -> None:
    """Products that communicate through symmetric memory; then their workspace moves."""
    import torch.distributed._symmetric_memory as symmetric

    operators, group = torch.ops.symm_mem, dist.group.WORLD.group_name
    if not CUDA:  # as on a GPU, but by gloo's collectives
        library = torch.library.Library("symm_mem", "IMPL")
        for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
            library.impl(name, getattr(symmetric, f"_{name}_fallback"), "CPU")
        symmetric._group_name_to_workspace_tensor[group] = torch.empty(1)

    def step(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        _, (y,) = operators.fused_all_gather_matmul(x.tanh(), [w], 0, group, return_A=False)
        return operators.fused_matmul_reduce_scatter(y.relu(), w, "sum", 0, group).sin()

    def grow() -> None:
        size = max(symmetric._group_name_to_workspace_tensor[group].numel(), 1 << 20)
        if CUDA:
            symmetric.get_symm_mem_workspace(group, 2 * size)
        else:
            symmetric._group_name_to_workspace_tensor[group] = torch.empty(2 * size)

    run, w = torch.compile(step, backend="gravure"), weight()
    found["equal"] = True
    for i in range(STEPS + 4):
        if i == STEPS:
            found["before"] = gravure.report().graphs[-1].programs[0].stats
            grow()
        x = batch(i)
        found["equal"] &= bits(run(w, x)) == bits(step(w, x))
    (ours,) = gravure.report().graphs[-1].programs
    found["states"], found["missed"] = ours.partitions["step"], list(ours.remarks)
    found["nodes"], found["stats"] = list(ours.host_nodes), ours.stats


def code(kinds: list[str]) -> CompiledCode:
    """Compiled code with these collectives in it, in this order."""

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        w, x = inputs
        y = x @ w
        for kind in kinds:
            started = torch.ops._c10d_functional.all_reduce(y, kind, "0")
            y = torch.ops._c10d_functional.wait_tensor(started).tanh()
        return [y]

    of_w, of_x = Layout((WIDTH, WIDTH), (WIDTH, 1)), Layout((ROWS, WIDTH), (WIDTH, 1))
    collectives = [("0", f"all_reduce(float32[{ROWS}, {WIDTH}], {kind})") for kind in kinds]
    # Ranks call their code by names of their own, and count it as they do.
    return CompiledCode(
        f"code of {RANK}", run, [of_w, of_x], [of_x], random=False, collectives=collectives
    )


def calling(called: CompiledCode) -> str:
    rows = f"Float({ROWS}, {WIDTH}, strides=[{WIDTH}, 1], device={DEVICE})"
    square = f"Float({WIDTH}, {WIDTH}, strides=[{WIDTH}, 1], device={DEVICE})"
    name, calls, _, groups, texts, _ = called.arguments(2, [], [])
    given = ", ".join(json.dumps(each) for each in (groups, texts))
    return (
        f'gravure 1\ngraph step(%w : {square} {{parameter "w"}}, %x : {rows} {{user_input "x"}}):\n'
        f'  %y : {rows} = gravure::compiled_communicating("{name}", {calls}, [%w, %x], {given})\n'
        f'  return (%y {{output "y"}})\n'
    )


def compiled_code() -> None:
    """One call with collectives in it is captured and replayed."""
    called = code(["sum", "max"])
    ours, reference = load(calling(called)), load(calling(called), uncaptured=True)
    found["equal"] = same(ours, reference, weight(), range(STEPS))
    note(ours)


def other_code() -> None:
    """Rank 1 has the same call, with its collectives the other way round."""
    called = code(["sum", "max"] if RANK == 0 else ["max", "sum"])
    ours = load(calling(called))
    for step in range(STEPS):
        ours.run([weight(), batch(step)])
    note(ours)


def left(agree: str) -> None:
    """After capture one rank's guard fails: its parameter has moved."""
    ours, reference = load(program(), agree=agree), load(program(), uncaptured=True)
    w = weight()
    found["equal"] = same(ours, reference, w, range(STEPS))
    found["before"] = ours.stats()
    found["equal"] &= same(ours, reference, w.clone() if RANK == 1 else w, range(STEPS, STEPS + 1))
    found["after"] = ours.stats()
    found["equal"] &= same(ours, reference, w, range(STEPS + 1, STEPS + 4))
    note(ours)


def left_alone() -> None:
    left("capture")


def left_together() -> None:
    left("step")


def mixed() -> None:
    """After capture ranks leave replays, and capture anew, each at its own times."""
    ours, reference = load(program()), load(program(), uncaptured=True)
    w = weight()
    found["equal"] = same(ours, reference, w, range(STEPS))
    found["before"] = ours.stats()
    moved = w.clone()
    for step in range(STEPS, STEPS + 24):
        # Two steps running at one new address make it capture anew; a single one makes it leave.
        away = step % 8 in (2, 5, 6, 7) if RANK else step % 3 == 0
        found["equal"] &= same(ours, reference, moved if away else w, range(step, step + 1))
    note(ours)


def thrown() -> None:
    """One rank comes to a step with an input that is none."""
    ours, reference = load(program()), load(program(), uncaptured=True)
    w = weight()
    found["equal"] = same(ours, reference, w, range(1))
    try:
        ours.run([w, batch(1)[:, 1:] if RANK == 1 else batch(1)])
    except RuntimeError as error:
        found["error"] = str(error)
    found["equal"] &= same(ours, reference, w, range(2, STEPS))
    note(ours)


def new_group() -> None:
    """The group is destroyed and made anew between two steps."""
    ours, reference = load(program()), load(program(), uncaptured=True)
    w = weight()
    found["equal"] = same(ours, reference, w, range(STEPS))
    found["before"] = ours.stats()
    dist.destroy_process_group()
    found["dropped"] = ours.partition_states()
    begin(os.environ["STORE_ANEW"])
    found["equal"] &= same(ours, reference, w, range(STEPS, STEPS + 4))
    note(ours)


def dead_rank() -> None:
    """One rank ends without a word before the ranks have captured."""
    ours, w = load(program()), weight()
    ours.run([w, batch(0)])
    if RANK == 1:
        os._exit(0)
    try:
        for step in range(1, STEPS):
            ours.run([w, batch(step)])
    except RuntimeError as error:
        found["error"] = str(error)
    note(ours)
    end_at_once()


def own_program() -> None:
    """One rank goes on with a program of its own that communicates alike: for another size, say."""
    w, text = weight(), program()
    ours = load(text)
    ours.run([w, batch(0)])
    if RANK == 1:
        text = text.replace("aten::tanh", "aten::sigmoid")
        ours = load(text)
    found["equal"] = True
    for step in range(1, STEPS):
        loss, h = ours.run([w, batch(step)])
        found["equal"] &= bits(loss) == bits(h.sum())
    note(ours)


def hung_replay() -> None:
    """A replay that never ends, as when another rank has died: the watch aborts its groups."""
    ours, w = load(program()), weight()
    for step in range(STEPS):
        ours.run([w, batch(step)])
    ours.inject_fault("completion", 1)
    started = time.monotonic()
    try:
        while time.monotonic() - started < 30:
            ours.run([w, batch(0)])
            time.sleep(0.1)
            if RANK == 0:
                found["ran"] = found.get("ran", 0) + 1
    except RuntimeError as error:
        found["error"] = str(error)
    end_at_once()


def refused() -> None:
    """One rank's environment lets no collective be captured."""
    if RANK == 1:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"  # read by Gravure alone: c10d has read it
    ours, reference = load(program()), load(program(), uncaptured=True)
    found["equal"] = same(ours, reference, weight(), range(STEPS))
    note(ours)
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)


def end_at_once() -> None:
    """Where the group is of no use any more."""
    OUT.write_text(json.dumps({sys.argv[1]: found}))
    sys.stdout.flush()
    os._exit(0)


# ---- what only GPUs show


def naive() -> None:
    """PyTorch's own capture of a group's first collective, for comparison."""
    x = torch.ones(64, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            dist.all_reduce(x)
    except Exception as error:  # noqa: BLE001  whatever it is
        found["error"] = f"{type(error).__name__}: {error}"
    end_at_once()


def blocking_wait() -> None:
    ours, reference = load(program()), load(program(), uncaptured=True)
    found["equal"] = same(ours, reference, weight(), range(STEPS))
    note(ours)


def dead_in_replay() -> None:
    """One rank does not come to a replay: the group is aborted, and the next step throws."""
    ours, w = load(program()), weight()
    for step in range(STEPS):
        ours.run([w, batch(step)])
    assert ours.partition_states() == ["captured"], messages(ours)
    torch.cuda.synchronize()
    dist.barrier()
    if RANK == 1:
        time.sleep(45)
        os._exit(0)
    started = time.monotonic()
    ours.run([w, batch(0)])
    torch.cuda.synchronize()  # ends when the watch has aborted
    found["seconds"] = time.monotonic() - started
    try:
        ours.run([w, batch(0)])
    except RuntimeError as error:
        found["error"] = str(error)
    end_at_once()


def costs() -> None:
    """Microseconds of the host for one replayed step, with and without a word before it."""
    w, x = weight(), batch(0)
    for agree in ("capture", "step"):
        ours = load(program(), agree=agree)
        for _ in range(STEPS):
            ours.run([w, x])
        times = []
        for _ in range(300):
            dist.barrier()
            started = time.perf_counter()
            ours.run([w, x])
            times.append(time.perf_counter() - started)
        found[agree] = sorted(times)[150] * 1e6
        note(ours, agree + " ")


# ---- ways to end, all of them with captured collectives alive


def ending() -> None:
    OUT.write_text(json.dumps({"ends": {"at": time.time()}}))


def captured() -> gravure.Program:
    ours, w = load(program()), weight()
    for step in range(5):
        ours.run([w, batch(step)])
    assert ours.partition_states() == ["captured"], messages(ours)
    return ours


def end_destroyed() -> None:
    globals()["kept"] = captured()
    ending()
    dist.destroy_process_group()


def end_normally() -> None:
    globals()["kept"] = captured()
    ending()


def end_raising() -> None:
    globals()["kept"] = captured()
    ending()
    raise SystemExit(3)


def end_terminated() -> None:
    globals()["kept"] = captured()
    ending()
    time.sleep(60)


def begin(store: str) -> None:
    seconds = float(os.environ.get("TIMEOUT", "60"))
    if CUDA:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(
        "nccl" if CUDA else "gloo",
        init_method=store,
        rank=RANK,
        world_size=WORLD,
        timeout=timedelta(seconds=seconds),
    )


def main(scenarios: Mapping[str, Any]) -> None:
    faulthandler.dump_traceback_later(90, exit=True)  # before whoever waits for it loses patience
    torch.set_num_threads(1)
    begin(os.environ["STORE"])
    results: dict[str, Any] = {}
    for name in sys.argv[1:]:
        found.clear()
        scenarios[name]()
        results[name] = dict(found)
    if name.startswith("end_"):
        return
    OUT.write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(globals())
