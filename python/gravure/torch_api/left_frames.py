"""What Dynamo left without a graph, by what it says of its compilations: whole functions, and where
it gave up before the first operator.

Private: `get_compilation_metrics`, Dynamo's figures of the last 64 compilations. Without it reports
do not name such functions.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import linecache
import os
import re
import types
from collections import Counter
from typing import Any, NamedTuple

import torch

from . import numpy_draws
from .private_names import MissingName, get_compilation_metrics, warn_of

_OWN = os.path.dirname(torch.__file__) + os.sep
_FUNCTION = re.compile(r"<function (\S+) at (0x[0-9a-f]+)>")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")
# AOTAutograd meets an operator whose stand-in cannot know the size of its result.
_SIZED_BY_DATA = re.compile(r"failed with (aten\.\w+)\.")
_NAMED = re.compile(r"^\s*Explanation: .*?`([\w.]+?)\.?`", re.MULTILINE)
# What Dynamo says of a recurrent module: L['self']._modules['cells'].
_RECURRENT = re.compile(r"calling `(.+?)`\. Reason: Dynamo does not support RNN, GRU, or LSTM")
_PART_OF_PATH = re.compile(r"(?:\bL|\._modules)?\['([^']+)'\]")

_ALL = range(1, 1 << 30)  # lines

LIMIT = "it was compiled as often as Dynamo's recompile limit allows"


class Left(NamedTuple):
    """`function` is "" where Dynamo gave up at one line and went on behind it."""

    function: str
    location: str  # "model.py:12"; "" if unknown
    why: str

    @property
    def what(self) -> str:
        """As a report has it, without the location of a line."""
        if not self.function:
            return f"graph break: {self.why}"
        at = f" at {self.location}" if self.location else ""
        return f"{self.function}{at} is without a graph: {self.why}"

    def __str__(self) -> str:
        return self.what if self.function or not self.location else f"{self.location}: {self.what}"


class _Compilation(NamedTuple):
    """What Dynamo said of one compilation."""

    name: str
    file: str
    line: int  # its first; of what goes on behind a break, that of the break
    failed_at: tuple[str, int] | None  # where it was given up as a whole
    why: str  # all that Dynamo says; "" where nothing broke
    is_empty: bool  # it has a break, and no operator in front of it

    @property
    def function(self) -> str:
        """What the user calls it."""
        match = _RESUMED.match(self.name)
        return match[1] if match else self.name

    @property
    def resumes_at(self) -> int:
        """The line behind which it goes on; 0 where it begins."""
        match = _RESUMED.match(self.name)
        return int(match[2]) if match else 0


_Key = tuple[Any, ...]
_SEEN: dict[_Key, _Compilation] = {}  # in the order in which they began
_FORGOTTEN: set[_Key] = set()  # of before Dynamo's reset, of which it may still speak


def listen() -> None:
    """Notes what Dynamo says of its compilations: it keeps that of the last 64 alone."""
    try:
        known = get_compilation_metrics()
    except MissingName as error:
        warn_of(error)
        return
    for each in sorted(known, key=lambda found: found.start_time_us or 0):
        key = _key(each)
        if key not in _SEEN and key not in _FORGOTTEN:
            _SEEN[key] = _compilation(each)
    _FORGOTTEN.intersection_update(map(_key, known))  # of the others Dynamo says nothing more


def _key(found: Any) -> _Key:
    return found.compile_id, found.co_filename, found.co_firstlineno, found.start_time_us


def forget() -> None:
    """Behind Dynamo's own reset, from which on it compiles all anew."""
    listen()
    _FORGOTTEN.update(_SEEN)
    _SEEN.clear()


def _compilation(found: Any) -> _Compilation:
    name, file, line = found.co_name or "", found.co_filename or "", found.co_firstlineno or 0
    if not name:  # at a limit it has no code, but the number of what was compiled before
        frame = str(found.compile_id).partition("/")[0]
        same = (e for k, e in _SEEN.items() if str(k[0]).partition("/")[0] == frame)
        name, file, line = next(((e.name, e.file, e.line) for e in same), ("a function", "", 0))
    if found.fail_type == "Unsupported":
        at, its = found.fail_user_frame_filename, found.fail_user_frame_lineno
        failed = (at, its) if at and not at.startswith(_OWN) else (file, line)
        return _Compilation(name, file, line, failed, found.fail_reason or "", False)
    why = next(iter(found.restart_reasons or ()), "") if not found.fail_type else ""
    return _Compilation(name, file, line, None, why, bool(why) and found.graph_op_count == 0)


def left_frames() -> Counter[Left]:
    """What Dynamo left as it is in this process, and how often."""
    listen()
    known = list(_SEEN.values())
    return Counter(left for i in range(len(known)) if (left := _left(known, i)) is not None)


def lines_of_calls() -> dict[str, str]:
    """Where a function is called in which Dynamo broke a graph: by the line of the call, the line
    of the break. A step leaves its graphs at the one for what stands at the other."""
    listen()
    known, found = list(_SEEN.values()), {}
    for i, each in enumerate(known):
        k = _callee(known, i)
        if k >= 0 and (line := _line_of_break(known, i)):
            callee, at = known[k], _line_of_break(known, k)
            file, inner = callee.failed_at or (callee.file, at)
            if inner:
                found[_located(each.file, line)] = _located(file, inner)
    return {call: _last_of(found, call) for call in found}


def _last_of(calls: dict[str, str], line: str) -> str:
    """The break that a call of a call ends at. Functions that call each other go round."""
    seen = {line}
    while (inner := calls.get(line)) is not None and inner not in seen:
        seen.add(inner)
        line = inner
    return line


def _left(known: list[_Compilation], i: int) -> Left | None:
    each = known[i]
    name, why = each.function, short_reason(each.why)
    if each.failed_at is not None:
        file, line = each.failed_at
        if "graph break in loop" in each.why.partition("\n")[2]:
            why += ", in a loop"
        name = f"the rest of {name}" if each.resumes_at else name
        return Left(name, _located(file, line), why)
    if not each.is_empty or _callee(known, i) >= 0:
        return None
    if line := _line_of_break(known, i):
        return Left("", _located(each.file, line), why)
    file, line = each.file, each.line
    if file.startswith(_OWN):
        name, file, line = _named_in(each.why)
    return Left(f"the rest of {name}" if each.resumes_at else name, _located(file, line), why)


def _callee(known: list[_Compilation], i: int) -> int:
    """The index of a function that it calls, itself or through others, and that Dynamo broke for
    the same reason and compiled alone: reports name that one in its place. -1 for none."""
    this = known[i]
    if not this.is_empty or (not _line_of_break(known, i) and _names_its_break(this)):
        return -1
    own = _function_at(this.file, this.line)
    for k in range(i + 1, len(known)):
        each = known[k]
        if each.resumes_at:
            if each.file == this.file and each.resumes_at in own:
                return -1  # it goes on: nothing was called in between
        elif (each.file, each.line) != (this.file, this.line) and each.why.startswith(this.why):
            return k
    return -1


def _names_its_break(this: _Compilation) -> bool:
    """Whether what Dynamo does not trace is named in the function itself. Where nothing follows the
    break, what is compiled next may be of another call."""
    named, lines = _NAMED.search(this.why), _function_at(this.file, this.line)
    if named is None or lines == _ALL:
        return False
    word = re.compile(rf"\b{re.escape(named[1].rpartition('.')[2])}\b")
    return any(word.search(linecache.getline(this.file, line)) for line in lines)


def _line_of_break(known: list[_Compilation], i: int) -> int:
    """Behind which the rest of the function was compiled; 0 if it was not."""
    this = known[i]
    whole = _function_at(this.file, this.line)
    for each in known[i + 1 :]:
        same = (each.file, each.function) == (this.file, this.function)
        if same and each.resumes_at in whole and each.resumes_at >= this.resumes_at:
            return each.resumes_at
    return 0


def _function_at(file: str, line: int) -> range:
    """The lines of the innermost function around this one; all lines where they are unknown."""
    found = [lines for lines in _functions(file) if line in lines]
    return min(found, key=len, default=_ALL)


@functools.cache
def _functions(file: str) -> list[range]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        range(min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.end_lineno is not None
    ]


def _located(file: str, line: int) -> str:
    return f"{os.path.basename(file)}:{line}" if file else ""


def short_reason(text: str) -> str:
    """Dynamo's words in one line, with the name of what it does not trace."""
    first = text.partition("\n")[0]
    if numpy_draws.SETTING in first:
        return numpy_draws.WHY
    if "recompile limit" in first or "recompile_limit" in first:
        return f"{LIMIT}, so that calls which differ once more run as they are"
    if first == "Backend compiler exception" and (found := _SIZED_BY_DATA.search(text)):
        return f"the size of what {found[1]} makes depends on data"
    if recurrent := _RECURRENT.search(text):
        path = _PART_OF_PATH.sub(r".\1", recurrent[1]).lstrip(".")
        return f"an nn.LSTM, nn.GRU or nn.RNN that no graph holds, `{path}`"
    named = _NAMED.search(text)
    return first if named is None or named[1] in first else f"{first} `{named[1]}`"


def _named_in(why: str) -> tuple[str, str, int]:
    """The function that Dynamo's words have as Python writes it, and where it is."""
    match = _FUNCTION.search(why)
    if match is None:
        return "a function", "", 0
    for each in gc.get_objects():
        if type(each) is types.FunctionType and match[0] == repr(each):
            each = inspect.unwrap(each)
            return match[1], each.__code__.co_filename, each.__code__.co_firstlineno
    return match[1], "", 0
