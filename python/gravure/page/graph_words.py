"""What to say of Dynamo's graphs: where they end, and how often one was compiled anew."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

_READ = "torch._dynamo.config.capture_scalar_outputs = True"
_BRANCH = "torch.where(condition, a, b) instead of a branch on values"
_RECURRENT = (
    "gravure.compile_step takes it; on a GPU call it without autocast, and with padded sequences "
    "in place of packed ones"
)
# What Dynamo says of a break, and what to write.
_BREAKS = (
    ("torch.compiler.disable", "take that off the function, or call it behind the step"),
    ("torch._dynamo.graph_break()", "leave that call out"),
    ("Dynamic shape", "torch.where(mask, x, 0) instead of x[mask], or pad to a fixed size"),
    ("Data-dependent", _BRANCH),
    ("data-dependent expression", _BRANCH),  # of a number that was read
    (
        "Tensor.backward()",
        'compile the model in it, torch.compile(model, backend="gravure"), or the loss alone, '
        "gravure.compile_step(loss)",
    ),
    ("item", f"keep the value a tensor, and read it behind the step; or {_READ}"),
    (
        "no graph can go on",
        "what breaks the graph belongs outside of try, with and comprehensions; "
        "TORCH_LOGS=graph_breaks names it",
    ),
    ("nn.LSTM, nn.GRU or nn.RNN", _RECURRENT),
    ("RNN, GRU, or LSTM", _RECURRENT),  # with torch 2.11, which names no module
    ("ed_sequence", "padded sequences and a mask, or leave them to eager as they are"),
    ("comprehension", "a loop in place of the comprehension; TORCH_LOGS=graph_breaks names it"),
    ("builtin", "what prints, reads or writes files or asks the time belongs behind the step"),
    ("logging", "log what is constant, without keywords, or behind the step"),
    (
        "functorch tracing",
        "a call of it under torch.vmap or torch.func had Dynamo leave it as it is in all calls: "
        "call the module that is not compiled there; torch._dynamo.reset() takes it back",
    ),
    (
        "recompile limit",
        "a tensor instead of a number that changes, sizes padded to a few; gravure.diagnose and "
        "TORCH_LOGS=recompiles name what differs",
    ),
)
_UNKNOWN = "keep it out of the model, behind the step; TORCH_LOGS=graph_breaks says more"
# By host reason (docs/remarks.md): what happens, said to somebody who has not met the name.
REASONS = {
    "host-sync": "the processor reads a value of the device, and waits",
    "cpu-tensor": "a tensor of the CPU takes part",
    "pageable-copy": "it copies between the device and ordinary CPU memory, and waits",
    "dynamic-shape": "sizes are known only when the step runs",
    "data-dependent-shape": "a size follows from data, and the processor waits for it",
    "host-number": "it takes a number that was read in this step",
    "opaque-callable": "it calls code that cannot be looked into",
    "uncapturable-rng": "it draws from a saved random state",
    "open-collective": "a collective that cannot be captured whole",
    "blocking-collective": "a collective that the processor waits for",
    "unsafe-tag": "PyTorch says that it is not to be captured",
    "unsafe-operator": "it goes wrong when it is captured",
    "unsupported-device": "it runs on another kind of device",
    "control-flow": "the processor decides which way it goes",
    "too-small": "too few calls for a graph",
    "user-request": "the option host names it",
    "capture-failed": "its capture failed",
}
_FRAME = re.compile(r"graph (\d+)/\d+ at (\S+)$")
_LOCATED = re.compile(r"(\S+:\d+|\?): ")
MANY = 3  # graphs of the same code, where there should be one, or two with other sizes


class Break(NamedTuple):
    """Where Dynamo ends a graph."""

    location: str  # "model.py:12"
    why: str
    remedy: str


def read_break(text: str) -> Break:
    """Of what GraphReport.graph_break says: "model.py:12: why; remedy". Neither location nor remedy
    need be there."""
    found = _LOCATED.match(text)
    location = found[1] if found else ""
    why, _, remedy = text[found.end() if found else 0 :].partition("; ")
    return Break(location, why, remedy or remedy_of(why))


def with_remedy(text: str) -> str:
    """Such a text that has a remedy; "" for none."""
    if not text:
        return ""
    location, why, remedy = read_break(text)
    where = f"{location}: " if location else ""
    return f"{where}{why}; {remedy}"


def remedy_of(why: str) -> str:
    """What to write, by Dynamo's words."""
    return next((remedy for words, remedy in _BREAKS if words in why), _UNKNOWN)


def frame_of(label: str) -> str:
    """What graphs of the same code have in common: "graph 2/7 at model.py:42" is one of "2 at
    model.py:42". A label of another form is one of its own."""
    match = _FRAME.search(label)
    return f"{label[: match.start()]}{match[1]} at {match[2]}" if match else label


class Anew(NamedTuple):
    """Code that Dynamo compiled again and again."""

    location: str
    times: int

    @property
    def what(self) -> str:
        return f"compiled {self.times} times: sizes, a number or a mode differ from call to call"

    @property
    def remedy(self) -> str:
        return (
            "gravure.diagnose and TORCH_LOGS=recompiles name it; for a number (a value that "
            ".item() read, a step count) take a tensor; pad sizes to a few, or take "
            "torch.compile(dynamic=True); a mode (no_grad, train, eval) has a graph of its own"
        )


def compiled_anew(labels: Iterable[str]) -> list[Anew]:
    """Code that has many graphs: "graph 2/7 at model.py:42" is the eighth of frame 2.

    Behind `torch._dynamo.reset()` Dynamo counts from 0 again: a label that comes twice is one.
    """
    found = Counter(frame_of(label) for label in set(labels) if _FRAME.search(label))
    return [Anew(frame.rpartition(" at ")[2], n) for frame, n in found.items() if n >= MANY]
