"""What Dynamo traces otherwise than eager runs it is traced as eager runs it, for bits' sake.

- `q, k, v = qkv` is one `unbind`. Dynamo takes the rows one by one; the gradient of each is then
  zeros, a copy and an addition, where that of `unbind` is one `stack`, and adding zeros loses the
  sign of a zero.
- `a.add_(b, alpha=0.1)` is one operator, as are `addcmul_`, `addcdiv` and `_foreach_lerp_` with a
  number. Dynamo takes them apart, lest a number that is a tensor is read on the host; products are
  rounded then before they are added. A number that is a tensor is left to it.
- `grouped_mm` of floats is what eager runs; Dynamo's stand-in for it takes bfloat16 alone.
- An optimizer keeps its settings and its step count: Dynamo would make one on a GPU capturable,
  which is another formula, before the graph comes here and is left to eager (optimizers.py).
- An LSTM need not break the graph (recurrent_modules.py).
- A recurrent module's dropout goes on behind a trace (random_states.py).
- What NumPy draws at random NumPy draws (numpy_draws.py), and Python what its own `random` draws
  (python_draws.py).
- A `torch.autograd.Function` has None for a gradient that it wants to be None
  (absent_gradients.py).
- An operator that returns nothing and writes nothing is called, and not left out
  (effects_alone.py).
- A gradient whose formula eager chooses by the data ends the graph (chosen_formulas.py).
- Code that asks whether it is compiled is told what eager tells it (whether_compiled.py), and a
  branch on what it makes of numbers alone is taken (constant_branches.py).
- What code may change behind the first call is looked for in each one (further_guards.py), and a
  tree of modules in one look (module_guards.py).

Dynamo is changed for what Gravure compiles alone.

Private: Dynamo's `TensorVariable` and `TorchInGraphFunctionVariable` have what takes these apart,
`OptimizerVariable` changes optimizers, `tls` knows for which backend it traces, and
`op_implementations_dict` holds the stand-ins. Without them graphs run, with other bits than
eager's. `_foreach_lerp_` is torch.optim's own operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .absent_gradients import leave_absent_gradients
from .backend_layers import layers, with_keywords
from .chosen_formulas import end_at_chosen_formulas
from .compile_lock import one_at_a_time
from .constant_branches import decide_constant_branches
from .eager_kernels import GROUPED_MM, fake_grouped_mm
from .effects_alone import keep_effects
from .further_guards import guard_further
from .log_calls import log_behind_graphs
from .module_guards import skip_unchanged_modules
from .numpy_draws import draw_from_numpy
from .private_names import (
    NAMES,
    MissingName,
    OptimizerVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
    _foreach_lerp_,
    first_missing,
    op_implementations_dict,
    tls,
)
from .python_draws import draw_from_python
from .random_states import keep_recurrent_dropout
from .recurrent_modules import trace_recurrent_modules
from .whether_compiled import Answer, answer_as_eager, trace_with_the_truth

_MARK = "_gravure_traces_as_eager"
_OURS = "_gravure_handles"
_ANSWERS = "_gravure_answers"
_BITS = "_gravure_has_eagers_bits"


def _as_eager(_: Mapping[str, Any]) -> Answer:
    return Answer.EAGERS


def _always(_: Mapping[str, Any]) -> bool:
    return True


def traces_as_eager(
    backend: Any,
    answer: Callable[[Mapping[str, Any]], Answer] = _as_eager,
    *,
    has_eagers_bits: Callable[[Mapping[str, Any]], bool] = _always,
) -> Any:
    """Marks a backend of Dynamo's: its graphs hold what eager runs.

    By the keywords that torch.compile, or a partial, gives the backend, `answer` is what code is
    told that asks whether it is compiled, and `has_eagers_bits` whether its kernels are ATen's.
    """
    _change_dynamo()
    setattr(backend, _MARK, True)
    setattr(backend, _ANSWERS, answer)
    setattr(backend, _BITS, has_eagers_bits)
    return backend


def _is_marked(backend: Any) -> bool:
    return any(getattr(layer, _MARK, False) for layer in layers(backend))


def _said_by(backend: Any, name: str, otherwise: Any) -> Any:
    """What the mark of a backend says by its keywords; of one without it `otherwise`."""
    for layer, keywords in with_keywords(backend):
        if getattr(layer, _MARK, False):
            return getattr(layer, name)(keywords)
    return otherwise


def _has_eagers_bits(backend: Any) -> bool:
    return bool(_said_by(backend, _BITS, otherwise=False))


def _answer_for(backend: Any) -> Answer:
    """What code is told that asks whether it is compiled."""
    answer: Answer = _said_by(backend, _ANSWERS, otherwise=Answer.TRUTH)
    return answer


def _at_undecided(tx: Any) -> None:
    trace_with_the_truth(tx, _answer_for)


def must_trace_as_eager() -> None:
    """Raises MissingName where graphs cannot be made, or Dynamo could not be changed: they would
    have other bits."""
    error = first_missing() or _change_dynamo()
    if error is not None:
        raise error


@one_at_a_time
@functools.cache
def _change_dynamo() -> MissingName | None:
    """Done once, for all backends. What is in the way, if anything is."""
    decide_constant_branches(_is_marked, _at_undecided)
    answer_as_eager(_answer_for)
    trace_recurrent_modules(_is_marked)
    keep_recurrent_dropout(_is_marked)
    guard_further(_is_marked)
    skip_unchanged_modules(_is_marked)
    log_behind_graphs(_is_marked)
    try:
        TensorVariable.unpack_var_sequence = _unbinding(TensorVariable.unpack_var_sequence)
        for name in _METHODS:
            _set_method(name, _whole(_method(name)))
        handlers = TorchInGraphFunctionVariable._get_handlers()
        for function in _functions():
            handlers[function] = _whole(handlers[function])
        op_implementations_dict[GROUPED_MM] = _fake_while_marked
        OptimizerVariable._set_capturable = _undone(OptimizerVariable._set_capturable)
        OptimizerVariable.move_step_if_cpu = _left_out(OptimizerVariable.move_step_if_cpu)
        draw_from_numpy(_is_marked)
        draw_from_python(_is_marked)
        leave_absent_gradients(_is_marked)
        keep_effects(_is_marked)
        end_at_chosen_formulas(_has_eagers_bits)
        return _without_effect()
    except MissingName as error:
        return error
    except (AttributeError, KeyError, TypeError) as error:
        return _traced_otherwise(repr(error))


_METHODS = ("add_", "addcmul_", "addcdiv_")


def _functions() -> tuple[Any, ...]:
    return torch.addcdiv, _foreach_lerp_


def _method(name: str) -> Callable[..., Any]:
    """What Dynamo calls for this method of a tensor: from 2.14 on it looks into a table."""
    table = getattr(TensorVariable, "tp_methods", None)
    return getattr(TensorVariable, f"method_{name}") if table is None else table[name].handler


def _set_method(name: str, handler: Callable[..., Any]) -> None:
    table = getattr(TensorVariable, "tp_methods", None)
    if table is None:
        setattr(TensorVariable, f"method_{name}", handler)
    else:
        table[name].handler = handler  # subclasses have the same entries


def _without_effect() -> MissingName | None:
    """The first change that Dynamo would not see, if any: each is looked up as Dynamo will, which
    may have another table by now."""
    handlers = TorchInGraphFunctionVariable._get_handlers()
    found = {f"Tensor.{name}": _method(name) for name in _METHODS}
    found |= {function.__name__: handlers[function] for function in _functions()}
    found["unpacking"] = TensorVariable.unpack_var_sequence
    for what, handler in found.items():
        if not hasattr(handler, _OURS):
            return _traced_otherwise(what)
    return None


def _traced_otherwise(what: str) -> MissingName:
    return MissingName(NAMES["TensorVariable"], f"traces {what} in a way that is not known")


def _unbinding(by_rows: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(by_rows)
    def unpack(self: Any, tx: Any, idxes: Sequence[int] | None = None) -> list[Any]:
        # Subclasses of the variable stand for other things than a plain tensor.
        plain = type(self) is TensorVariable and self.valid_size() and len(self.size) > 0
        if not plain or not _is_marked(tx.output.compiler_fn):
            return by_rows(self, tx, idxes)
        if idxes is not None and len(idxes) != self.size[0]:
            return by_rows(self, tx, idxes)  # which says what is wrong
        return self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)

    setattr(unpack, _OURS, True)
    return unpack


def _whole(apart: Callable[..., Any]) -> Callable[..., Any]:
    """As `apart`, but None, on which Dynamo takes the operator itself, where what it multiplies by
    is a number."""

    @functools.wraps(apart)
    def trace(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        named = [kwargs[name] for name in ("alpha", "value") if name in kwargs]
        factors = named or args[-1:]  # of _foreach_lerp_ the last one
        numbers = bool(factors) and all(factor.is_python_constant() for factor in factors)
        if numbers and _is_marked(tx.output.compiler_fn):
            return None
        return apart(self, tx, *args, **kwargs)

    setattr(trace, _OURS, True)
    return trace


def _undone(change: Callable[..., Any]) -> Callable[..., Any]:
    """As `change`, which is undone on the optimizer itself: only what is traced has it."""

    @functools.wraps(change)
    def unless_marked(self: Any, tx: Any) -> None:
        groups = self.value.param_groups
        before = [group.get("capturable") for group in groups]
        change(self, tx)
        if _is_marked(tx.output.compiler_fn):
            for group, capturable in zip(groups, before, strict=True):
                if capturable is not None:
                    group["capturable"] = capturable

    return unless_marked


def _left_out(change: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(change)
    def unless_marked(*args: Any) -> Any:
        tx = getattr(tls, "current_tx", None)
        if tx is None or not _is_marked(tx.output.compiler_fn):
            change(*args)

    return unless_marked


def _fake_while_marked(*args: Any, **kwargs: Any) -> Any:
    """The stand-in of other backends is PyTorch's, which NotImplemented leaves it to."""
    tx = getattr(tls, "current_tx", None)
    if tx is None or not _is_marked(tx.output.compiler_fn):
        return NotImplemented
    return fake_grouped_mm(*args, **kwargs)
