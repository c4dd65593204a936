"""transformers' Trainer: model, clipping and optimizer captured; all else is the Trainer's.

    python3 docs/examples/trainers/hf_trainer.py

`torch_compile_backend="gravure"` is refused: transformers and Accelerate have a closed list of
names. `model.compile(backend="gravure")` before the Trainer is made does the same. The Trainer
clips by Accelerate, in `_clip_grad_norm` of transformers 5.23, which is Gravure's here. It is
private: a release without it clips as ever, uncaptured.
"""

from __future__ import annotations

import tempfile
from typing import Any

import gravure
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Captured(Trainer):
    """The optimizer is compiled where the Trainer makes it, before it is wrapped.

    Two walks through all modules, which the Trainer makes in each step, are made once: they take
    the host longer than the captured model's forward.
    """

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        self.weights: list[torch.nn.Parameter] = []
        self.operations: dict[int, int] = {}  # by the size of a batch
        optimizer = super().create_optimizer(*args, **kwargs)
        return gravure.compile_optimizer(optimizer)

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
        self.accelerator.unscale_gradients()  # with fp16
        self.weights = self.weights or [*model.parameters()]
        return gravure.clip_grad_norm_(self.weights, self.args.max_grad_norm)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        size = inputs["input_ids"].numel()
        if size not in self.operations:
            self.operations[size] = super().floating_point_ops(inputs)
        return self.operations[size]


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": tokens, "labels": tokens}


def make_trainer(folder: str, *, captured: bool, **further: Any) -> Trainer:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)
    model = GPT2LMHeadModel(config)
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "max_steps": 16,
        "bf16": True,
        "eval_strategy": "steps",
        "eval_steps": 8,
        "save_steps": 8,
        "logging_steps": 8,
        "report_to": [],
        "disable_tqdm": True,
    }
    settings |= {"use_cpu": True} if not torch.cuda.is_available() else {}
    settings |= further
    if captured:
        model.compile(backend="gravure")
    arguments = TrainingArguments(folder, max_grad_norm=1.0, **settings)
    kind = Captured if captured else Trainer
    return kind(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens())


def train(folder: str, *, captured: bool, resume: str | None = None, **further: Any) -> Any:
    trainer = make_trainer(folder, captured=captured, **further)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    found = []
    for captured in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            found.append(train(folder, captured=captured).model.state_dict())
    same = all(torch.equal(found[0][key], value) for key, value in found[1].items())
    print("the same bits" if same else "OTHER BITS")
