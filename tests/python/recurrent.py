"""Models with an LSTM, GRU or RNN, for the tests of those."""

from __future__ import annotations

from typing import Any

import gravure
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Tagger(nn.Module):
    """Something before and behind the cells; returns scores and the last states."""

    def __init__(self, kind: str, width: int, **settings: Any) -> None:
        super().__init__()
        self.first, self.cells = nn.Linear(width, width), KINDS[kind](width, width, **settings)
        made = settings.get("proj_size", 0) or width
        self.head = nn.Linear(made * (2 if settings.get("bidirectional") else 1), 5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        out, last = self.cells(torch.relu(self.first(x)))
        return self.head(out), *(last if isinstance(last, tuple) else (last,))


class Packed(nn.Module):
    """Takes rows and how long each of them is."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.cells, self.head = KINDS[kind](width, width), nn.Linear(width, 5)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.cells(packed)[0])[0])


def in_one_graph(report: gravure.Report) -> bool:
    """No break, one program, and each entry one partition."""
    (graph,) = report.graphs
    assert graph.graph_break == ""
    (program,) = graph.programs
    return all(len(states) == 1 for states in program.partitions.values())
