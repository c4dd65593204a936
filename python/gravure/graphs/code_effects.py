"""What compiled code says of itself: the operators that it calls, and what it returns.

Inductor's code is a Python function that allocates, launches kernels whose text stands beside it,
and calls operators. It is run here on stand-ins: with each of its names as `torch_api` knows it,
and kernels that do nothing. So each operator is seen with its operands, and whether these are
memory that the code was given. What is not known ends in UnknownCode, and so does control flow.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.compiled_code import KERNELS, KeptCode, UnknownCode, kept_code, word
from ..torch_api.dispatch import TorchDispatchMode, without_modes
from ..torch_api.fake_tensors import FakeTensorMode, storage_key
from ..torch_api.operators import pytree

_STATEMENTS = (ast.Assign, ast.Delete, ast.Expr, ast.Return, ast.With, ast.Pass, ast.Raise)
_EXPRESSIONS = (
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.boolop,
    ast.Compare,
    ast.BoolOp,
    ast.Name,
    ast.Attribute,
    ast.Call,
    ast.keyword,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Subscript,
    ast.Slice,
    ast.Starred,
    ast.BinOp,
    ast.UnaryOp,
    ast.arguments,
    ast.arg,
    ast.withitem,
)
_OWN = torch.ops.aten.empty.memory_format  # stands for who made an operand that is the code's own


def operators_of(
    target: Any, known: Mapping[int, Any] | None = None
) -> tuple[list[fx.Node], str] | None:
    """Calls of all operators that the code of a compiled region calls, on inputs as it was compiled
    for, each with an example of what it gives. What the code was given are placeholders, what it
    has made are results of a call. `known`: inputs that are no tensors, by position; without it
    None for code that takes such a one, as a mesh, of which nobody keeps an example.

    And what of it is not known; "" where all is. Then the calls are those before.
    """
    calls = _Calls()
    try:
        with without_modes(), torch.no_grad(), FakeTensorMode() as mode:
            code = _Code(kept_code(target), mode, calls)
            examples = code.examples()
            if known is None and any(each is None for each in examples):
                return None
            code.run([(known or {}).get(i, each) for i, each in enumerate(examples)])
    except UnknownCode as unknown:
        return calls.nodes, str(unknown)
    return calls.nodes, ""


def results_of(target: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """Stand-ins of what a compiled region returns for these, which are of the mode that is on.
    Raises UnknownCode."""
    mode = next((a.fake_mode for a in args if hasattr(a, "fake_mode")), FakeTensorMode())
    return _Code(kept_code(target), mode, _Calls()).run(args)


class _Calls(TorchDispatchMode):  # type: ignore[misc]
    """Sees each operator before it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[fx.Node] = []
        self.given: dict[int, Tensor] = {}  # by their memory: these stay alive
        self._graph = fx.Graph()

    def give(self, values: Any) -> None:
        self.given |= {storage_key(t): t for t in pytree.tree_leaves(values) if _is_tensor(t)}
        if len({tensor.device for tensor in self.given.values()}) > 1:
            raise UnknownCode("work on more than one device")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operands = pytree.tree_map_only(Tensor, self._stand_in, (args, kwargs))
        node = self._graph.create_node("call_function", func, *operands)
        self.nodes.append(node)
        made = node.meta["val"] = func(*args, **kwargs)
        seen = [t for t in pytree.tree_leaves((args, kwargs, made)) if _is_tensor(t)]
        if len({tensor.device for tensor in seen}) > 1:
            raise UnknownCode(f"call {func} on more than one device")
        return made

    def _stand_in(self, tensor: Tensor) -> fx.Node:
        is_given = storage_key(tensor) in self.given
        node = self._graph.placeholder("given") if is_given else self._graph.call_function(_OWN)
        node.meta["val"] = tensor
        return node


class _Kernel:
    """Launches nothing. Its parameters tell what it reads alone."""

    def __init__(self, name: str, text: str, calls: _Calls, constants: set[int]) -> None:
        found = re.search(rf"(?:def|void)\s+(?:{name}|triton_|kernel)\s*\(([^)]*)\)", text)
        if found is None:
            raise UnknownCode(f"run {name}, whose parameters are not known")
        parameters = [each.partition(":")[0].split() for each in found[1].split(",")]
        self._name, self._calls, self._constants = name, calls, constants
        self._parameters = [words[-1].lstrip("*") for words in parameters if words]

    def run(self, *args: Any, **kwargs: Any) -> None:
        unknown = [v for v in (*args, *kwargs.values()) if not isinstance(v, (Tensor, int, float))]
        if unknown or any(map(_is_tensor, args[len(self._parameters) :])):
            raise UnknownCode(f"run {self._name} with arguments that are not known")
        for parameter, value in zip(self._parameters, args, strict=False):
            if not _is_tensor(value) or storage_key(value) not in self._calls.given:
                continue
            is_constant = storage_key(value) in self._constants
            if "out_ptr" in parameter or (is_constant and not parameter.startswith("in_ptr")):
                raise UnknownCode(f"may write into what they were given, in {self._name}")

    __call__ = run


class _Code:
    """The source's functions, with stand-ins for all that they name."""

    def __init__(self, kept: KeptCode, mode: Any, calls: _Calls) -> None:
        self._calls = calls
        self._names: dict[str, Any] = {"__builtins__": word("builtins")}
        constants = {n: mode.from_tensor(t) for n, t in kept.constants.items()}
        calls.give(list(constants.values()))
        self._constants = set(calls.given)
        try:
            tree = ast.parse(kept.source)
        except SyntaxError as error:
            raise UnknownCode("are no Python code") from error
        self._functions = {f.name: f for f in _functions(tree)}
        for statement in tree.body:
            self._read(statement)
        self._names |= constants

    def examples(self) -> Any:
        """What the code was compiled for, as it keeps that for measuring itself."""
        return self._run(self._function("get_args"))

    def run(self, args: Sequence[Any]) -> tuple[Any, ...]:
        names = sorted(n for n in self._functions if re.fullmatch(r"partition_\d+", n))
        self.partitions = [self._function(n) for n in sorted(names, key=lambda n: int(n[10:]))]
        call = self._function("call")
        of_class = len(self._functions["call"].args.args) == 2
        with torch.no_grad(), self._calls:
            self._calls.give(list(args))
            return tuple(self._run(call, *([self] if of_class else []), [*args]))

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except UnknownCode:
            raise
        except Exception as error:
            called = [str(node.target) for node in self._calls.nodes[-1:]]
            raise UnknownCode(
                f"cannot be followed behind {called} ({type(error).__name__}: {error})"
            ) from error

    def _read(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                self._names[alias.asname or path] = word(path)
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                self._names[alias.asname or alias.name] = word(f"{statement.module}.{alias.name}")
        elif isinstance(statement, ast.Assign):
            self._read_assignment(statement)
        elif not _does_nothing(statement):
            raise UnknownCode(f'have code that is not known: "{ast.unparse(statement)[:80]}"')

    def _read_assignment(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        name, value = ast.unparse(target), statement.value
        if isinstance(value, ast.Call):
            made_by, _, kind = ast.unparse(value.func).rpartition(".")
            if made_by == "async_compile" and kind in KERNELS:
                text = "".join(str(a.value) for a in value.args[1:2] if isinstance(a, ast.Constant))
                self._names[name] = _Kernel(name, text, self._calls, self._constants)
        elif isinstance(value, ast.Attribute):
            self._names[name] = self._look_up(value)

    def _look_up(self, path: ast.expr) -> Any:
        if isinstance(path, ast.Attribute):
            return getattr(self._look_up(path.value), path.attr, None)
        return self._names.get(ast.unparse(path))

    def _function(self, name: str) -> Callable[..., Any]:
        """One of the source's, in which nothing is decided and nothing repeated."""
        found = self._functions.get(name)
        if found is None:
            raise UnknownCode(f"have no function {name} in their code")
        for statement in found.body:
            if isinstance(statement, ast.ImportFrom):
                self._read(statement)
        body = [s for s in found.body if not isinstance(s, ast.ImportFrom)]
        for node in (n for s in body for n in ast.walk(s)):
            named = getattr(node, "id", getattr(node, "attr", ""))
            is_known = isinstance(node, (*_STATEMENTS, *_EXPRESSIONS)) or _is_check(node)
            if not is_known or named.startswith("__"):
                raise UnknownCode(f'have code that is not known: "{ast.unparse(node)[:80]}"')
        function = copy.copy(found)
        function.body, function.decorator_list = body or [ast.Pass()], []
        module = ast.fix_missing_locations(ast.Module([function], []))
        made: dict[str, Any] = {}
        exec(compile(module, f"<{name} of compiled code>", "exec"), self._names, made)
        return made[name]  # type: ignore[no-any-return]


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) and node.name == "Runner" else [node]
        yield from (each for each in members if isinstance(each, ast.FunctionDef))


def _is_check(node: ast.AST) -> bool:
    """Whether it is an error or nothing, as of sizes that are known at run time."""
    if not isinstance(node, ast.If):
        return False
    return not node.orelse and all(isinstance(each, ast.Raise) for each in node.body)


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether a statement of the module's own is a definition, a comment or a test of its own."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) == "__name__ == '__main__'"
    if isinstance(statement, ast.Expr):
        text = ast.unparse(statement.value)
        return isinstance(statement.value, ast.Constant) or text == "async_compile.wait(globals())"
    return isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Delete))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
