"""One rank of a pipeline: `python pipeline_program.py FOLDER RANK RANKS SCHEDULE`.

Writes to FOLDER/RANK what it computed in eager, what compiled, and what was replayed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gravure
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

WIDTH, MICROBATCHES, ROWS, STEPS, LATE = 16, 4, 2, 6, 4


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(x)))


def counted() -> tuple[int, int]:
    """Runs of all programs so far, and the uncaptured ones."""
    stats = [p.stats for graph in gravure.report().graphs for p in graph.programs]
    return sum(s["steps"] for s in stats), sum(s["uncaptured_steps"] for s in stats)


def main(folder: Path, rank: int, ranks: int, name: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    eager, _ = train(name, rank, ranks, compiled=False)
    found, counts = train(name, rank, ranks, compiled=True)
    torch.save((eager, found, counts), folder / str(rank))
    dist.destroy_process_group()


def train(
    name: str, rank: int, ranks: int, *, compiled: bool
) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """Results of the last stage, losses and gradients of each step; what was counted by then."""
    schedule_class = get_schedule_class(name)
    own = 2 if "Interleaved" in name else 1  # stages a rank
    count = own * ranks
    torch.manual_seed(0)
    every = [Stage() for _ in range(count)]
    mine = every[rank::ranks]
    if compiled:
        for stage in mine:
            stage.compile(backend="gravure", options={"poison": True})
    stages = [
        PipelineStage(stage, rank + i * ranks, count, torch.device("cpu"))
        for i, stage in enumerate(mine)
    ]
    given = stages if own > 1 else stages[0]
    schedule = schedule_class(given, n_microbatches=MICROBATCHES, loss_fn=F.mse_loss)
    found, counts = [], []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=generator)
        target = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=generator)
        losses: list[Tensor] = []
        last = rank == ranks - 1
        args = (x,) if rank == 0 else ()
        result = schedule.step(*args, target=target, losses=losses) if last else None
        if not last:
            schedule.step(*args)
        found += [result, *losses] if last else []
        for stage in mine:
            for p in stage.parameters():
                assert p.grad is not None
                found.append(p.grad.clone())
                p.data.sub_(p.grad, alpha=0.1)
                p.grad = None
        counts.append(counted())
    return found, counts


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
