"""Reads program text; independent of the exporter, for tests only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+) | (?P<arrow>->) | (?P<value>%[A-Za-z0-9_.]+)
      | (?P<string>"(?:[^"\\]|\\.)*") | (?P<number>-?(?:inf\b|nan\b|\d[\d.]*(?:[eE][+-]?\d+)?))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:(?:::|\.)[A-Za-z_][A-Za-z0-9_]*)*)
      | (?P<mark>[()\[\]{}=:,@*?])""",
    re.X,
)


@dataclass
class Value:
    name: str


@dataclass
class Statement:
    op: str
    outputs: list[tuple[str, str]]
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    rng: Any = None
    source: str = ""
    module: str = ""
    blocks: list[tuple[list[Statement], list[Any]]] = field(default_factory=list)


@dataclass
class Entry:
    name: str
    inputs: list[tuple[str, str, str, str]] = field(default_factory=list)  # value, type, role, name
    body: list[Statement] = field(default_factory=list)
    outputs: list[tuple[Any, str, str]] = field(default_factory=list)  # value, role, name or value


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match is not None, f"no token at {text[at : at + 40]!r}"
            if match.lastgroup != "space":
                self.tokens.append((str(match.lastgroup), match[0]))
            at = match.end()
        self.tokens.append(("end", ""))
        self.at = 0

    @property
    def text(self) -> str:
        return self.tokens[self.at][1]

    def next(self, expected: str | None = None) -> str:
        text = self.tokens[self.at][1]
        assert expected is None or text == expected, f"expected {expected!r}, found {text!r}"
        self.at += 1
        return text

    def accept(self, text: str) -> bool:
        if self.text != text:
            return False
        self.at += 1
        return True

    def string(self) -> str:
        assert self.tokens[self.at][0] == "string", self.text
        body = self.next()[1:-1]
        names = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
        pattern = r'\\x([0-9a-f]{2})|\\([ntr"\\])'
        return re.sub(pattern, lambda m: chr(int(m[1], 16)) if m[1] else names[m[2]], body)

    def type(self) -> str:
        parts, depth = [self.next()], 0
        while depth or self.text in ("(", "[", "?"):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(self.text, 0)
            parts.append(self.next())
        return "".join(parts)

    def many(self, close: str, one: Any) -> list[Any]:
        found = []
        while not self.accept(close):
            found.append(one())
            if not self.accept(","):
                self.next(close)
                break
        return found

    def expression(self) -> Any:
        kind, text = self.tokens[self.at]
        if kind == "value":
            return Value(self.next()[1:])
        if kind == "string":
            return self.string()
        if self.accept("["):
            return self.many("]", self.expression)
        if self.accept("("):
            return tuple(self.many(")", self.expression))
        self.next()
        if kind == "number":
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if text in ("inf", "nan", "None", "True", "False"):
            return (
                {"None": None, "True": True, "False": False}.get(text)
                if text[0] in "NTF"
                else float(text)
            )
        if text in ("device", "complex"):
            self.next("(")
            inner = self.many(")", self.expression)
            return torch.device(*inner) if text == "device" else complex(*inner)
        assert text.startswith("torch."), text
        return getattr(torch, text.removeprefix("torch."))

    def role(self) -> tuple[str, str]:
        if not self.accept("{"):
            return "", ""
        word, name = self.next(), ""
        if self.text != "}":
            name = self.string() if self.text[0] == '"' else self.next()[1:]
        self.next("}")
        return word, name

    def entry(self) -> Entry:
        self.next("graph")
        entry = Entry(self.next() if self.text != "(" else "step")
        self.next("(")
        entry.inputs = self.many(")", self._input)
        self.next(":")
        entry.body = self._statements("return")
        self.next("return")
        self.next("(")
        entry.outputs = self.many(")", lambda: (self.expression(), *self.role()))
        return entry

    def _input(self) -> tuple[str, str, str, str]:
        name = self.next()[1:]
        self.next(":")
        return (name, self.type(), *self.role())

    def _output(self) -> tuple[str, str]:
        name = self.next()[1:]
        self.next(":")
        return name, self.type()

    def _statements(self, stop: str) -> list[Statement]:
        found = []
        while self.text != stop:
            found.append(self._statement())
        return found

    def _statement(self) -> Statement:
        outputs: list[tuple[str, str]] = []
        while self.tokens[self.at][0] == "value":
            outputs.append(self._output())
            if not self.accept(","):
                self.next("=")
        statement = Statement(self.next(), outputs)
        self.next("(")
        self.many(")", lambda: self._argument(statement))
        if self.accept("rng"):
            self.next("(")
            statement.rng = self.expression()
            self.next(")")
        if self.accept("@"):
            statement.source = self.string()
        if self.accept("in"):
            statement.module = self.string()
        while re.fullmatch(r"block\d+", self.text):
            self.next()
            for mark in "():":
                self.next(mark)
            body = self._statements("->")
            self.next("->")
            self.next("(")
            statement.blocks.append((body, self.many(")", self.expression)))
        return statement

    def _argument(self, statement: Statement) -> None:
        if self.tokens[self.at][0] == "name" and self.tokens[self.at + 1][1] == "=":
            name = self.next()
            self.next("=")
            statement.kwargs[name] = self.expression()
        else:
            assert not statement.kwargs, "an argument by position behind one by name"
            statement.args.append(self.expression())


def read(text: str) -> dict[str, Entry]:
    """The entries of a program by name."""
    reader = _Reader(text)
    reader.next("gravure")
    reader.next("1")
    entries = {}
    while reader.text:
        entry = reader.entry()
        entries[entry.name] = entry
    return entries
