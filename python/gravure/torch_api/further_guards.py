"""Dynamo looks in each call for what it takes for granted after the first one.

    Config.scale = 2.0             # read off the class
    Block.forward = patched        # found in the class
    shift.__defaults__ = (0.5,)
    layer.register_forward_hook(hook)

Behind such a line the compiled code would go on as before, without a word. Guards are added while
Dynamo traces for Gravure, so that it compiles anew:

- for what is read off a class, and for methods, properties and other descriptors that are found in
  one: the class has the same. A class is guarded once for a graph, and not at each object of it;
- for each function: its code and its defaults are the same. Those of PyTorch's own are left out;
  of lambdas and functions inside of functions, which calls may make anew, their defaults alone;
- for hooks of modules, and of all modules: there are still none;
- where code asks whether a tensor requires a gradient: it still does, or does not.

Classes and functions are held weakly, by a global name of Dynamo's. Each guard is made once for a
graph: one like it Dynamo would keep beside it, compare with all like it, and check in each call.

Private, of Dynamo's: what stands for what code finds: `UserDefinedClassVariable`,
`UserDefinedObjectVariable`, `SuperVariable`, `UserFunctionVariable`,
`UnspecializedNNModuleVariable`, `TensorVariable`; `VariableTracker` makes such a one, and
`ConstantVariable` knows what a constant is. `install_guard` adds a guard of a kind of
`GuardBuilder`'s. Where it looks say `AttrSource`, `DefaultsSource`, `DictGetItemSource`,
`GlobalWeakRefSource` and `TypeDictSource`. `tls` has the translator at work, `TracingContext` is of
one graph. Without them Dynamo looks as rarely as for other backends; a warning says so.
"""

from __future__ import annotations

import enum
import functools
import inspect
import logging
import os
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .private_names import (
    AttrSource,
    ConstantVariable,
    DefaultsSource,
    DictGetItemSource,
    GlobalWeakRefSource,
    GuardBuilder,
    MissingName,
    SuperVariable,
    TensorVariable,
    TracingContext,
    TypeDictSource,
    UnspecializedNNModuleVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    UserFunctionVariable,
    VariableTracker,
    install_guard,
    is_there,
    tls,
)

logger = logging.getLogger("gravure")

IsOurs = Callable[[Any], bool]
Method = Callable[..., Any]

_NAME = "__gravure_guarded"
_PYTORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_IMMUTABLE = 1 << 8  # of a class's flags: made in C, nobody sets its attributes
_FORWARD_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_BACKWARD_HOOKS = ("_global_backward_hooks", "_global_backward_pre_hooks")
_MISSING = object()


# Looked up when it is too late to go without.
_WHILE_TRACING = (
    "AttrSource",
    "ConstantVariable",
    "DefaultsSource",
    "DictGetItemSource",
    "GlobalWeakRefSource",
    "TracingContext",
    "TypeDictSource",
    "VariableTracker",
    "install_guard",
    "tls",
)


def guard_further(is_ours: IsOurs) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's."""
    try:
        for name in _WHILE_TRACING:
            if not is_there(name):
                raise AttributeError(name)
        of_class = UserDefinedClassVariable
        read = "var_getattr" if "var_getattr" in vars(of_class) else "tp_getattro_impl"
        changes: list[tuple[Any, str, Callable[[Method, IsOurs], Method]]] = [
            (of_class, read, _reading_class),
            (UserDefinedObjectVariable, "get_source_by_walking_mro", _finding_in_class),
            (SuperVariable, "_resolved_getattr_and_source", _finding_above),
            (UserFunctionVariable, "bind_args", _calling),
            (UnspecializedNNModuleVariable, "call_function", _calling_module),
            (GuardBuilder, "EMPTY_NN_MODULE_HOOKS_DICT", _without_hooks),
            (TensorVariable, "method_attr_requires_grad", _asking_for_gradient),
        ]
        changed = [(owner, name, by(getattr(owner, name), is_ours)) for owner, name, by in changes]
    except (AttributeError, MissingName) as error:
        logger.warning(
            "this PyTorch does not look whether classes, functions and hooks of modules are what "
            "they were when a function was compiled: call torch._dynamo.reset() behind such a "
            "change (%r)",
            error,
        )
        return
    for owner, name, method in changed:
        setattr(owner, name, method)


# ---- what is guarded


@dataclass
class _Made:
    """The guards of one graph."""

    guards: dict[tuple[str, Any], Any] = field(default_factory=dict)  # by name and kind
    of: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)  # for what is guarded


_MADE: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()


def _install(what: tuple[Any, ...], make: Callable[[], Iterable[Any]]) -> None:
    """Installs the guards for `what`, which `make` makes where this graph has none.

    Dynamo may have dropped them since, with a part of the graph that it traces anew.
    """
    context = TracingContext.get()
    made = _MADE.get(context)
    if made is None:
        made = _MADE[context] = _Made()
    guards = made.of.get(what)
    if guards is None:
        found = [((guard.name, guard.create_fn), guard) for guard in make()]
        guards = made.of[what] = [made.guards.setdefault(key, guard) for key, guard in found]
    install_guard(*guards)


def _weakly(tx: Any, value: Any) -> Any:
    """Dynamo's source of this class or function, by a global name. It is to be alive, too."""
    return GlobalWeakRefSource(tx.output.install_global_by_id(_NAME, weakref.ref(value)))


def _alive(source: Any) -> Any:
    return source.make_guard(GuardBuilder.WEAKREF_ALIVE)


def _weak(values: Iterable[Any]) -> tuple[Any, ...]:
    return (*map(weakref.ref, values),)


@functools.cache
def _absent(name: str) -> Callable[..., None]:
    """The kind of guard that says that a dictionary lacks `name`. One for each name, since Dynamo
    tells guards apart by it."""
    if hasattr(GuardBuilder, "DICT_NOT_CONTAINS"):
        return functools.partial(GuardBuilder.DICT_NOT_CONTAINS, key=name)
    return functools.partial(GuardBuilder.DICT_CONTAINS, key=name, invert=True)


def _of_identity(tx: Any, source: Any, value: Any) -> Any:
    """That the same object is there. What cannot be held weakly is held: nobody gets its `id`."""
    try:
        weakref.ref(value)
    except TypeError:
        tx.output.install_global_by_id(_NAME, value)
    return source.make_guard(GuardBuilder.ID_MATCH)


def _of_value(tx: Any, source: Any, value: Any) -> Any:
    if ConstantVariable.is_literal(value):
        return source.make_guard(GuardBuilder.CONSTANT_MATCH)
    return _of_identity(tx, source, value)


def _guard_lookup(tx: Any, classes: Sequence[type], name: str) -> None:
    """Guards that `name` is found in that of these classes which has it first now, and that a
    descriptor there is the same object. Other values Dynamo guards where they are read.
    """
    _install((name, *_weak(classes)), lambda: _of_place(tx, classes, name))


def _of_place(tx: Any, classes: Sequence[type], name: str) -> Iterator[Any]:
    for kind in classes:
        if kind.__flags__ & _IMMUTABLE:
            if name in vars(kind):
                return
            continue
        source = _weakly(tx, kind)
        names = TypeDictSource(source)
        yield _alive(source)
        if name not in vars(kind):
            yield names.make_guard(_absent(name))
            continue
        value = vars(kind)[name]
        if hasattr(type(value), "__get__"):
            yield _of_identity(tx, DictGetItemSource(names, name), value)
        return


# ---- where


def _reading_class(read: Method, is_ours: IsOurs) -> Method:
    """`Config.scale`, `type(self).scale`, `Block.method`."""

    @functools.wraps(read)
    def look_up(self: Any, tx: Any, name: str) -> Any:
        if not is_ours(tx.output.compiler_fn) or name.startswith("__"):
            return read(self, tx, name)
        kind = self.value
        if kind.__flags__ & _IMMUTABLE or tx.output.side_effects.has_pending_mutation_of_attr(
            self, name
        ):
            return read(self, tx, name)
        value = inspect.getattr_static(kind, name, _MISSING)
        source = _weakly(tx, kind)
        place = AttrSource(source, name)
        if value is not _MISSING and ConstantVariable.is_literal(value):
            _install((_alive, *_weak([kind])), lambda: [_alive(source)])
            return VariableTracker.build(tx, value, place)
        if isinstance(value, enum.Enum):
            guards = [_alive(source), _of_identity(tx, place, value)]
            _install((enum.Enum, name, *_weak([kind])), lambda: guards)
        else:
            _guard_lookup(tx, (*kind.__mro__, *type(kind).__mro__), name)
        return read(self, tx, name)

    return look_up


def _finding_in_class(find: Method, is_ours: IsOurs) -> Method:
    """`self.method`, `self.property`, and what is called of a module."""

    @functools.wraps(find)
    def look_up(self: Any, *args: Any) -> Any:  # from 2.15 on with a translator
        tx, name = tls.current_tx, args[-1]
        if is_ours(tx.output.compiler_fn):
            _guard_lookup(tx, type(self.value).__mro__, name)
        return find(self, *args)

    return look_up


def _finding_above(find: Method, is_ours: IsOurs) -> Method:
    """`super().method`."""

    @functools.wraps(find)
    def look_up(self: Any, tx: Any, name: str) -> Any:
        found = find(self, tx, name)
        if is_ours(tx.output.compiler_fn):
            kind = self.objvar.python_type()
            classes = (self.objvar.value if issubclass(kind, type) else kind).__mro__
            above = self.typevar.as_python_constant()
            if above in classes:
                _guard_lookup(tx, classes[classes.index(above) + 1 :], name)
        return found

    return look_up


def _calling(bind: Method, is_ours: IsOurs) -> Method:
    @functools.wraps(bind)
    def bind_args(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        fn = self.fn
        if isinstance(fn, types.FunctionType) and is_ours(tx.output.compiler_fn):
            if not fn.__code__.co_filename.startswith(_PYTORCH):
                if _is_local(fn):
                    _guard_local(getattr(self, "source_fn", None) or self.source, fn)
                else:
                    _guard_function(tx, fn)
        return bind(self, tx, *args, **kwargs)

    return bind_args


def _is_local(fn: types.FunctionType) -> bool:
    """A lambda, or made inside of a function: the next call may be given another one like it."""
    return "<" in fn.__qualname__


def _guard_local(source: Any, fn: types.FunctionType) -> None:
    """Guards its defaults that are constants. Its code, and other defaults, Dynamo guards itself.

    `source`: where it was found; None for one that was made while Dynamo traced.
    """
    if source is not None:
        _install((_of_local, source), lambda: _of_local(source, fn))


def _of_local(source: Any, fn: types.FunctionType) -> Iterator[Any]:
    values: dict[int | str, Any] = dict(enumerate(fn.__defaults__ or ()))
    values |= fn.__kwdefaults__ or {}
    for key, value in values.items():
        if ConstantVariable.is_literal(value):
            default = DefaultsSource(source, key, is_kw=isinstance(key, str))
            yield default.make_guard(GuardBuilder.CONSTANT_MATCH)


def _guard_function(tx: Any, fn: types.FunctionType) -> None:
    _install((_of_function, *_weak([fn])), lambda: _of_function(tx, fn))


def _of_function(tx: Any, fn: types.FunctionType) -> Iterator[Any]:
    source = _weakly(tx, fn)
    yield _alive(source)
    yield source.make_guard(GuardBuilder.CLOSURE_MATCH)
    for i, value in enumerate(fn.__defaults__ or ()):
        yield _of_value(tx, DefaultsSource(source, i), value)
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield _of_value(tx, DefaultsSource(source, name, is_kw=True), value)


def _calling_module(call: Method, is_ours: IsOurs) -> Method:
    @functools.wraps(call)
    def call_function(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if is_ours(tx.output.compiler_fn):
            for name in ("__call__", "_call_impl"):  # while they are PyTorch's, it is `forward`
                _guard_lookup(tx, type(self.value).__mro__, name)
            names = tx.nn_modules_globals_vt
            _install((_of_hooks,), lambda: _of_hooks(names))
        return call(self, tx, *args, **kwargs)

    return call_function


def _of_hooks(names: Any) -> Iterator[Any]:
    for name in (*_FORWARD_HOOKS, *_BACKWARD_HOOKS):
        if not getattr(names.value, name):
            yield AttrSource(names.source, name).make_guard(GuardBuilder.SEQUENCE_LENGTH)


def _without_hooks(skip: Method, is_ours: IsOurs) -> Method:
    """A kind of guard: Dynamo leaves it out by a setting of its own, skip_nnmodule_hook_guards."""

    @functools.wraps(skip)
    def guard_hooks(self: Any, guard: Any) -> None:
        graph = self.check_fn_manager.output_graph
        if is_ours(getattr(graph, "compiler_fn", None)):
            self.SEQUENCE_LENGTH(guard)
        else:
            skip(self, guard)

    return guard_hooks


def _asking_for_gradient(ask: Method, is_ours: IsOurs) -> Method:
    @functools.wraps(ask)
    def method_attr(self: Any, tx: Any) -> Any:
        if self.source is not None and is_ours(tx.output.compiler_fn):
            asked = AttrSource(self.source, "requires_grad")
            guard = [asked.make_guard(GuardBuilder.CONSTANT_MATCH)]
            _install((asked,), lambda: guard)
        return ask(self, tx)

    return method_attr
