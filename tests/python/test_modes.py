"""torch.compile's own arguments beside this backend."""

from __future__ import annotations

import pytest
import torch
from running import bits, need_library
from torch._dynamo.exc import BackendCompilerFailed
from training import Mlp, rows

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize(
    "mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite"]
)
@pytest.mark.parametrize("how", [{}, {"dynamic": True}, {"fullgraph": True}])
def test_a_mode_is_refused_in_words(mode: str, how: dict[str, bool]) -> None:
    compiled = torch.compile(Mlp(), backend="gravure", mode=mode, **how)
    with pytest.raises(BackendCompilerFailed) as error:
        compiled(*rows(0))
    for part in (f"ValueError: mode={mode!r}", "leave mode out", 'options={"codegen": "inductor"}'):
        assert part in str(error.value)


def test_the_default_mode_and_options_are_taken() -> None:
    model, (x,) = Mlp(), rows(0)
    for how in ({"mode": "default"}, {"options": {"order": "program"}, "fullgraph": True}):
        assert bits(torch.compile(model, backend="gravure", **how)(x)) == bits(model(x))
    with pytest.raises(RuntimeError, match="mode.*options"):
        torch.compile(model, backend="gravure", mode="max-autotune", options={"order": "program"})
