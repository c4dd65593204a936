"""results="accumulate": gradients are added to `.grad` inside the step, in eager's bits."""

from __future__ import annotations

import copy
import gc
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.library.load import program_class
from running import bits, need_library
from torch import Tensor
from training import Net, eager_step, leaves, state_of

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

OPTIONS = {"results": "accumulate", "poison": True}


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return request.param


def loss_of(model: nn.Module) -> Callable[..., Tensor]:
    return lambda x, y: F.mse_loss(model(x), y)


class Pair:
    """A model, and a copy of it whose step is compiled: after each step they must be alike."""

    def __init__(self, model: nn.Module, device: str, **options: Any) -> None:
        self.model = model.to(device)
        self.ours = copy.deepcopy(self.model)
        self.device = device
        self.older = {graph.number for graph in gravure.report().graphs}
        self.step = gravure.compile_step(loss_of(self.ours), options=OPTIONS | options)
        self.steps = 0

    def run(self, rows: int = 5) -> None:
        """One micro-batch on both."""
        self.steps += 1
        torch.manual_seed(self.steps)
        x = torch.randn(rows, 8, device=self.device)
        y = torch.randn(rows, 4, device=self.device)
        found = []
        for call in (self.step, lambda *args: eager_step(loss_of(self.model), *args)):
            torch.manual_seed(self.steps)
            found.append(leaves(call(x, y)))
        assert found[0] == found[1]
        assert state_of(self.ours) == state_of(self.model), f"step {self.steps}"

    def zero(self, set_to_none: bool) -> None:
        for model in (self.ours, self.model):
            model.zero_grad(set_to_none)

    def grads(self) -> list[Tensor]:
        return [p.grad for p in self.ours.parameters() if p.grad is not None]

    def addresses(self) -> list[int]:
        return [grad.data_ptr() for grad in self.grads()]

    def programs(self) -> list[Any]:
        new = [g for g in gravure.report().graphs if g.number not in self.older]
        return [program for graph in new for program in graph.programs]

    def program(self) -> Any:
        (program,) = self.programs()
        return program

    def remarks(self) -> dict[str, int]:
        """How often each remark was made."""
        found: Counter[str] = Counter()
        for program in self.programs():
            for text, count in program.remarks.items():
                found[text.partition(":")[0]] += count
        return dict(found)


def cycles(pair: Pair, ways: Iterable[bool | None], micro_batches: int = 3) -> None:
    """Cycles of accumulation; before each, gradients are set to None (True), to zero, or left."""
    for way in ways:
        if way is not None:
            pair.zero(way)
        for _ in range(micro_batches):
            pair.run()


def test_law_5_a_reader_on_another_stream_is_waited_for() -> None:
    """What a side stream was told to read is not begun anew before it has read."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    pair = Pair(Net(), "cuda")
    cycles(pair, [True, True])
    side = torch.cuda.Stream()
    for _ in range(5):
        expected = bits(pair.ours.first.weight.grad)
        grad = pair.ours.first.weight.grad
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            read = grad * 1
        grad.record_stream(side)
        del grad
        pair.zero(set_to_none=True)
        pair.run()
        torch.cuda.synchronize()
        assert "gradient-apart" not in pair.remarks()
        assert bits(read) == expected


@pytest.mark.parametrize("ways", [[True] * 4, [False] * 4, [None] * 4, [True, False, None, True]])
def test_law_1_several_cycles_are_eagers(device: str, ways: list[bool | None]) -> None:
    """P2, P15: the exact sum, also over warm-up and capture."""
    pair = Pair(Net(), device)
    cycles(pair, ways)
    program = pair.program()
    assert program.partitions == {"step": ["captured"]}
    assert program.stats["uncaptured_steps"] == 2 and program.stats["captures"] == 1
    assert program.remarks == {}


def test_law_5_a_buffer_is_made_once_and_never_copied(device: str) -> None:
    """P27: an addition in place stages nothing and copies nothing but the loss."""
    pair = Pair(Net(), device)
    cycles(pair, [True])
    addresses = pair.addresses()
    for way in (True, False, None, True):
        cycles(pair, [way])
        assert pair.addresses() == addresses
        stats = pair.program().stats
        assert stats["copied_result_bytes"] == 4
        assert stats["staged_bytes"] == 5 * (8 + 4) * 4
    versions = [grad._version for grad in pair.grads()]
    pair.run()
    assert all(grad._version > v for grad, v in zip(pair.grads(), versions, strict=True))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_first_gradient_keeps_the_sign_of_its_zeros(device: str, set_to_none: bool) -> None:
    weights = [nn.Parameter(torch.ones(4, device=device)) for _ in range(2)]
    step = gravure.compile_step(lambda x: (weights[0] * x).sum(), options=OPTIONS)
    for i in range(8):
        if i % 2 == 0:
            for weight in weights:
                if set_to_none or weight.grad is None:
                    weight.grad = None
                else:
                    weight.grad.zero_()
        x = torch.tensor([-0.0, 0.0, float("nan"), 2.0**-149], device=device)
        step(x)
        (weights[1] * x).sum().backward()
        assert bits(weights[0].grad) == bits(weights[1].grad), f"step {i}"


def test_law_5_a_gradient_that_is_kept_stays_as_it_is(device: str) -> None:
    """P1: what somebody holds keeps address and bits; the next step's lies elsewhere."""
    pair = Pair(Net(), device)
    cycles(pair, [True, True])
    kept: list[tuple[Tensor, int, Any]] = []
    for _ in range(6):
        kept += [(grad, grad.data_ptr(), bits(grad)) for grad in pair.grads()]
        pair.zero(set_to_none=True)
        pair.run()
        assert all(g.data_ptr() == at and bits(g) == was for g, at, was in kept)
        assert not {at for _, at, _ in kept} & set(pair.addresses())
    program = pair.program()
    assert pair.remarks()["gradient-apart"] == 6  # of each parameter that the loss reaches
    assert program.stats["uncaptured_steps"] <= 3
    assert program.stats["captures"] <= 2
    before = program.stats["replays"]
    cycles(pair, [True])
    assert pair.program().stats["replays"] == before + 3


def test_law_5_a_view_of_a_gradient_holds_it(device: str) -> None:
    pair = Pair(Net(), device)
    cycles(pair, [True, True])
    part = pair.ours.first.weight.grad[1]
    was = bits(part)
    cycles(pair, [True, True])
    assert bits(part) == was
    assert pair.remarks()["gradient-apart"] == 1


def test_the_callers_own_buffers_are_added_to(device: str) -> None:
    """Views of one flat buffer, as distributed optimizers keep gradients."""
    pair = Pair(Net(), device)
    flats = []
    for model in (pair.ours, pair.model):
        parameters = [p for n, p in model.named_parameters() if "unused" not in n]
        flats.append(torch.zeros(sum(p.numel() for p in parameters), device=device))
        parts = flats[-1].split([p.numel() for p in parameters])
        for p, part in zip(parameters, parts, strict=True):
            p.grad = part.view_as(p)
    addresses = pair.addresses()
    for _ in range(3):
        cycles(pair, [False])
        assert pair.addresses() == addresses
        assert bits(flats[0]) == bits(flats[1])
    assert pair.program().remarks == {}
    assert pair.program().stats["uncaptured_steps"] == 2


def replace_grads(pair: Pair) -> None:
    for model in (pair.ours, pair.model):
        for p in model.parameters():
            if p.grad is not None:
                p.grad = p.grad.clone()


def test_law_3_a_replaced_buffer_is_the_one_that_is_added_to(device: str) -> None:
    pair = Pair(Net(), device)
    cycles(pair, [True, None])
    replace_grads(pair)
    addresses = pair.addresses()
    cycles(pair, [None, False])
    assert pair.addresses() == addresses
    program = pair.program()
    # The step that sees it runs uncaptured, the next one is captured anew.
    assert pair.remarks() == {"guard-failed": 1}
    assert program.stats["uncaptured_steps"] == 3 and program.stats["captures"] == 2


def test_law_3_a_buffer_that_is_another_one_each_step(device: str) -> None:
    pair = Pair(Net(), device)
    cycles(pair, [True])
    for _ in range(12):
        replace_grads(pair)
        pair.run()
    program = pair.program()
    assert pair.remarks()["gradient-apart"] == 6
    replays = program.stats["replays"]
    for _ in range(3):
        replace_grads(pair)
        pair.run()
    assert pair.program().stats["replays"] == replays + 3


def test_law_4_a_freed_buffer_is_never_read_or_written(device: str) -> None:
    """P23, P24: a capture points at memory that nobody else holds any more."""
    pair = Pair(Net(), device)
    for model in (pair.ours, pair.model):
        for n, p in model.named_parameters():
            p.grad = None if "unused" in n else torch.ones_like(p)
    cycles(pair, [None, None])
    sizes = [grad.shape for grad in pair.grads()]
    pair.zero(set_to_none=True)
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    pressure = [torch.full(s, 7.0, device=device) for _ in range(50) for s in sizes]
    cycles(pair, [None, True, True])
    assert all((tensor == 7).all() for tensor in pressure)


@pytest.mark.parametrize("kind", ["strides", "expanded by a clone", "sparse"])
def test_a_grad_of_another_layout(device: str, kind: str) -> None:
    pair = Pair(nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 4)), device)
    cycles(pair, [True])
    for model in (pair.ours, pair.model):
        grad = torch.linspace(-1, 1, 48, device=device).view(6, 8)
        if kind == "strides":
            grad = grad.view(8, 6).t()
        elif kind == "sparse":
            grad = grad.to_sparse()
        else:
            grad = grad.clone(memory_format=torch.contiguous_format)[:, :]
        model[0].weight.grad = grad
    cycles(pair, [None, None], micro_batches=2)
    expected = 0 if "clone" in kind else 1
    assert pair.remarks().get("gradient-apart", 0) == expected
    cycles(pair, [True, False])
    assert pair.model[0].weight.grad.stride() == pair.ours[0].weight.grad.stride()


def test_buffers_that_share_memory(device: str) -> None:
    """Two parameters with one `.grad`, and one that is an argument of the step, too.

    Whole numbers: autograd may add the two in another order.
    """
    weights = [nn.Parameter(torch.full((4,), 0.5, device=device)) for _ in range(4)]

    def loss_with(a: Tensor, b: Tensor) -> Callable[..., Tensor]:
        return lambda x: (a * x).sum() + (b * x * 3).sum()

    step = gravure.compile_step(loss_with(*weights[:2]), options=OPTIONS)
    for i in range(8):
        if i == 4:
            for k in (0, 2):
                weights[k].grad = weights[k + 1].grad = torch.ones(4, device=device)
        x = torch.randint(-9, 9, (4,), device=device).float()
        step(x)
        loss_with(*weights[2:])(x).backward()
        assert bits(weights[0].grad) == bits(weights[2].grad), f"step {i}"
    for _ in range(3):
        x = weights[0].grad
        step(x)
        loss_with(*weights[2:])(weights[2].grad.clone()).backward()
        assert bits(weights[0].grad) == bits(weights[2].grad)


def test_programs_of_several_batch_sizes_share_the_buffers(device: str) -> None:
    pair = Pair(Net(), device)
    for i in range(18):
        if i % 3 == 0:
            pair.zero(set_to_none=True)
        pair.run(rows=(5, 3)[(i // 2) % 2])
    for program in pair.programs():
        assert program.remarks == {}
        assert program.stats["uncaptured_steps"] == 2 and program.stats["captures"] == 1


def test_a_replaced_parameter_has_a_buffer_of_its_own(device: str) -> None:
    pair = Pair(Net(), device)
    cycles(pair, [True])
    old = pair.ours.second.weight
    was = bits(old.grad)
    for model in (pair.ours, pair.model):
        model.second.weight = nn.Parameter(torch.full((4, 16), 0.25, device=device))
    cycles(pair, [None, True, True])
    assert bits(old.grad) == was
    assert "gradient-apart" not in pair.remarks()


def test_a_model_that_becomes_one_of_another_dtype(device: str) -> None:
    """Its parameters stay the same objects, with other data."""
    weights = [nn.Parameter(torch.linspace(-1, 1, 4, device=device)) for _ in range(2)]
    step = gravure.compile_step(lambda x: (weights[0] * x).sin().sum(), options=OPTIONS)
    for i in range(10):
        if i == 4:
            for weight in weights:
                weight.grad = None
                weight.data = weight.data.double()
        x = torch.randn(4, device=device, dtype=weights[0].dtype)
        step(x)
        (weights[1] * x).sin().sum().backward()
        assert bits(weights[0].grad) == bits(weights[1].grad), f"step {i}"


def test_law_6_a_step_that_is_refused_leaves_no_gradient(device: str) -> None:
    pair = Pair(Net(), device)
    cycles(pair, [True])
    pair.zero(set_to_none=True)
    handle = pair.ours.first.weight.register_hook(lambda grad: grad)
    with pytest.raises(RuntimeError, match="has a hook"):
        pair.step(torch.randn(5, 8, device=device), torch.randn(5, 4, device=device))
    assert all(p.grad is None for p in pair.ours.parameters())
    handle.remove()
    cycles(pair, [True])


@pytest.mark.parametrize("point", ["capture-begin", "capture-call", "capture-end", "launch"])
def test_law_6_a_failed_capture_adds_once(device: str, tmp_path: Path, point: str) -> None:
    model = Net().to(device)
    x, y = torch.randn(5, 8, device=device), torch.randn(5, 4, device=device)
    folder = gravure.export_step(loss_of(model), (x, y), tmp_path)
    name = "host" if device == "cpu" else device
    program = gravure.load(folder, name, results="accumulate")
    assert "gradient" not in {slot.role for slot in program.outputs()}
    program.bind_saved()
    buffers = {
        slot.name: torch.zeros_like(program.saved_inputs()[slot.name.removesuffix(".grad")])
        for slot in program.inputs()
        if slot.name.endswith(".grad")
    }
    program.bind(buffers)
    assert len(buffers) == 6
    for i in range(7):
        if i == 2:
            program.inject_fault(point)
        torch.manual_seed(i)
        batch = torch.randn(5, 8, device=device), torch.randn(5, 4, device=device)
        torch.manual_seed(i)
        program.run(batch)
        torch.manual_seed(i)
        eager_step(loss_of(model), *batch)
        for n, p in model.named_parameters():
            if p.grad is not None:
                assert bits(buffers[f"model.{n}.grad"]) == bits(p.grad), f"{n}, step {i}"


def test_with_an_optimizer_that_has_some_of_the_parameters(device: str) -> None:
    model = Net().to(device)
    ours = copy.deepcopy(model)
    sides = []
    for each in (ours, model):
        parameters = [p for n, p in each.named_parameters() if n.startswith("first")]
        sides.append(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    step = gravure.compile_step(loss_of(ours), optimizer=sides[0], options=OPTIONS)
    for i in range(8):
        torch.manual_seed(i)
        batch = torch.randn(5, 8, device=device), torch.randn(5, 4, device=device)
        torch.manual_seed(i)
        step(*batch)
        torch.manual_seed(i)
        eager_step(loss_of(model), *batch)
        sides[1].step()
        sides[1].zero_grad()
        assert state_of(ours) == state_of(model), f"step {i}"


def test_an_argument_that_requires_a_gradient_gets_its_own(device: str) -> None:
    weight = nn.Parameter(torch.ones(4, device=device))
    step = gravure.compile_step(lambda x: (weight * x).sin().sum(), options=OPTIONS)
    for _ in range(5):
        x = torch.randn(4, device=device)
        a, b = (x.clone().requires_grad_() for _ in range(2))
        step(a)
        (weight.detach() * b).sin().sum().backward()
        assert bits(a.grad) == bits(b.grad)


def test_inductors_gradients_are_added_too(device: str) -> None:
    """Beside the same kernels uncaptured: their gradients, added by autograd's rule."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(device)
    sides = []
    for results, uncaptured in (("accumulate", False), ("owned", True)):
        ours = copy.deepcopy(model)
        options = {"codegen": "inductor", "results": results, "uncaptured": uncaptured}
        sides.append((ours, gravure.compile_step(loss_of(ours), options=options)))
    for i in range(8):
        torch.manual_seed(i)
        batch = torch.randn(5, 8, device=device), torch.randn(5, 4, device=device)
        for ours, step in sides:
            if i % 4 == 0:
                ours.zero_grad(set_to_none=i == 4)
            step(*batch)
        assert state_of(sides[0][0]) == state_of(sides[1][0]), f"step {i}"


def float_of(elements: int) -> str:
    return f"Float({elements}, strides=[1], device=cpu)"


@pytest.fixture
def scarce() -> Iterator[Callable[[], None]]:
    """What it gives leaves the process 20 MB more, until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    def limit() -> None:
        size = next(s for s in Path("/proc/self/status").read_text().split("\n") if "VmSize" in s)
        now = int(size.split()[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (now + 20_000_000, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_law_6_a_step_without_memory_for_its_gradients_leaves_none(
    scarce: Callable[[], None],
) -> None:
    large = 30_000_000
    text = f"""gravure 1
graph step(%a : {float_of(4)} {{parameter "a"}}, %b : {float_of(large)} {{parameter "b"}}):
  %ga : {float_of(4)} = aten::mul.Scalar(%a, 3.0)
  %gb : {float_of(large)} = aten::mul.Scalar(%b, 2.0)
  return (%ga {{gradient "a"}}, %gb {{gradient "b"}})
"""
    program = program_class().of_text(text, "host", {"results": "accumulate"})
    a, b = torch.ones(4, requires_grad=True), torch.ones(large, requires_grad=True)
    scarce()
    with pytest.raises(RuntimeError, match="allocate"):
        program.run_step("step", [a, b, None, None], False)
    assert a.grad is None and b.grad is None


def test_autograd_accumulates_by_itself() -> None:
    with pytest.raises(ValueError, match="is for compile_step and load"):
        torch.compile(Net(), backend="gravure", options={"results": "accumulate"})
