"""Somebody's own optimizer: what its step reads besides parameters, gradients, state and settings.

It is read off the step's byte code, and that of all it calls, before anything runs. Each name in
there must be one of: an operator, arithmetic, an attribute or a global that is a plain value, which
is watched, or a function of the same kind. Whatever else there is, the step may do something that
is no operator, or read something that nobody watches: its name is the reason why it runs as it is.

Names are looked at, and not what they stand for, so this finds what is wrong with a step and proves
nothing: the caller has to vouch for the class (`foreign=True`).
"""

from __future__ import annotations

import builtins
import dis
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..graphs.recorded_numbers import OWN_STEP, Unrecorded
from ..torch_api.operators import is_torchs_function
from ..torch_api.optimizers import is_initialized, plain_step
from .own_optimizers import OWN

# Kinds of an optimizer's settings: `repr` says of each value all that code can find out.
_SETTINGS = (
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.memory_format,
)
_BUILTINS = frozenset(
    "abs all any bool dict enumerate filter float int len list map max min pow range reversed "
    "sorted tuple zip None NotImplemented Ellipsis".split()
)
_OF_TENSORS = frozenset("T data device dtype grad is_cuda is_sparse layout mT ndim shape".split())
# What a stand-in answers otherwise, what changes a tensor unseen, and what leaves PyTorch.
_NOT_OF_TENSORS = frozenset(
    "apply_ backward data_ptr detach_ is_inference is_leaf is_pinned is_shared is_set_to map_ "
    "map2_ names numpy output_nr pin_memory record_stream rename rename_ requires_grad_ resize "
    "resize_ resize_as resize_as_ resize_as_sparse_ retain_grad retains_grad set_ share_memory_ "
    "sparse_resize_ sparse_resize_and_clear_ storage tolist type untyped_storage".split()
)
# Besides those that are operators.
_METHODS = frozenset(
    "bfloat16 bool char cpu cuda dim double element_size float half int is_contiguous long "
    "ndimension nelement new_tensor numel short size stride to".split()
)
_SIGNS = "add sub mul truediv pow matmul and or xor"
_ARITHMETIC = frozenset(
    f"__{before}{sign}__" for sign in _SIGNS.split() for before in ("", "r", "i")
) | set("__abs__ __neg__ __pos__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__".split())
_OF_OTHERS = frozenset(
    name for kind in (dict, list, tuple) for name in vars(kind) if not name.startswith("__")
) | set("endswith eps is_complex is_floating_point itemsize lower startswith tiny upper".split())
_OF_TORCH = frozenset(
    "as_tensor enable_grad finfo inf is_tensor nan no_grad norm pi tensor".split()
)
_NOT_OF_TORCH = _NOT_OF_TENSORS | set("asarray from_dlpack from_file from_numpy frombuffer".split())
# What recorded numbers know: others would be given a number's mark.
_OF_MATH = frozenset("sqrt pi inf e tau".split())
_OF_OPTIMIZER = frozenset(("_init_group", "_cuda_graph_capture_health_check"))
_FILES = frozenset(kind.__module__ for kind in OWN)
# Called by others than the step.
_NOT_OF_STEPS = frozenset(
    "__init__ __setstate__ __getstate__ __repr__ __deepcopy__ add_param_group load_state_dict "
    "state_dict zero_grad".split()
)
_WRAPPERS = ("torch.utils._contextlib", "torch.optim.optimizer")


class ForeignStep:
    """Of one class, as its code is now."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Raises Unrecorded with what a program would not know."""
        self._kind = type(optimizer)
        self._functions: dict[int, FunctionType] = {}  # not PyTorch's
        self._calls_torchs = False
        self._same: list[tuple[Callable[[], Any], Any]] = []
        self._plain: dict[Any, Callable[[Optimizer], Any]] = {}
        for name in ("__getattr__", "__getattribute__"):
            if self._is_foreign(name):
                self._refuse(f"its class has a {name}")
        self._watch(lambda: self._kind.step)
        step = self._follow(plain_step(self._kind), optimizer)
        if not _takes_a_closure(step):
            self._refuse("its arguments are others than (self, closure=None)")
        for kind in self._foreign_classes():  # which PyTorch's own may call
            for name, value in list(vars(kind).items()):
                if isinstance(value, FunctionType):
                    if name not in (*_NOT_OF_STEPS, "step"):
                        self._method(name, optimizer)
                elif name in ("state", "param_groups", *_OF_OPTIMIZER):
                    self._refuse(f"its {name} is computed")
        # Both torch.optim's code, which chooses kernels by what stand-ins are not, and other code,
        # which would see the choice.
        self._mixes = bool(self._functions) and self._calls_torchs

    def is_same(self) -> bool:
        """Whether its code, and all it calls, is as it was."""
        try:
            return all(look() is found for look, found in self._same)
        except Exception:  # a name is gone
            return False

    def read(self, optimizer: Optimizer, key: list[Any]) -> None:
        """Adds the values that its code reads. Raises TypeError where one is no plain value."""
        for name, look in self._plain.items():
            try:
                found = look(optimizer)
            except Exception as error:
                raise TypeError(f"{_text(name)} is gone") from error
            key += (name, _frozen(found, _text(name)))
        state, groups = optimizer.state, optimizer.param_groups
        if type(state) is not defaultdict or state.default_factory is not dict:
            raise TypeError(f"its state is a {type(state).__name__}")
        for group in groups:
            if type(group) is not dict or type(group["params"]) is not list:
                raise TypeError("a group is no dictionary")
            if self._mixes and type(group.get("foreach")) is not bool:
                raise TypeError("foreach is None, and True or False would be known")
            for name, value in group.items():
                if name != "params":
                    _check_kind(value, name)
        parameters = {id(p) for group in groups for p in group["params"]}
        for owner, entries in state.items():  # in the order that it finds them in
            if id(owner) not in parameters:
                raise TypeError(f"its state has an entry of {type(owner).__name__}, no parameter")
            if type(entries) is not dict:
                raise TypeError(f"its state of a parameter is a {type(entries).__name__}")
            for name, value in entries.items():
                _check_kind(value, name)
            key += (id(owner), tuple(entries))

    # ---- what it reads

    def _foreign_classes(self) -> list[type]:
        return [kind for kind in self._kind.__mro__ if not _is_torchs(kind) and kind is not object]

    def _is_foreign(self, name: str) -> bool:
        return any(name in vars(kind) for kind in self._foreign_classes())

    def _watch(self, look: Callable[[], Any]) -> None:
        self._same.append((look, look()))

    def _value(self, name: Any, look: Callable[[Optimizer], Any], optimizer: Optimizer) -> None:
        try:
            _frozen(look(optimizer), _text(name))
        except TypeError as error:
            self._refuse(f"it reads {error}")
        self._plain[name] = look

    def _refuse(self, what: str) -> None:
        raise Unrecorded("its step", what, OWN_STEP)

    def _follow(self, function: Any, optimizer: Optimizer) -> Any:
        """All that it calls; returns it without PyTorch's wrappers."""
        while isinstance(function, FunctionType) and _file_of(function) in _WRAPPERS:
            wrapped = getattr(function, "__wrapped__", None)
            if wrapped is None or not _is_known_wrapper(function):
                break
            self._watch(lambda outer=function: outer.__wrapped__)  # type: ignore[misc]
            function = wrapped
        if not isinstance(function, FunctionType):
            self._refuse(f"it calls {function!r}")
        file = _file_of(function)
        of_optimizer = file == "torch.optim.optimizer" and function.__name__ in _OF_OPTIMIZER
        if of_optimizer:
            return function
        if file in _FILES:
            self._calls_torchs = True
            return function
        if file.partition(".")[0] == "torch":
            self._refuse(f"it calls {function.__module__}.{function.__qualname__}")
        if id(function) in self._functions:
            return function
        self._functions[id(function)] = function
        if hasattr(function, "__wrapped__"):
            self._refuse(f"{function.__qualname__} is wrapped")
        self._watch(lambda: function.__code__)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value((function.__qualname__, id(value)), lambda _, v=value: v, optimizer)  # type: ignore[misc]
        self._watch(lambda: function.__defaults__)
        self._watch(lambda: function.__kwdefaults__)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._read_code(function.__code__, function, cells, optimizer)
        return function

    def _read_code(
        self, code: CodeType, function: FunctionType, cells: dict[str, Any], optimizer: Optimizer
    ) -> None:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._read_code(constant, function, cells, optimizer)
        instructions = [each for each in dis.get_instructions(code) if each.opname not in _SILENT]
        following = iter(range(len(instructions)))
        has_text = any(isinstance(text, str) and "%" in text for text in code.co_consts)
        for i in following:
            instruction = instructions[i]
            name, kind = instruction.argval, instruction.opname
            if kind in _CATCHES or (
                kind == "PUSH_EXC_INFO" and instructions[i + 1].opname != "WITH_EXCEPT_START"
            ):
                self._refuse(f"{function.__qualname__} catches errors")
            if kind.startswith(("FORMAT_", "CONVERT_VALUE", "MATCH_")) or (
                has_text and instruction.argrepr in ("%", "%=")
            ):
                self._refuse(f"{function.__qualname__} has a {kind}")
            if instruction.opcode not in dis.hasname and instruction.opcode not in dis.hasfree:
                if kind in _EFFECTS:
                    self._refuse(f"{function.__qualname__} has a {kind}")
                continue
            if kind in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"):
                if kind.endswith("DEREF") and name not in cells:
                    continue  # a local of the function around
                chain = list(_attributes(instructions[i + 1 :]))
                cell = cells.get(name) if kind.endswith("DEREF") else None
                found = _global(function, cell, name)  # which keeps alive whose id this is
                where = (id(function.__globals__ if cell is None else cell), name)
                self._name(where, found, chain, optimizer)
                if isinstance(found(), ModuleType):
                    for _ in _links(found(), chain):
                        next(following, None)
            elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
                if name != "type" or i == 0 or instructions[i - 1].argval != "device":
                    self._attribute(name, optimizer)
            elif kind in ("LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS", "STORE_NAME"):
                continue
            elif kind == "STORE_DEREF" and name not in cells:
                continue
            else:
                self._refuse(f"{function.__qualname__} sets or takes {name} ({kind})")

    def _name(
        self,
        where: tuple[int, str],
        found: Callable[[], Any],
        chain: list[str],
        optimizer: Optimizer,
    ) -> None:
        value, name = found(), where[1]
        if value is vars(builtins).get(name, _NOTHING):
            is_error = isinstance(value, type) and issubclass(value, Exception)
            if name not in _BUILTINS and not is_error:
                self._refuse(f"it calls {name}")
            self._watch(found)
        elif isinstance(value, ModuleType):
            self._watch(found)
            list(_links(value, chain, self._refuse))
        elif isinstance(value, FunctionType):
            self._watch(found)
            self._follow(value, optimizer)
        else:
            self._value(where, lambda _: found(), optimizer)

    def _attribute(self, name: str, optimizer: Optimizer) -> None:
        """Of whatever: the optimizer's own, if it has one of that name."""
        if name in ("state", "param_groups"):
            return
        if name == "step":
            self._refuse("it reads or calls .step")
        if name in vars(optimizer) or self._is_foreign(name):
            static = inspect.getattr_static(optimizer, name)
            if isinstance(static, FunctionType) and name not in vars(optimizer):
                self._method(name, optimizer)
            elif isinstance(static, staticmethod):
                self._watch(lambda: inspect.getattr_static(self._kind, name))
                self._follow(static.__func__, optimizer)
            elif isinstance(static, (property, classmethod)):
                self._refuse(f"its {name} is computed")
            else:
                self._value(name, lambda o: getattr(o, name), optimizer)
            if not hasattr(Tensor, name):
                return
        elif hasattr(self._kind, name):  # PyTorch's own
            if name not in _OF_OPTIMIZER:
                self._refuse(f"it reads or calls .{name}")
            self._method(name, optimizer)
            return
        if not _is_of_tensors(name):  # whatever it is that has it
            self._refuse(f"it reads or calls .{name}")

    def _method(self, name: str, optimizer: Optimizer) -> None:
        self._watch(lambda: inspect.getattr_static(self._kind, name))
        self._follow(inspect.getattr_static(self._kind, name), optimizer)


_NOTHING = object()
_CATCHES = frozenset(
    ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "SETUP_FINALLY", "JUMP_IF_NOT_EXC_MATCH")
)
_SILENT = frozenset(("CACHE", "PUSH_NULL", "EXTENDED_ARG", "PRECALL", "NOP", "RESUME"))
_EFFECTS = frozenset(("YIELD_VALUE", "LOAD_BUILD_CLASS", "IMPORT_STAR", "GET_AWAITABLE"))


def _file_of(function: FunctionType) -> str:
    """The module whose globals it has: `__module__` is copied by what wraps it."""
    return str(function.__globals__.get("__name__", ""))


def _takes_a_closure(step: Any) -> bool:
    """Whether its arguments are (self, closure=None), and no other one."""
    code = step.__code__
    others = code.co_kwonlyargcount or code.co_posonlyargcount
    if others or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return False
    names = code.co_varnames[: code.co_argcount]
    return names == ("self", "closure") and step.__defaults__ == (None,)


def _is_known_wrapper(function: FunctionType) -> bool:
    """Whether it runs what it wraps under a setting of autograd's, or with an optimizer's hooks."""
    if _file_of(function) != "torch.utils._contextlib":
        return True
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if "ctx_factory" not in cells:
        return False
    context = getattr(cells["ctx_factory"].cell_contents, "__self__", None)
    return type(context) in (torch.no_grad, torch.enable_grad)


def _is_of_tensors(name: str) -> bool:
    """Whether an attribute of this name is an operator, or plain, whatever it is that has it."""
    if name in _OF_OTHERS or name in _OF_TENSORS or name in _ARITHMETIC:
        return True
    if name.startswith("_") or name in _NOT_OF_TENSORS:
        return False
    found = inspect.getattr_static(Tensor, name, None)
    if not isinstance(found, (MethodDescriptorType, WrapperDescriptorType, FunctionType)):
        return False
    return name in _METHODS or hasattr(torch.ops.aten, name)


def _text(name: Any) -> str:
    return name if isinstance(name, str) else next(part for part in name if isinstance(part, str))


def _check_kind(value: Any, name: Any) -> None:
    """Raises TypeError for what a stand-in would take for something else."""
    if type(value) in (tuple, list):
        for member in value:
            _check_kind(member, name)
    elif type(value) not in _SETTINGS and not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}")


def _attributes(instructions: list[dis.Instruction]) -> Iterator[str]:
    for instruction in instructions:
        if instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return
        yield instruction.argval


def _links(
    module: ModuleType, chain: list[str], refuse: Callable[[str], None] | None = None
) -> Iterator[str]:
    """Of `chain`, what leads from a module to one of its members."""
    refused = refuse or (lambda _: None)
    at: Any = module
    if not chain:
        refused(f"it hands on the module {module.__name__}")
    for name in chain:
        if not isinstance(at, ModuleType):
            return
        if at is torch and not _is_torchs_operator(name):
            refused(f"it uses torch.{name}")
        elif at is math and name not in _OF_MATH:
            refused(f"it uses math.{name}")
        elif at is torch.linalg and not isinstance(getattr(at, name, None), BuiltinFunctionType):
            refused(f"it uses torch.linalg.{name}")
        elif at not in (torch, math, torch.linalg):
            refused(f"it uses the module {at.__name__}")
        at = getattr(at, name, None)
        yield name


def _is_torchs_operator(name: str) -> bool:
    if name in _NOT_OF_TORCH or (name.startswith("_") and not name.startswith("_foreach_")):
        return False
    if name in _OF_TORCH or name == "linalg" or is_torchs_function(name):
        return True
    return isinstance(getattr(torch, name, None), (torch.dtype, torch.memory_format, torch.layout))


def _global(function: FunctionType, cell: Any, name: str) -> Callable[[], Any]:
    names = function.__globals__

    def find() -> Any:
        if cell is not None:
            return cell.cell_contents
        return names[name] if name in names else vars(builtins).get(name)

    return find


def _is_torchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def _frozen(value: Any, name: Any) -> Any:
    """Equal only if it is the same to the last bit."""
    if type(value) is tuple:
        return tuple(_frozen(member, name) for member in value)
    if type(value) not in _SETTINGS:
        raise TypeError(f"{name}, a {type(value).__name__}")
    return type(value), repr(value)


def foreign_step(optimizer: Optimizer) -> tuple[ForeignStep | None, str]:
    """What is known of its step; or why it runs as it is."""
    name = f"{type(optimizer).__name__} is not one of torch.optim's own"
    if not is_initialized(optimizer):
        return None, f"{name}, and has no hooks, as what wraps another one"
    try:
        return ForeignStep(optimizer), ""
    except Unrecorded as error:
        return None, f"{name}, and {error.reason}"
    except Exception as error:  # of code that is unlike what is known of code
        return None, f"{name}, and {error!r}"
