"""compile_step: a call leaves what forward, loss and backward() leave, bit for bit."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import gravure
import models
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from training import Net, eager_step, leaves, same_steps, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

POISON = {"poison": True}


def loss_of(model: nn.Module) -> Callable[..., Any]:
    def loss(x: Tensor, y: Tensor, scale: float = 1.0) -> Any:
        predicted = model(x)
        return F.mse_loss(predicted, y) * scale, {"predicted": predicted, "count": 3}

    return loss


def batch(rows: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 8), torch.randn(rows, 4)


def pair(model: nn.Module, **options: Any) -> tuple[nn.Module, Callable[..., Any]]:
    """A copy of the model, and its compiled step."""
    ours = copy.deepcopy(model)
    return ours, gravure.compile_step(loss_of(ours), options=POISON | options)


def same(ours: nn.Module, step: Any, model: nn.Module, args: Any, seed: int, **kwargs: Any) -> None:
    """One step of both: results, gradients, buffers and random state."""
    torch.manual_seed(seed)
    found = step(*args, **kwargs)
    drawn = bits(torch.get_rng_state())
    torch.manual_seed(seed)
    expected = eager_step(loss_of(model), *args, **kwargs)
    assert drawn == bits(torch.get_rng_state())
    assert type(found) is type(expected) and leaves(found) == leaves(expected)
    assert not found[0].requires_grad and not found[1]["predicted"].requires_grad
    assert state_of(ours) == state_of(model)


def test_training_with_an_optimizer_outside() -> None:
    model = Net()
    ours, step = pair(model)
    optimizers = [torch.optim.AdamW(m.parameters(), 0.01) for m in (ours, model)]
    for i in range(8):
        for optimizer in optimizers:
            optimizer.zero_grad()
        same(ours, step, model, batch(), i, scale=0.5)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] *= 0.9
            optimizer.step()
        assert state_of(ours) == state_of(model)
    assert model.unused.weight.grad is None and ours.unused.weight.grad is None
    (graph,) = [g for g in gravure.report().graphs if g.label.startswith("loss")][-1:]
    assert graph.programs[0].partitions == {"step": ["captured"]}


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_added_to_what_is_there(set_to_none: bool) -> None:
    model = Net()
    ours, step = pair(model)
    for i in range(5):
        for m in (ours, model):
            m.zero_grad(set_to_none)
        for k in range(3):
            same(ours, step, model, batch(), 10 * i + k)


def test_gradients_that_are_held_stay_as_they_are() -> None:
    model = Net()
    _, step = pair(model)
    ours, step = pair(model)
    held = []
    for _ in range(6):
        ours.zero_grad()
        step(*batch())
        held += [(p.grad, bits(p.grad)) for p in ours.parameters() if p.grad is not None]
        assert all(bits(tensor) == before for tensor, before in held)


def test_gradients_never_share_memory() -> None:
    a, b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
    step = gravure.compile_step(lambda x: ((a + b) * x).sum() + a.sum() * 0 + b.sum() * 0)
    for _ in range(6):
        a.grad = b.grad = None
        step(torch.ones(4))
        a.grad.add_(1)
        assert a.grad.tolist() == [2.0] * 4 and b.grad.tolist() == [1.0] * 4
        assert a.grad.stride() == a.stride()


def test_a_replaced_parameter_is_the_one_that_is_used() -> None:
    model = Net()
    ours, step = pair(model)
    for i in range(9):
        if i in (4, 6):
            for m in (ours, model):
                m.second.weight = nn.Parameter(torch.full((4, 16), 0.25 * i))
        if i == 7:
            state = copy.deepcopy(model.state_dict())
            for m in (ours, model):
                m.load_state_dict(state)
        same(ours, step, model, batch(), i)


def test_another_batch_size_and_evaluation_mode() -> None:
    model = Net()
    ours, step = pair(model)
    for i in range(12):
        training = i % 4 != 3
        for m in (ours, model):
            m.train(training)
        same(ours, step, model, batch((5, 3)[i % 2]), i)


def test_an_argument_that_requires_a_gradient() -> None:
    model = Net()
    ours, step = pair(model)
    for i in range(5):
        x, y = batch()
        args = [(x.clone().requires_grad_(), y) for _ in range(2)]
        torch.manual_seed(i)
        step(*args[0])
        torch.manual_seed(i)
        eager_step(loss_of(model), *args[1])
        assert bits(args[0][0].grad) == bits(args[1][0].grad)
        assert state_of(ours) == state_of(model)


def test_a_loss_among_other_results() -> None:
    model = Net()
    twin = copy.deepcopy(model)

    def loss_of_several(net: nn.Module) -> Callable[..., Any]:
        def loss(x: Tensor, y: Tensor) -> Any:
            wide = x * 2
            predicted = net(wide)
            value = F.mse_loss(predicted, y)
            flat = predicted.view(-1)
            return [value, wide, (predicted, value), flat, None, {"wide": wide, "x": x}]

        return loss

    step = gravure.compile_step(loss_of_several(model), options=POISON)
    for i in range(6):
        args = batch()
        torch.manual_seed(i)
        found = step(*args)
        torch.manual_seed(i)
        expected = eager_step(loss_of_several(twin), *args)
        assert leaves(found) == leaves(expected) and found[5]["x"] is args[0]
        assert state_of(model) == state_of(twin)
        found[3][0] = 7.0
        assert found[2][0].flatten()[0] == 7.0  # a view of the other, as in eager


class Out(NamedTuple):
    loss: Tensor
    predicted: Tensor


@pytest.mark.parametrize("scaled", [False, True])
def test_a_named_tuple_comes_back_as_one(scaled: bool) -> None:
    model = nn.Linear(8, 4)
    how: dict[str, Any] = {}
    if scaled:
        how = {
            "optimizer": torch.optim.SGD(model.parameters(), 0.0),
            "scaler": torch.amp.GradScaler("cpu", 4.0),
        }

    def loss(x: Tensor) -> Out:
        y = model(x)
        return Out(y.square().mean(), y)

    step = gravure.compile_step(loss, **how)
    for _ in range(5):
        x = torch.randn(5, 8)
        found, expected = step(x), loss(x)
        assert type(found) is Out
        assert bits(found.loss) == bits(expected.loss.detach())
        assert bits(found.predicted) == bits(expected.predicted.detach())


def test_checkpointing_in_a_step() -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self._run, x, use_reentrant=False)

        def _run(self, x: Tensor) -> Tensor:
            return self.second(F.dropout(F.gelu(self.first(x)), 0.3, self.training))

    model = Checkpointed()
    ours, step = pair(model)
    for i in range(6):
        same(ours, step, model, batch(), i)


def same_as_its_module(model: models.Model) -> None:
    """The model's module, compiled as it is, beside the function that runs it in eager."""
    ours = copy.deepcopy(model.module)
    step = gravure.compile_step(ours, options=POISON)
    same_steps(step, ours, model, 5)


def test_a_module_is_its_own_step() -> None:
    same_as_its_module(models.lstm())


def test_a_step_that_reads_on_the_host() -> None:
    same_as_its_module(models.moe())


# ---- refused


def refused(fn: Any, *args: Any) -> str:
    with pytest.raises(gravure.ExportError) as error:
        gravure.compile_step(fn)(*args)
    assert error.value.reason and error.value.remedy
    return str(error.value)


def test_what_is_no_step() -> None:
    w, x = nn.Parameter(torch.randn(4)), torch.randn(4)
    assert "return the loss" in refused(lambda x: {"loss": (x * w).sum()}, x)
    assert "reduce it" in refused(lambda x: x * w, x)
    assert "does not require a gradient" in refused(lambda x: x.sum(), x)
    for nothing in (3, None, (), []):
        assert "computes nothing with tensors" in refused(lambda x, it=nothing: it, x)
    with pytest.raises(TypeError, match="takes a function"):
        gravure.compile_step(3)


def test_backward_and_optimizer_inside_are_refused() -> None:
    w, x = nn.Parameter(torch.randn(4)), torch.randn(4)
    optimizer = torch.optim.SGD([w], 0.1)
    before = bits(w)

    def backward(x: Tensor) -> Tensor:
        loss = (x * w).sum()
        loss.backward()
        return loss

    def whole(x: Tensor) -> Tensor:
        loss = (x * w).sum()
        loss.backward()
        optimizer.step()
        return loss

    for fn in (backward, whole):
        assert "leave out backward()" in refused(fn, x)
    assert bits(w) == before and w.grad is None


def test_hooks_are_refused_before_anything_runs() -> None:
    model = Net()
    ours, step = pair(model)
    step(*batch())
    before = state_of(ours)
    handles = [
        ours.first.weight.register_hook(lambda gradient: gradient),
        ours.first.weight.register_post_accumulate_grad_hook(lambda parameter: None),
    ]
    for handle in handles[::-1]:
        with pytest.raises(RuntimeError, match=r"model.first.weight.*has a hook.*torch.compile"):
            step(*batch())
        handle.remove()
        assert state_of(ours) == before
    step(*batch())


@pytest.mark.parametrize("results", ["owned", "accumulate"])
@pytest.mark.parametrize("kind", ["register_hook", "register_prehook"])
def test_hooks_on_the_node_that_accumulates_are_refused(results: str, kind: str) -> None:
    """As Megatron and others average gradients."""
    model = Net()
    ours, step = pair(model, results=results)
    step(*batch())
    before = state_of(ours)
    weight = ours.first.weight
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    getattr(node, kind)(lambda *gradients: None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"first.weight.*hooks on the node.*torch.compile"):
            step(*batch())
        assert state_of(ours) == before
    del node
    step(*batch())


def test_backward_hooks_of_modules_are_refused() -> None:
    ours, step = pair(Net())
    ours.first.register_full_backward_hook(lambda module, given, taken: None)
    with pytest.raises(gravure.ExportError, match=r"a module has backward hooks.*torch\.compile"):
        step(*batch())
    assert ours.first.weight.grad is None


def test_an_argument_with_a_history_is_refused() -> None:
    _, step = pair(Net())
    x = torch.randn(5, 8, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="computed outside of the step"):
        step(x, torch.randn(5, 4))


def test_too_many_shapes_are_an_error_and_the_known_ones_go_on() -> None:
    model = Net()
    ours, step = pair(model)
    with torch._dynamo.config.patch(recompile_limit=3):
        for i in range(3):
            same(ours, step, model, batch(3 + i), i)
        with pytest.raises(
            gravure.ExportError,
            match=r"more than 3 kinds.* was float32 \[3, 8\].*pad to fewer.*recompile_limit",
        ):
            step(*batch(9))
        for i in range(3):
            same(ours, step, model, batch(3 + i), i)


@pytest.mark.parametrize("given", ["position", "keyword", "member"])
def test_a_number_that_is_another_one_in_each_call_is_named(given: str) -> None:
    model = torch.nn.Linear(4, 1)
    x = torch.ones(3, 4)

    def loss(x: Tensor, weight: Any) -> Tensor:
        scale = weight["of"][1] if given == "member" else weight
        return model(x).square().mean() * scale

    def call(step: Callable[..., Any], number: Any) -> Tensor:
        if given == "keyword":
            return step(x, weight=number)
        return step(x, {"of": [0, number]} if given == "member" else number)

    step = gravure.compile_step(loss)
    name = "weight['of'][1]" if given == "member" else "weight"
    with torch._dynamo.config.patch(recompile_limit=3):
        for i in range(3):
            assert bits(call(step, i / 4)) == bits(call(loss, i / 4))
        told = rf"kinds of arguments: {re.escape(name)} was 0.0, 0.25, 0.5, and is 0.75 now; pass "
        with pytest.raises(gravure.ExportError, match=told + ".* as a tensor .*recompile_limit"):
            call(step, 0.75)
        assert bits(call(step, 0.25)) == bits(call(loss, 0.25))
    torch._dynamo.reset()
    cured = gravure.compile_step(loss)
    with torch._dynamo.config.patch(recompile_limit=1):
        for i in range(6):
            assert bits(call(cured, torch.tensor(i / 4))) == bits(call(loss, i / 4))


def test_what_is_no_argument_and_changes_is_said_to_be_none() -> None:
    model, weight = torch.nn.Linear(4, 1), [0.0]
    step = gravure.compile_step(lambda x: model(x).mean() * weight[0])
    with torch._dynamo.config.patch(recompile_limit=2):
        for i in range(2):
            weight[0] = i / 4
            step(torch.ones(3, 4))
        weight[0] = 5.0
        with pytest.raises(gravure.ExportError, match="no argument differs: something else"):
            step(torch.ones(3, 4))


def test_options_of_a_step() -> None:
    with pytest.raises(ValueError, match="did you mean 'memory_growth'"):
        gravure.compile_step(lambda: None, options={"memory_grow": 1})
    with pytest.raises(ValueError, match="takes no option 'on_missed'"):
        gravure.compile_step(lambda: None, options={"on_missed": "raise"})
