"""What Inductor keeps of a region that it has compiled, and the words that its code is made of.

The object that `regional_inductor` puts into a graph, fresh or read from a file, gives
AOTAutograd's record of the region (`serialize`): what it writes, draws and returns, and in it
Inductor's own, with the Python source that was loaded. All of it is looked up by name: where one is
missing, or says something that is not known here, nobody knows what the code does, and no program
carries it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class UnknownCode(Exception):
    """Code that no program may carry. Its words go on after "they"."""


@dataclass(frozen=True)
class KeptCode:
    source: str
    constants: dict[str, Tensor]  # which it holds, by their names in the source


def kept_code(target: Any) -> KeptCode:
    """That of a compiled region which computes by its record. Raises UnknownCode."""
    try:
        entry = target.__wrapped__.inner_fn.compiled_fn.serialize()
        code = entry.compiled_fw.result
        found = _of_inductor(code) or _of_autograd(entry, entry.runtime_metadata)
        kept = KeptCode(str(code.source_code or ""), dict(code.constants or {}))
    except Exception as error:
        raise UnknownCode(
            "were compiled elsewhere, so nobody knows what they write or draw "
            f"({type(error).__name__}: {error})"
        ) from error
    if found:
        raise UnknownCode(found)
    return kept


def _of_inductor(code: Any) -> str:
    """What its record tells that a program cannot carry; "" where there is nothing."""
    if type(code).__name__ != "CompiledFxGraph":
        return f"are no code of Inductor's, but a {type(code).__name__}"
    if code.mutated_input_idxs:
        return f"write into their inputs {sorted(code.mutated_input_idxs)}"
    if code.disabled_cudagraphs_reason:
        return f"are not to be captured, as Inductor says: {code.disabled_cudagraphs_reason}"
    if len(set(code.device_types) - {"meta"}) != 1 or len(set(code.device_idxs)) > 1:
        return "work on more than one device"
    if code.torchbind_constants or code.frozen_param_names:
        return "hold objects, or parameters that were frozen"
    return ""


def _of_autograd(entry: Any, about: Any) -> str:
    if entry.compiled_bw is not None:
        return "have a backward of their own"
    if entry.maybe_subclass_meta is not None:
        return "take tensors of a class of their own"
    if any(wrapper.needs_post_compile for wrapper in entry.dispatch_wrappers):
        return "change their arguments before their code has them"
    if about.mutated_inp_runtime_indices or any(map(_is_changed, about.input_info)):
        return "write into their inputs"
    if about.tokens:
        return "do something outside of the graph, in an order"
    if about.is_rng_op_functionalized or about.num_graphsafe_rng_states:
        return "draw from a generator of their own"
    if {o.output_type.name for o in about.output_info} - {"non_alias", "unsafe_view_alias"}:
        return "return views of their inputs, or these"
    return ""


def _is_changed(about: Any) -> bool:
    return bool(
        about.mutates_data
        or about.mutates_metadata
        or about.mutates_storage_metadata
        or about.mutation_inductor_storage_resize
    )


# Of the names of the source: what each is on stand-ins, under a mode that sees operators.


def _allocator(device: str) -> Callable[..., Tensor]:
    def empty(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    return empty


def _reinterpret(tensor: Tensor, size: Any, stride: Any, offset: int = 0) -> Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _example(size: Any, stride: Any, dtype: torch.dtype, device: Any, **_: Any) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


class _Products:
    """Products of ATen's, which write into `out`, and convolutions."""

    mm, bmm, addmm, baddbmm, convolution = (
        torch.ops.aten.mm,
        torch.ops.aten.bmm,
        torch.ops.aten.addmm,
        torch.ops.aten.baddbmm,
        torch.ops.aten.convolution,
    )
    bias_addmm = addmm

    def __getattr__(self, name: str) -> Any:
        raise UnknownCode(f"call {name}, a kernel that is not known")


_GUARDS = "torch._C._dynamo.guards"
_WORDS: dict[str, Any] = {
    f"{_GUARDS}._empty_strided_cpu": _allocator("cpu"),
    f"{_GUARDS}._empty_strided_cuda": _allocator("cuda"),
    f"{_GUARDS}._reinterpret_tensor": _reinterpret,
    f"{_GUARDS}.assert_size_stride": _nothing,
    f"{_GUARDS}.assert_size_stride_grouped": _nothing,
    f"{_GUARDS}.assert_alignment": _nothing,
    f"{_GUARDS}.copy_if_misaligned": lambda tensor: tensor,  # or a copy, which is nobody's
    "torch._inductor.runtime.runtime_utils.assert_tensor_metadata": _nothing,
    "torch._inductor.select_algorithm.extern_kernels": _Products(),
    "torch._C._cuda_getCurrentRawStream": lambda _: 0,
    "torch.cuda._DeviceGuard": lambda _: contextlib.nullcontext(),
    "torch.cuda.set_device": _nothing,
    "torch.cuda.current_device": lambda: 0,
    "torch._dynamo.testing.rand_strided": _example,
    "torch.empty_strided": torch.empty_strided,
    "torch.device": torch.device,
    "torch.ops": torch.ops,
    "math": math,
    "math.inf": math.inf,
    "math.nan": math.nan,
    # The last one is for PyTorch's own C++, which imports by what its caller has.
    "builtins": {"max": max, "min": min, "abs": abs, "int": int, "__import__": __import__},
}
# Kernels whose text is in the source, by who compiles it.
KERNELS = ("triton", "cpp_pybinding")


class _Unknown:
    """A name of the source that is not known, which may stand there as long as nobody calls it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return word(f"{self._path}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise UnknownCode(f"call {self._path}, which is not known")


def word(path: str) -> Any:
    """What stands for a name of the source, or of a module that it imports."""
    if path in _WORDS:
        return _WORDS[path]
    above, _, name = path.rpartition(".")
    found = getattr(torch, name, None) if above == "torch" else None
    return found if isinstance(found, torch.dtype) else _Unknown(path)
