"""On a GPU an LSTM, GRU or RNN is one operator of the graph, captured, in eager's bits (law 1)."""

from __future__ import annotations

import copy
from typing import Any

import gravure
import pytest
import torch
from recurrent import KINDS, Packed, Tagger, in_one_graph
from running import bits, need_library
from torch import Tensor, nn
from training import replays, same_as_eager

need_library()
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

WIDTH = 24
SETTINGS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "two layers with dropout": {"num_layers": 2, "dropout": 0.3, "batch_first": True},
    "both directions, no biases": {"bidirectional": True, "bias": False},
    "all at once": {"num_layers": 3, "dropout": 0.1, "bidirectional": True, "batch_first": True},
}


def rows(dtype: torch.dtype) -> Any:
    def batch(i: int) -> tuple[Tensor]:
        drawn = torch.randn(7, 4, WIDTH, generator=torch.Generator().manual_seed(i))
        return (drawn.to("cuda", dtype),)

    return batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_law_1_a_module_is_captured(kind: str, settings: str, dtype: torch.dtype) -> None:
    model = Tagger(kind, WIDTH, **SETTINGS[settings]).to("cuda", dtype)
    report = same_as_eager(model, rows(dtype))
    assert in_one_graph(report)
    if not SETTINGS[settings].get("dropout"):  # else each step is seeded, and so uncaptured
        assert replays(report)


def test_law_1_a_projection() -> None:
    for biases in (True, False):
        model = Tagger("lstm", WIDTH, proj_size=8, bias=biases).cuda()
        torch._dynamo.reset()
        assert replays(same_as_eager(model, rows(torch.float32)))


def test_law_1_weights_that_do_not_lie_together() -> None:
    model = Tagger("lstm", WIDTH).cuda()
    for weight in model.cells.parameters():
        weight.data = weight.data.clone()
    assert replays(same_as_eager(model, rows(torch.float32)))


@pytest.mark.parametrize("codegen", ["aten", "inductor"])
def test_gradients_of_the_input_and_of_states(codegen: str) -> None:
    cells = nn.LSTM(WIDTH, WIDTH, num_layers=2).cuda()
    compiled = torch.compile(cells, backend="gravure", options={"codegen": codegen})
    for step in range(5):
        found = []
        for call in (cells, compiled):
            drawn = torch.Generator().manual_seed(step)
            given = [torch.randn(6, 3, WIDTH, generator=drawn).cuda()]
            given += [torch.randn(2, 3, WIDTH, generator=drawn).cuda() for _ in range(2)]
            for each in given:
                each.requires_grad_()
            cells.zero_grad()
            _, (hidden, cell) = call(given[0], (given[1], given[2]))
            (hidden.square().sum() + cell.sum()).backward()
            grads = [each.grad for each in (*given, *cells.parameters())]
            found.append([bits(value) for value in (hidden, cell, *grads)])
        assert found[0] == found[1]
    assert replays(gravure.report())


def test_a_backward_that_runs_twice() -> None:
    cells = nn.GRU(WIDTH, WIDTH).cuda()
    compiled = torch.compile(cells, backend="gravure")
    for step in range(5):
        found = []
        for call in (cells, compiled):
            x = torch.randn(6, 3, WIDTH, generator=torch.Generator().manual_seed(step)).cuda()
            cells.zero_grad()
            loss = call(x)[0].square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            found.append([bits(p.grad) for p in cells.parameters()])
        assert found[0] == found[1]


def test_frozen_weights_and_no_gradients() -> None:
    cells = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.2).cuda().requires_grad_(False)
    compiled = torch.compile(cells, backend="gravure")
    for training in (True, False):
        cells.train(training)
        for step in range(5):
            found = []
            for call in (cells, compiled):
                torch.manual_seed(step)
                x = torch.randn(6, 3, WIDTH, device="cuda", requires_grad=training)
                out = call(x)[0]
                if training:
                    out.square().sum().backward()
                found.append([bits(out), bits(x.grad) if training else None])
            assert found[0] == found[1]
    with torch.inference_mode():
        x = torch.randn(6, 3, WIDTH, device="cuda")
        assert bits(compiled(x)[0]) == bits(cells(x)[0])


def test_evaluation_with_gradients_is_eagers() -> None:
    """Its forward runs, and its backward says what is wrong, as in eager."""
    cells = nn.LSTM(WIDTH, WIDTH).cuda().eval()
    compiled = torch.compile(cells, backend="gravure")
    x = torch.randn(6, 3, WIDTH, device="cuda")
    for _ in range(4):
        out = compiled(x)[0]
        assert bits(out) == bits(cells(x)[0])
        with pytest.raises(RuntimeError, match="can only be called in training mode"):
            out.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_that_vary(kind: str) -> None:
    model = Tagger(kind, WIDTH).cuda()
    twin, compiled = copy.deepcopy(model), torch.compile(model, backend="gravure")
    for length in (7, 7, 7, 9, 9, 5, 7, 9, 5, 11, 9, 11, 5):
        drawn = torch.randn(length, 4, WIDTH, generator=torch.Generator().manual_seed(length))
        found = []
        for call in (twin, compiled):
            model.zero_grad(), twin.zero_grad()
            out = call(drawn.cuda())[0]
            out.square().mean().backward()
            of = twin if call is twin else model
            found.append([bits(out), *(bits(p.grad) for p in of.parameters())])
        assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str) -> None:
    model = Packed(kind, WIDTH).cuda()
    twin, compiled = copy.deepcopy(model), torch.compile(model, backend="gravure")
    for step in range(5):
        x = torch.randn(6, 3, WIDTH, generator=torch.Generator().manual_seed(step)).cuda()
        lengths = torch.tensor([6, 2 + step % 3, 4])
        found = []
        for call, of in ((twin, twin), (compiled, model)):
            of.zero_grad()
            out = call(x, lengths)
            out.square().mean().backward()
            found.append([bits(out), *(bits(p.grad) for p in of.parameters())])
        assert found[0] == found[1]


def test_weights_that_are_flattened_in_each_call() -> None:
    """As many models do, which moves them."""

    class Flattening(Tagger):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            self.cells.flatten_parameters()
            return super().forward(x)

    same_as_eager(Flattening("lstm", WIDTH, num_layers=2).cuda(), rows(torch.float32), steps=12)


def test_states_that_go_from_step_to_step() -> None:
    cells, head = nn.LSTM(WIDTH, WIDTH).cuda(), nn.Linear(WIDTH, 5).cuda()
    twins = copy.deepcopy(cells), copy.deepcopy(head)

    def way(of: Any) -> Any:
        def call(x: Tensor, state: Any) -> Any:
            out, state = of[0](x, state)
            return of[1](out).square().mean(), state

        return call

    pairs = [
        (twins, way(twins)),
        ((cells, head), torch.compile(way((cells, head)), backend="gravure")),
    ]
    found: list[list[Any]] = []
    for of, call in pairs:
        parameters = [*of[0].parameters(), *of[1].parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        state: Any = (torch.zeros(1, 4, WIDTH, device="cuda"),) * 2
        seen = []
        for step in range(10):
            optimizer.zero_grad()
            loss, state = call(rows(torch.float32)(step)[0], state)
            loss.backward()
            optimizer.step()
            state = tuple(each.detach() for each in state)
            seen += [bits(loss), *map(bits, state)]
        found.append(seen + [bits(p) for p in parameters])
    assert found[0] == found[1]
    assert replays(gravure.report())


def test_autocast_is_eagers() -> None:
    model = Tagger("lstm", WIDTH).cuda()
    twin, compiled = copy.deepcopy(model), torch.compile(model, backend="gravure")
    for step in range(4):
        found = []
        for call, of in ((twin, twin), (compiled, model)):
            of.zero_grad()
            with torch.autocast("cuda", torch.float16):
                out = call(rows(torch.float32)(step)[0])[0]
            out.float().square().mean().backward()
            found.append([bits(out), *(bits(p.grad) for p in of.parameters())])
        assert found[0] == found[1]


def test_without_cudnn() -> None:
    """Said between steps: the program was made for cuDNN."""
    model = Tagger("gru", WIDTH).cuda()
    twin, compiled = copy.deepcopy(model), torch.compile(model, backend="gravure")
    for step in range(9):
        with torch.backends.cudnn.flags(enabled=step not in (4, 5, 6)):
            found = []
            for call, of in ((twin, twin), (compiled, model)):
                of.zero_grad()
                out = call(rows(torch.float32)(step)[0])[0]
                out.square().mean().backward()
                found.append([bits(out), *(bits(p.grad) for p in of.parameters())])
            assert found[0] == found[1]


def test_a_training_loop_by_inductor_learns_the_same() -> None:
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Tagger("lstm", WIDTH, num_layers=2).cuda()
        call: Any = model
        if compiled:
            call = torch.compile(model, backend="gravure", options={"codegen": "inductor"})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = rows(torch.float32)(0)[0]
        for _ in range(12):
            optimizer.zero_grad()
            loss = call(x)[0].square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-5)
    assert replays(gravure.report())
