"""`gravure.diagnose` on code as people write it, each with one fault: it names the user's line."""

from __future__ import annotations

import threading
from typing import Any

import gravure
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

FILE = "test_diagnose.py"


def line_of(marker: str) -> str:
    """`test_diagnose.py:12` of the line that ends with that comment."""
    with open(__file__) as file:
        lines = file.read().splitlines()
    (found,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return f"{FILE}:{found}"


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


class Averages(Plain):
    """Keeps a mean, as people do it: another tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)  # moves
        return self.last(hidden - self.mean)


class Reads(Plain):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if hidden.abs().max().item() > 1e6:  # reads
            hidden = hidden.clamp(-1, 1)
        return self.last(hidden)


class Prints(Plain):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        print("hidden", hidden.shape)  # prints
        return self.last(hidden)


class Masks(Plain):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden).sum() + hidden[hidden > 0].sum()  # masks


class Counts(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1  # counts
        return self.last(self.first(x)) / self.steps


def only(found: gravure.Diagnosis, word: str) -> Any:
    matching = [cause for cause in found.causes if word in f"{cause.what} {cause.where}"]
    assert matching, f"{word!r} is not in\n{found}"
    return matching[0]


def test_a_healthy_model() -> None:
    found = gravure.diagnose(Plain(), torch.randn(8, 4))
    assert found.healthy, str(found)
    assert str(found).endswith("nothing costs captures")
    assert found.steps[-1].kind == "replayed" and "replayed" in str(found).splitlines()[1]


def test_a_healthy_loop_of_the_users() -> None:
    model = Plain()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="gravure")

    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = compiled(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    found = gravure.diagnose(train, batches=[torch.randn(8, 4) for _ in range(3)])
    assert found.healthy, str(found)


def test_a_healthy_compiled_step() -> None:
    model = Plain()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    step = gravure.compile_step(lambda x: model(x).square().mean(), optimizer=optimizer)
    found = gravure.diagnose(step, torch.randn(8, 4))
    assert found.healthy, str(found)


def test_an_optimizer_that_reads_on_the_host() -> None:
    model = Plain()
    optimizer = torch.optim.AdamW(model.parameters())
    step = gravure.compile_step(lambda x: model(x).square().mean(), optimizer=optimizer)
    found = gravure.diagnose(step, torch.randn(8, 4))
    assert "AdamW(…, fused=True)" in only(found, "host-sync").instead


def test_an_optimizer_that_cannot_be_fused_is_not_told_to_be() -> None:
    model = Plain()
    optimizer = torch.optim.NAdam(model.parameters())
    step = gravure.compile_step(lambda x: model(x).square().mean(), optimizer=optimizer)
    assert "fused=True" not in str(gravure.diagnose(step, torch.randn(8, 4)))


def test_what_was_said_before_is_said_again() -> None:
    """A gradient that is held since long: the runtime says it once."""
    model = Plain()
    compiled = torch.compile(model, backend="gravure")
    history = []

    def train(x: Tensor) -> None:
        model.zero_grad()
        compiled(x).square().mean().backward()

    for _ in range(6):
        train(torch.randn(8, 4))
        history.append(model.last.weight.grad)
    found = gravure.diagnose(train, torch.randn(8, 4), steps=4)
    if found.steps[-1].kind == "uncaptured":
        assert "zero_grad(set_to_none=True)" in only(found, "result-held").instead


def test_a_buffer_that_is_another_tensor_each_time() -> None:
    found = gravure.diagnose(Averages(), batches=[torch.randn(8, 4) for _ in range(3)])
    cause = only(found, 'buffer "mean"')
    assert cause.where == line_of("moves")
    assert "self.mean.copy_(" in cause.instead


def test_a_read_that_breaks_the_graph() -> None:
    found = gravure.diagnose(Reads(), torch.randn(8, 4))
    cause = only(found, "graph break")
    assert cause.where == line_of("reads")


def test_a_print() -> None:
    found = gravure.diagnose(Prints(), torch.randn(8, 4))
    cause = only(found, "graph break")
    assert cause.where == line_of("prints") and "behind the step" in cause.instead
    assert 'print("hidden", hidden.shape)' in str(found)


def test_an_index_by_a_mask() -> None:
    found = gravure.diagnose(Masks(), torch.randn(8, 4))
    assert only(found, line_of("masks")).instead


def test_a_number_that_counts() -> None:
    found = gravure.diagnose(Counts(), torch.randn(8, 4))
    cause = only(found, 'attribute "steps"')
    assert cause.where == line_of("counts") and "tensor" in cause.instead


def test_a_last_batch_that_is_smaller() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(22, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    found = gravure.diagnose(Plain(), batches=loader, steps=12)
    cause = only(found, 'argument "x"')
    assert "(8, 4)" in cause.what and "(6, 4)" in cause.what
    assert cause.since == 3 and "drop_last=True" in cause.instead


def test_gradients_that_are_held() -> None:
    model = Plain()
    compiled = torch.compile(model, backend="gravure")
    history = []

    def train(x: Tensor) -> None:
        model.zero_grad()
        compiled(x).square().mean().backward()
        history.append(model.last.weight.grad)

    found = gravure.diagnose(train, torch.randn(8, 4))
    cause = only(found, "gradient")
    assert 'by a list, variable "history" that train closes over' in cause.what
    assert "zero_grad(set_to_none=True)" in cause.instead


def test_losses_that_are_held_with_their_graphs() -> None:
    model = Plain()
    compiled = torch.compile(model, backend="gravure", options={"max_in_flight": 1})
    losses: list[Tensor] = []

    def train(x: Tensor) -> None:
        losses.append(compiled(x).square().mean())
        if len(losses) % 3 == 0:
            torch.stack(losses[-3:]).sum().backward()

    found = gravure.diagnose(train, torch.randn(8, 4))
    assert only(found, "saved-values-held" if not found.causes else "held").instead


def test_a_thread_each_time() -> None:
    model = Plain()
    compiled = torch.compile(model, backend="gravure")

    def train(x: Tensor) -> None:
        def work() -> None:
            compiled(x).square().mean().backward()
            model.zero_grad()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert gravure.diagnose(train, torch.randn(8, 4)).steps


def test_a_learning_rate_that_is_another_number_in_each_step() -> None:
    """It is written into the capture, and costs nothing."""
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = gravure.compile_step(lambda x: model(x).square().mean(), optimizer=optimizer)

    def train(x: Tensor) -> Tensor:
        optimizer.param_groups[0]["lr"] *= 0.5
        return step(x)

    found = gravure.diagnose(train, torch.randn(8, 4), steps=6)
    assert found.healthy, str(found)


def test_a_step_without_an_optimizer() -> None:
    """Nobody clears its gradients but the doctor."""
    model = Plain()
    step = gravure.compile_step(lambda x: model(x).square().mean())
    found = gravure.diagnose(step, torch.randn(8, 4))
    assert found.healthy, str(found)


def test_gradients_that_are_held_are_one_fault() -> None:
    model = Plain()
    compiled = torch.compile(model, backend="gravure")
    history = []

    def train(x: Tensor) -> None:
        compiled(x).square().mean().backward()
        history.append([parameter.grad for parameter in model.parameters()])
        model.zero_grad()

    found = gravure.diagnose(train, torch.randn(8, 4))
    assert len(found.causes) == 1 and ' (and "' in only(found, "result-held").what, str(found)


def test_a_backward_that_is_to_be_repeated() -> None:
    model = Plain()
    compiled = torch.compile(model, backend="gravure")

    def train(x: Tensor) -> None:
        model.zero_grad()
        compiled(x).square().mean().backward(retain_graph=True)

    found = gravure.diagnose(train, torch.randn(8, 4))
    cause = only(found, "backward-retained")
    assert "test_diagnose.py:" in cause.where and "leave that out" in cause.instead
    assert "backward-missing" not in str(gravure.report())


def test_forwards_that_wait_for_a_backward_that_never_comes() -> None:
    model = Plain()
    compiled = torch.compile(model, backend="gravure", options={"max_in_flight": 1})
    losses: list[Tensor] = []
    found = gravure.diagnose(lambda x: losses.append(compiled(x).mean()), torch.randn(8, 4))
    assert "torch.no_grad()" in only(found, "backward-missing").instead


def test_a_training_loop_of_which_nothing_is_compiled() -> None:
    model = Plain()
    found = gravure.diagnose(lambda x: model(x).mean().backward(), torch.randn(8, 4))
    assert "compile the model" in only(found, "backward() call").instead


class Loops(Plain):
    """Where a graph breaks in a loop, Dynamo leaves the whole function as it is."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.first(x)[:, :4]
            if x.isnan().any().item():  # loops
                raise ValueError("not a number")
        return self.last(self.first(x))


def test_a_read_in_a_loop() -> None:
    found = gravure.diagnose(Loops(), torch.randn(8, 4))
    cause = only(found, "is without a graph")
    assert "in a loop" in cause.what and "capture_scalar_outputs" in cause.instead
    assert "test_diagnose.py:" in cause.where and not found.healthy
    assert "call the compiled model" not in str(gravure.Report([]))
    said = str(gravure.report())
    assert "forward at test_diagnose.py:" in said and "without a graph" in said


def test_nothing_that_is_compiled() -> None:
    def step(n: int) -> int:
        return n + 1

    found = gravure.diagnose(step, 1)
    assert not found.healthy
    assert "no program ran" in str(found)


def test_a_step_that_fails() -> None:
    def step(x: Tensor) -> Tensor:
        raise KeyError("no such batch")

    found = gravure.diagnose(step, torch.randn(2))
    assert "step 1 failed: KeyError: 'no such batch'" in str(found)


class Tallies(Averages):
    """With what is neither a parameter nor written as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = torch.zeros(())
        self.register_buffer("scale", torch.ones(1).expand(8))

    def forward(self, x: Tensor) -> Tensor:
        self.tally.add_(1)
        return super().forward(x * self.scale.mean())


def test_state_is_put_back() -> None:
    model = Tallies()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="gravure")

    def train(x: Tensor) -> None:
        compiled(x + torch.randn_like(x)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    x = torch.randn(8, 4)
    values = [*model.parameters(), *model.buffers(), model.tally]
    before = [bits(value) for value in values], bits(torch.get_rng_state())
    gravure.diagnose(train, x)
    after = [bits(value) for value in values], bits(torch.get_rng_state())
    assert before == after and not optimizer.state
    assert any(model.mean is value for value in values)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 2}, "at least 4"),
        ({"batches": []}, "there is none"),
        ({"options": {"hots": []}}, "did you mean 'host'"),
    ],
)
def test_what_is_given_wrong(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        gravure.diagnose(Plain(), **given)


def test_what_is_no_step() -> None:
    with pytest.raises(TypeError, match="a step, a model or a function"):
        gravure.diagnose(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not both"):
        gravure.diagnose(Plain(), torch.randn(8, 4), batches=[torch.randn(8, 4)])
