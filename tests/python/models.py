"""The models that tests export: each returns the function, its arguments, its module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class Model(NamedTuple):
    """`fn(*args)` is the loss of one step.

    `is_compiling`: it is one graph only where it is told that it is compiled.
    """

    fn: Callable[..., Any]
    args: tuple[Tensor, ...]
    module: nn.Module
    is_compiling: bool = False


def moe_step() -> Any:
    """The example docs/examples/moe_step.py as a module."""
    if "moe_step" not in sys.modules:
        path = Path(__file__).parents[2] / "docs" / "examples" / "moe_step.py"
        spec = importlib.util.spec_from_file_location("moe_step", path)
        assert spec is not None and spec.loader is not None
        sys.modules["moe_step"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["moe_step"]


def _tokens(vocab: int, *shape: int, device: str = "cpu") -> Tensor:
    return torch.randint(vocab, shape, device=device)


def llama(device: str = "cpu") -> Model:
    """Llama-shaped, dropout on; the function closes over its module."""
    torch.manual_seed(0)
    example = moe_step()
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    model = example.Moe(example.SMALL, moe=False).to(device=device, dtype=dtype)

    def loss(ids: Tensor, targets: Tensor) -> Tensor:
        logits = model(ids).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    c = example.SMALL
    shape = (c.batch, c.seq)
    args = _tokens(c.vocab, *shape, device=device), _tokens(c.vocab, *shape, device=device)
    return Model(loss, args, model)


def moe(device: str = "cpu") -> Model:
    """Every second block reads token counts on the host; dropout on."""
    step, ids, targets = moe_step().make(device=device)
    return Model(step, (ids, targets), step)


def resnet18() -> Model:
    """Running statistics are mutated."""
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10)

    def loss(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(images)
        return F.cross_entropy(logits, labels), logits

    return Model(loss, (torch.randn(2, 3, 64, 64), _tokens(10, 2)), model)


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, 7)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x, _ = self.lstm(F.dropout(self.embedding(ids), 0.2, self.training))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def lstm() -> Model:
    """Two layers in two directions, no dropout between them; a module is exported itself."""
    torch.manual_seed(0)
    model = _Tagger()
    return Model(model, (_tokens(50, 3, 9), _tokens(7, 3, 9)), model)


def bert() -> Model:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=120,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    model = BertForMaskedLM(config).train()

    def loss(ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=attention_mask, labels=labels).loss

    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 9:] = 0
    args = _tokens(120, 2, 12), mask, _tokens(120, 2, 12)
    return Model(loss, args, model, is_compiling=True)  # else it looks whether the mask is all ones


def t5() -> Model:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=120,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.1,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).train()

    def loss(ids: Tensor, labels: Tensor) -> Tensor:
        return model(input_ids=ids, labels=labels, use_cache=False).loss

    return Model(loss, (_tokens(120, 2, 11), _tokens(120, 2, 7)), model)


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def _block(self, x: Tensor, layer: nn.Module) -> Tensor:
        return x + F.dropout(F.gelu(layer(x)), 0.3, self.training)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            if i % 2:
                x = checkpoint(self._block, x, layer, use_reentrant=False)
            else:
                x = self._block(x, layer)
        return F.mse_loss(x, y)


def checkpointed(device: str = "cpu") -> Model:
    """Every second block is checkpointed and draws dropout."""
    torch.manual_seed(0)
    model = _Checkpointed().to(device)
    args = torch.randn(8, 16, device=device), torch.randn(8, 16, device=device)
    return Model(model, args, model)


ALL: dict[str, Callable[[], Model]] = {
    "llama": llama,
    "moe": moe,
    "resnet18": resnet18,
    "lstm": lstm,
    "bert": bert,
    "t5": t5,
    "checkpointed": checkpointed,
}


def next_args(args: tuple[Tensor, ...], step: int) -> tuple[Tensor, ...]:
    """The arguments of another step: the same shapes, other values in the same range."""
    generator = torch.Generator().manual_seed(100 + step)
    changed = []
    for arg in args:
        if arg.is_floating_point():
            noise = torch.randn(arg.shape, generator=generator, dtype=torch.float32)
            changed.append(noise.to(arg.dtype).to(arg.device))
        else:
            order = torch.randperm(arg.numel(), generator=generator).to(arg.device)
            changed.append(arg.flatten()[order].view(arg.shape))
    return tuple(changed)
