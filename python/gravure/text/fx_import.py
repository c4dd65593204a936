"""Writes the nodes of an FX graph as statements of program text."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ..errors import ExportError
from ..graphs.compiled_ops import CompiledCode
from ..graphs.known_numbers import KnownNumbers
from ..graphs.names import InputSpec, Namer
from ..graphs.node_facts import number_of
from ..torch_api.cudnn_recurrent import RECURRENT, reserve_bytes, with_reserve
from ..torch_api.eager_kernels import BERNOULLI_LIKE
from ..torch_api.operators import OpOverload, opname_of
from . import higher_order
from .higher_order import Ref
from .operators import (
    NOT_OPERATORS,
    SCALAR_OPERATORS,
    UNTRUE_TYPES,
    Operator,
    Parameter,
    UntrueTypes,
    operator_of,
)
from .prims import is_prim, lowered
from .program_text import NameTable, TypeWriter, constant_text, quoted
from .source_lines import Locations

_DETACH = torch.ops.aten.detach.default  # does nothing below autograd
_ASSERT = torch.ops.aten._assert_scalar.default
_NUMBER = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)


class ListValue(str):
    """A value that holds a list whose members are known only at run time."""


class EntryWriter:
    """Statements and inputs of one entry. `env` maps the nodes at hand to what they stand for."""

    def __init__(self, namer: Namer, known: KnownNumbers | None = None) -> None:
        self.known = known or KnownNumbers()
        self.types = TypeWriter(self.known)
        self.names = NameTable()
        self.locations = Locations(namer)
        self.kinds: dict[str, str] = {}  # the type of each value
        self.lines: list[str] = []
        self.inputs: list[tuple[InputSpec, str, str]] = []  # spec, value, type
        self.env: dict[fx.Node, Ref] = {}
        self.indent = "  "
        # The outermost node that each statement was written for; None for statements of the entry.
        self.owners: list[fx.Node | None] = []
        self.carries_python = False  # operators that only Python has are called as they are
        self.given: Collection[fx.Node] = ()  # placeholders that their last reader may write over
        self.held: list[CompiledCode] = []  # what a program of this text calls by name
        self._owner: fx.Node | None = None
        self._input_names: set[str] = set()
        self._constants: dict[int, str] = {}
        self._module: fx.GraphModule | None = None

    def add_input(self, spec: InputSpec, kind: str) -> str:
        """A further input, of the type `kind`; its value. A name that is taken gets a number."""
        if spec.name in self._input_names:
            spec = replace(spec, name=f"{spec.name}.{len(self.inputs)}")
        self._input_names.add(spec.name)
        prefix = {"rng_state": "rng_", "tangent": "d_"}.get(spec.role, "")
        name = self.names.take(prefix + spec.name)
        self.inputs.append((spec, name, kind))
        self.kinds[name] = kind
        return name

    def add_graph(self, module: fx.GraphModule, bound: list[Ref]) -> list[Any]:
        """Writes the nodes of `module`, its placeholders bound to `bound`; its output arguments."""
        outer, self._module = self._module, module
        placeholders = iter(bound)
        result: list[Any] = []
        for node in module.graph.nodes:
            if outer is None:
                self._owner = node
            if node.op == "call_function":
                self._call(node)
            elif node.op == "placeholder":
                self.env[node] = next(placeholders)
            elif node.op == "get_attr":
                self._attribute(node)
            elif node.op == "output":
                values = node.args[0]
                result = list(values) if isinstance(values, (tuple, list)) else [values]
            else:
                raise self.refusal(node, f"it is a {node.op} node", "report this")
        self._module = outer
        if outer is None:
            self._owner = None
        return result

    def text(self, name: str, outputs: list[str]) -> str:
        """The whole entry, which returns `outputs`, each a value with its role."""
        head = f"graph {name}("
        inputs = [f"{v} : {kind} {{{s.role} {quoted(s.name)}}}" for s, v, kind in self.inputs]
        lines = [head + (",\n" + " " * len(head)).join(inputs) + "):", *self.lines]
        lines.append("  return (" + (",\n" + " " * 10).join(outputs) + ")")
        return "\n".join(lines) + "\n"

    def emit(self, outputs: list[str], call: str, suffix: str = "") -> None:
        """Writes one statement; each of `outputs` with its type."""
        left = f"{', '.join(outputs)} = " if outputs else ""
        if self.indent == "  ":
            self.owners.append(self._owner)
        self.lines.append(f"{self.indent}{left}{call}{suffix}")

    def define(self, wanted: str, kind: str, call: str, suffix: str = "") -> str:
        """Writes `%wanted : kind = call` and returns the value."""
        return self.define_all([wanted], [kind], call, suffix)[0]

    def define_all(self, wanted: list[str], kinds: list[str], call: str, suffix: str) -> list[str]:
        """The same for a statement of several outputs."""
        values = [self.names.take(name) for name in wanted]
        self.kinds.update(zip(values, kinds, strict=True))
        outputs = [f"{v} : {kind}" for v, kind in zip(values, kinds, strict=True)]
        self.emit(outputs, call, suffix)
        return values

    def refusal(self, node: fx.Node, reason: str, remedy: str) -> ExportError:
        """The error, to be raised, for a node that cannot be written."""
        target = node.target
        text = operator_of(target).text if isinstance(target, OpOverload) else str(target)
        return ExportError(f"%{node.name} = {text}", reason, remedy, self.locations.source(node))

    # ---- arguments

    def value(self, arg: Any, node: fx.Node, parameter: Parameter | None = None) -> str:
        """`arg` as an expression, for `parameter` of the operator of `node`."""
        if isinstance(arg, fx.Node) and (number := self._known_number(arg)) is not None:
            arg = number
        if isinstance(arg, fx.Node):
            ref = self.env[arg]
            if type(ref) is str:
                if parameter is not None and (parameter.is_number or parameter.is_float):
                    return self._number(arg, ref, parameter)
                return ref
            return self._members(ref)
        if isinstance(arg, (list, tuple)):
            return "[" + ", ".join([self.value(a, node, parameter) for a in arg]) + "]"
        if parameter is not None:
            if parameter.is_float and type(arg) in (int, bool):
                arg = float(arg)
            elif parameter.is_int and type(arg) is bool:
                arg = int(arg)
        text = constant_text(arg)
        if text is None:
            kind = type(arg).__name__
            raise self.refusal(
                node,
                f"its argument is a {kind}, which a program cannot hold",
                "leave out explicit generators and other Python objects"
                if isinstance(arg, torch.Generator)
                else "pass tensors and numbers only",
            )
        return text

    def _members(self, ref: Ref) -> str:
        if isinstance(ref, str):
            return ref
        return "[" + ", ".join([self._members(r) for r in ref]) + "]"

    def _number(self, arg: fx.Node, ref: str, parameter: Parameter) -> str:
        """The value `ref` of a symbolic number, converted if the parameter is of another kind."""
        example = arg.meta.get("val")
        if parameter.is_number and isinstance(example, (torch.SymBool, bool)):
            call = f"aten::Int.bool({ref})"
            return self.define(f"{arg.name}_int", "int", call, self.locations.suffix(arg))
        if parameter.is_float and isinstance(example, (torch.SymInt, int)):
            call = f"aten::Float.int({ref})"
            return self.define(f"{arg.name}_float", "float", call, self.locations.suffix(arg))
        return ref

    def arguments(
        self, op: Operator, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """All arguments by the schema: by position up to the first gap, the rest by name."""
        parts: list[str] = []
        parameters = op.parameters
        for arg, parameter in zip(args, parameters, strict=False):
            if parameter.fixed and not isinstance(arg, (list, tuple, fx.Node)) and arg is not None:
                arg = [arg] * parameter.fixed
            parts.append(self.value(arg, node, parameter))
        if kwargs:
            contiguous = True
            for parameter in parameters[len(args) :]:
                if parameter.name not in kwargs:
                    contiguous = False
                    continue
                arg = kwargs[parameter.name]
                if parameter.fixed and not isinstance(arg, (list, tuple, fx.Node)):
                    arg = arg if arg is None else [arg] * parameter.fixed
                text = self.value(arg, node, parameter)
                contiguous = contiguous and not parameter.keyword_only
                parts.append(text if contiguous else f"{parameter.name}={text}")
        return ", ".join(parts)

    # ---- nodes

    def _known_number(self, node: fx.Node) -> int | float | bool | None:
        """The value of a symbolic number that is a constant in this program."""
        return self.known.number(node.meta.get("val")) if self.known else None

    def _call(self, node: fx.Node) -> None:
        target = node.target
        if self.known:
            number = self._known_number(node)
            if number is not None:
                self.env[node] = constant_text(number)
                return
            if target is _ASSERT and self._known_number(node.args[0]) is not None:
                return  # PyTorch guards on it
        if type(target) is OpOverload:
            if target is _DETACH:
                self.env[node] = self.env[node.args[0]]
                return
            example = node.meta.get("val")
            target = with_reserve(target, node.args, self.given) if self.given else target
            self.env[node] = self.operator(node, target, node.args, node.kwargs, example)
        elif target is operator.getitem:
            self._getitem(node)
        elif target in SCALAR_OPERATORS:
            self.env[node] = self._scalar(node, SCALAR_OPERATORS[target])
        elif target in NOT_OPERATORS:
            operand = self.value(node.args[0], node)
            self.env[node] = self.define(node.name, "bool", f"aten::__not__({operand})")
        elif target in (torch.sym_float, float):
            self.env[node] = self._to_float(node.args[0], node)
        elif target in (torch.sym_int, int, math.trunc):
            self.env[node] = self._to_int(node.args[0], node)
        elif target is round and node.args[1:] in ((), (None,)):
            self.env[node] = self._rounded(node)
        elif target is torch.sym_sum:
            self.env[node] = self._sum(node)
        else:
            self.env[node] = higher_order.write(self, node)

    def operator(
        self,
        node: fx.Node,
        overload: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        example: Any,
        rng: str = "",
    ) -> Ref:
        """One call of `overload`, with `example` as what it returns."""
        if overload is BERNOULLI_LIKE:
            return self._bernoulli(node, args, example, rng)
        if is_prim(overload):
            aten = lowered(overload, args, kwargs)
            if aten is not None:
                overload, args, kwargs = aten
            elif not self.carries_python:
                raise self.refusal(
                    node,
                    "only Python knows this operator, and it has no aten form",
                    "compute this with torch's own functions, not with torch._prims or torch._refs",
                )
        op = operator_of(overload)
        if op.refused and kwargs.get(op.refused) is not None:
            raise self.refusal(node, "it draws from a generator of its own", "use the default one")
        if op.bakes and isinstance(example, torch.Tensor):
            defaults = {"dtype": example.dtype, "device": example.device}
            kwargs = dict(kwargs)
            for name in op.bakes:
                if kwargs.get(name) is None:
                    kwargs[name] = defaults[name]
        call = f"{op.text}({self.arguments(op, node, args, kwargs)})"
        if rng:
            call += f" rng({rng})"
        suffix = self.locations.suffix(node)
        if op.returns == 0:
            self.emit([], call, suffix)
            return "None"
        plain = isinstance(node.target, OpOverload)
        wanted = node.name if plain else opname_of(overload)
        if op.returns == 1 and not op.returns_lists[0]:
            return self.define(wanted, self.types.of(example), call, suffix)
        return self._several(wanted, op, call, suffix, example, self._untrue(op, args, example))

    def _untrue(self, op: Operator, args: tuple[Any, ...], example: Any) -> UntrueTypes:
        """Results whose stand-ins have another type than they will have."""
        if op.text != RECURRENT:
            return UNTRUE_TYPES.get(op.text, ())
        given = fx.node.map_arg(args, lambda node: node.meta["val"])
        count = reserve_bytes(given, lambda size: number_of(size, self.known))
        size = "*" if count is None else str(count)
        return ((3, f"Byte({size}, strides=[1], device={example[3].device})"),)

    def _bernoulli(self, node: fx.Node, args: tuple[Any, ...], example: Any, rng: str) -> str:
        kind, suffix = self.types.of(example), self.locations.suffix(node)
        like, p = self.value(args[0], node), constant_text(float(args[1]))
        fresh = self.define("noise", kind, f"aten::empty_like({like})", suffix)
        call = f"aten::bernoulli_.float({fresh}, {p})" + (f" rng({rng})" if rng else "")
        return self.define("bernoulli", kind, call, suffix)

    def _several(
        self, wanted: str, op: Operator, call: str, suffix: str, example: Any, untrue: UntrueTypes
    ) -> Ref:
        """An operator with several returns: one output each. A list of known length, the only one
        among them, is unpacked: one output a member."""
        lists: tuple[bool, ...] = op.returns_lists
        examples = list(example) if isinstance(example, (list, tuple)) else []
        if op.returns == 1:
            examples = [examples]
        examples += [None] * (len(lists) - len(examples))
        of, members = self.types.of, None
        if lists.count(True) == 1 and isinstance(examples[at := lists.index(True)], (list, tuple)):
            members = slice(at, at + len(examples[at]))
            examples[at : at + 1] = examples[at]
            lists = (False,) * len(examples)
        kinds = ["Tensor[]" if i else of(e) for i, e in zip(lists, examples, strict=True)]
        for i, kind in untrue:
            kinds[i] = kind
        names = [f"{wanted}_{i}" for i in range(len(kinds))]
        values: list[Any] = self.define_all(names, kinds, call, suffix)
        if members is not None and op.returns > 1:
            return [*values[: members.start], values[members], *values[members.stop :]]
        return [ListValue(v) if i else v for v, i in zip(values, lists, strict=True)]

    def _getitem(self, node: fx.Node) -> None:
        ref, index = self.env[node.args[0]], node.args[1]
        if isinstance(ref, ListValue):
            kind = self.types.of(node.meta.get("val"))
            self.env[node] = self.define(node.name, kind, f"aten::__getitem__.t({ref}, {index})")
        elif isinstance(ref, (list, tuple, dict)):
            self.env[node] = ref[index]
        else:
            raise self.refusal(node, "it takes a member of what has none", "report this")

    def _attribute(self, node: fx.Node) -> None:
        """A tensor constant becomes an input; a graph is read by the node that runs it."""
        held: Any = self._module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if isinstance(held, torch.Tensor):
            value = self._constants.get(id(held))
            if value is None:
                spec = InputSpec("constant", str(node.target).lstrip("_"), held.detach())
                value = self.add_input(spec, self.types.of(held))
                self._constants[id(held)] = value
            self.env[node] = value
        elif isinstance(held, fx.GraphModule):
            self.env[node] = held
        else:
            kind = type(held).__name__
            raise self.refusal(
                node,
                f"it holds a {kind}",
                "use functional collectives, whose group is a name, and plain tensors",
            )

    # ---- numbers that are known at run time

    def _scalar(self, node: fx.Node, name: str) -> str:
        examples = [a.meta.get("val") if isinstance(a, fx.Node) else a for a in node.args]
        result = node.meta.get("val")
        if not all(isinstance(e, _NUMBER) for e in examples):
            raise self.refusal(node, "its operands are no numbers", "use torch's operators")
        if all(isinstance(e, (bool, torch.SymBool)) for e in examples):
            overload, operands = "bool", [self.value(a, node) for a in node.args]
        elif any(isinstance(e, (float, torch.SymFloat)) for e in examples):
            overload, operands = "float", [self._to_float(a, node) for a in node.args]
        else:
            overload, operands = "int", [self._to_int(a, node) for a in node.args]
        if name == "aten::pow" and overload == "int" and self.types.of(result) == "int":
            overload = "int_to_int"
        call = f"{name}.{overload}({', '.join(operands)})"
        return self.define(node.name, self.types.of(result), call, self.locations.suffix(node))

    def _to_float(self, arg: Any, node: fx.Node) -> str:
        return self._converted(arg, node, "float")

    def _to_int(self, arg: Any, node: fx.Node) -> str:
        return self._converted(arg, node, "int")

    def _converted(self, arg: Any, node: fx.Node, kind: str) -> str:
        """`arg` as an int or a float, whichever `kind` says."""
        if not isinstance(arg, fx.Node):
            return str(constant_text(float(arg) if kind == "float" else int(arg)))
        ref, found = self.value(arg, node), self.types.of(arg.meta.get("val"))
        if found == kind:
            return ref
        call = f"aten::{kind.capitalize()}.{found}({ref})"
        return self.define(f"{arg.name}_{kind}", kind, call, self.locations.suffix(arg))

    def _rounded(self, node: fx.Node) -> str:
        """To the nearest int, from the middle to the even one, as Python and the operator do."""
        suffix = self.locations.suffix(node)
        call = f"aten::round.float({self._to_float(node.args[0], node)})"
        whole = self.define(f"{node.name}_float", "float", call, suffix)
        return self.define(node.name, "int", f"aten::Int.float({whole})", suffix)

    def _sum(self, node: fx.Node) -> str:
        terms = [self._to_int(a, node) for a in node.args[0]]
        total = terms[0]
        for term in terms[1:]:
            total = self.define(
                node.name, "int", f"aten::add.int({total}, {term})", self.locations.suffix(node)
            )
        return total
