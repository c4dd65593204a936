"""Loops that drawn_loops.py found, shrunk: each went wrong once, most of them without a word."""

from __future__ import annotations

import pytest
from drawn_loops import FINE, Loop, run, script
from loop_actions import Action
from running import need_library

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

STEP = Action("step")
FOUND = {
    # A result shared memory with what was saved: the gradient was computed from what was written.
    "result-of-pieces-written": Loop(
        "Experts", (Action("forward"), Action("write_into_result"), Action("backward"))
    ),
    # Never captured, without a word.
    "buffer-reassigned": Loop("Averaged", ()),
    "buffer-reassigned-in-a-step": Loop("Averaged", (), way="step"),
    "another-layout": Loop("Images", (STEP, STEP, STEP, STEP, Action("move", 3), STEP)),
    "adapters-on-one-base": Loop("Adapters", (STEP,), way="layers"),
    # Trained wrongly: the program went on with the optimizer's step as it had been traced.
    "attribute-of-an-optimizer": Loop(
        "Mlp", (STEP, STEP, Action("another_attribute"), STEP, STEP), "optimizer", "scaled"
    ),
    "optimizer-that-wraps": Loop("Mlp", (STEP,) * 6, "optimizer", "lookahead"),
    "patched-step": Loop("Mlp", (STEP, STEP, Action("patch_step"), STEP, STEP), "optimizer"),
    "hook-on-a-step": Loop("Mlp", (STEP, STEP, Action("hook_on_step"), STEP, STEP), "optimizer"),
    "gradient-of-another": Loop("Mlp", (STEP, STEP, Action("another_group"), STEP), "optimizer"),
    # A copy of a part of a tensor lay otherwise than the part, and products are rounded by it.
    "part-of-a-tensor": Loop(
        "Adapters", (Action("accumulate"), Action("forward", 16, 27)), options=3, dynamic=True
    ),
    "layouts": Loop("Recurrent", (Action("step_on_a_layout", b=5),)),
    # A saved value was a result, too, whose node kept it: a forward without a backward stayed.
    "forward-without-backward": Loop(
        "Plain", (STEP, STEP, Action("error_in_backward", 20, 31, 20), STEP, Action("forward", 44))
    ),
    # Compiled in a call, for hooks on saved tensors: the backward drew once more.
    "draws-under-hooks": Loop("Mlp", (STEP, Action("in_other_modes", 9), STEP)),
    # Unfrozen where sizes are open: an error, before.
    "unfrozen-open-sizes": Loop(
        "Adapters", (STEP, Action("freeze_a_layer", 0, 55, 3), STEP), dynamic=True
    ),
    # Its backward needed what it computed for nobody.
    "frozen-and-written": Loop(
        "Mlp",
        (
            Action("step"),
            Action("freeze_a_layer"),
            Action("forward"),
            Action("optimizer_step"),
            Action("backward"),
        ),
        optimizer="momentum",
    ),
    # The gradients of two parameters that became one were added to what was there one by one.
    "tied-in-a-step": Loop(
        "Custom", (STEP, Action("tie"), Action("hold_result"), STEP, STEP), way="step"
    ),
    # A view of a tied parameter was to tell whose forward a backward belongs to.
    "tied-layers-open-sizes": Loop(
        "Adapters",
        (Action("step_on_other_rows", 0, 3), STEP, Action("tie", 27, 55)),
        "layers",
        options=3,
    ),
    # Its backward computed with a parameter that was written since, where sizes are open.
    "parameter-written-open-sizes": Loop(
        "Mlp", (Action("forward", c=1), STEP, Action("backward")), "call", "momentum", dynamic=True
    ),
    # The backward of a call for other rows, whose program was dropped since, ran by the next one's.
    "backward-of-a-dropped-program": Loop(
        "Mlp",
        (
            STEP,
            Action("forward", 39, 12, 18),
            Action("drop_captures"),
            Action("hold_result"),
            Action("backward"),
        ),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_loop_that_was_wrong(name: str) -> None:
    outcome = run(FOUND[name])
    assert outcome.kind in FINE, f"{outcome.text}\n\n{script(FOUND[name])}"
