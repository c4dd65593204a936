"""Program text knows every dtype of PyTorch, by one name in Python, in C++ and in TorchScript."""

from __future__ import annotations

import gravure
import pytest
import torch
from gravure.library.load import program_class
from gravure.text.program_text import TypeWriter, constant_text
from running import bits, need_library
from torch import Tensor

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)


def _kind(dtype: torch.dtype) -> str:
    meta = torch.empty(2, 3, dtype=dtype, device="meta")
    return TypeWriter().of(meta).replace("device=meta", "device=cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_its_name_is_torchscripts(dtype: torch.dtype) -> None:
    graph = torch._C.parse_ir(f"graph(%x : {_kind(dtype)}):\n  return (%x)\n")
    assert next(graph.inputs()).type().dtype() == dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_read_and_written_alike(dtype: torch.dtype) -> None:
    text = (
        f'gravure 1\ngraph step(%x : {_kind(dtype)} {{user_input "x"}}):\n'
        f"  %y : Tensor = aten::zeros([2], dtype={constant_text(dtype)}, "
        f'device=device("cpu"))\n  return (%x {{output "x"}}, %y {{output "y"}})\n'
    )
    read = program_class().of_text(text, "host", {}).text()
    assert f"%x : {_kind(dtype)} " in read and f"dtype={constant_text(dtype)}" in read


def test_float4_goes_through_a_step() -> None:
    packed = torch.arange(16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)

    def step(x: Tensor, w: Tensor) -> Tensor:
        return x.view(torch.uint8).to(torch.float32) * w

    compiled = torch.compile(step, backend="gravure")
    for i in range(8):
        w = torch.full((16,), float(i))
        assert bits(compiled(packed, w)) == bits(step(packed, w))
    (program,) = gravure.report().graphs[-1].programs
    assert program.partitions == {"step": ["captured"]}


def test_a_gradient_has_the_dtype_of_its_parameter() -> None:
    """The backward of an LSTM gives Float on the CPU, other than described; autograd casts."""
    model = torch.nn.LSTM(8, 8, batch_first=True).to(torch.bfloat16)

    def objective(x: Tensor) -> Tensor:
        return model(x)[0].float().square().sum()

    compiled = gravure.compile_step(objective)
    for _ in range(6):
        x = torch.randn(2, 5, 8, dtype=torch.bfloat16)
        model.zero_grad()
        compiled(x)
        found = [bits(p.grad) for p in model.parameters()]
        model.zero_grad()
        objective(x).backward()
        assert found == [bits(p.grad) for p in model.parameters()]
