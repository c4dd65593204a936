"""torch.compile's own arguments beside this backend."""

from __future__ import annotations

from typing import Any

import gravure
import pytest
import torch
import torch._inductor.config as config
from running import bits, need_library
from torch._inductor import compile_fx
from training import Mlp, replays, rows

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("how", [{}, {"dynamic": True}, {"fullgraph": True}])
def test_a_mode_that_there_is_not_is_refused_in_words(how: dict[str, bool]) -> None:
    with pytest.raises(ValueError) as error:  # where it is given, before any call
        torch.compile(Mlp(), backend="gravure", mode="lite", **how)
    for part in ("option 'mode'", "'reduce-overhead'", "found 'lite'"):
        assert part in str(error.value)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_mode_has_inductor_make_its_kernels_and_the_runtime_capture_them(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    make = compile_fx.compile_fx_inner

    def noted(*args: Any, **kwargs: Any) -> Any:
        tunes = config.max_autotune, config.coordinate_descent_tuning
        seen.append((*tunes, config.triton.cudagraphs))
        # On a CPU there is nothing to choose by time but what a C++ compiler makes.
        with config.patch({"max_autotune": False, "coordinate_descent_tuning": False}):
            return make(*args, **kwargs)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", noted)
    for how in ({"mode": mode}, {"options": {"mode": mode}}):
        torch._dynamo.reset()
        seen.clear()
        call = torch.compile(Mlp(), backend="gravure", **how)
        for i in range(5):
            call(*rows(i)).sum().backward()
        assert replays(gravure.report())
        wants = mode == "max-autotune"
        assert seen and set(seen) == {(wants, wants, False)}
        assert f"(Inductor's kernels, mode {mode})" in str(gravure.report())


def test_a_mode_and_atens_kernels_exclude_each_other() -> None:
    options = {"mode": "reduce-overhead", "codegen": "aten"}
    with pytest.raises(ValueError, match="leave one of them out"):
        torch.compile(Mlp(), backend="gravure", options=options)


def test_the_default_mode_and_options_are_taken() -> None:
    model, (x,) = Mlp(), rows(0)
    for how in ({"mode": "default"}, {"options": {"order": "program"}, "fullgraph": True}):
        assert bits(torch.compile(model, backend="gravure", **how)(x)) == bits(model(x))
    with pytest.raises(RuntimeError, match="mode.*options"):
        torch.compile(model, backend="gravure", mode="max-autotune", options={"order": "program"})
