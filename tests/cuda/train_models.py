"""Trains models of torchvision, timm and transformers on a GPU, as eager PyTorch does, bit for bit.

    python3 tests/cuda/train_models.py [--models gpt2,resnet18] [--steps 20] [--at-once 6]

Each model trains in eager twice (one that differs from itself proves nothing), through
`torch.compile(backend="gravure")`, and through `gravure.compile_step`, in deterministic mode, from
the same weights on the same batches. Losses of every step, parameters and buffers at the end are
compared. Small configurations, dropout as the model has it. Exit status 0 only if every bit agrees.
Where the backend differs, `backend="aot_eager"` tells whether tracing alone does so: then the table
says "as aot_eager".
`--device cpu` tries it on the host device.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

Batch = tuple[Tensor, Tensor]
VOCAB, CLASSES = 211, 10


class Loss(nn.Module):
    """A model with its loss, as a step calls it."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Tensor, Tensor], Tensor]):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call(self.model, x, y)


def images(model: nn.Module, size: int) -> tuple[nn.Module, Callable[[], Batch]]:
    def batch() -> Batch:
        return torch.randn(4, 3, size, size), torch.randint(CLASSES, (4,))

    return Loss(model, lambda m, x, y: F.cross_entropy(m(x), y)), batch


def words(model: nn.Module) -> tuple[nn.Module, Callable[[], Batch]]:
    def batch() -> Batch:
        return torch.randint(VOCAB, (4, 24)), torch.randint(VOCAB, (4, 24))

    return Loss(model, lambda m, x, y: m(input_ids=x, labels=y).loss), batch


def vision(name: str, size: int = 64, **how: Any) -> tuple[nn.Module, Callable[[], Batch]]:
    import torchvision.models

    return images(getattr(torchvision.models, name)(num_classes=CLASSES, **how), size)


def timm_model(name: str, size: int, **how: Any) -> tuple[nn.Module, Callable[[], Batch]]:
    import timm

    return images(timm.create_model(name, num_classes=CLASSES, **how), size)


def language(config: str, model: str, **how: Any) -> tuple[nn.Module, Callable[[], Batch]]:
    import transformers

    # With the default attention, transformers itself computes masks otherwise while it is traced.
    made = getattr(transformers, config)(vocab_size=VOCAB, **how)
    made._attn_implementation = "eager"
    return words(getattr(transformers, model)(made))


SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MLP = SIZES | {"intermediate_size": 128}
DECODER = MLP | {"use_cache": False}
GROUPED = DECODER | {"num_key_value_heads": 2}

MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[], Batch]]]] = {
    "resnet18": lambda: vision("resnet18"),
    "mobilenet_v3_small": lambda: vision("mobilenet_v3_small"),
    "shufflenet": lambda: vision("shufflenet_v2_x0_5"),
    "regnet": lambda: vision("regnet_y_400mf"),
    "efficientnet": lambda: vision("efficientnet_b0"),
    "densenet": lambda: vision("densenet121"),
    "squeezenet": lambda: vision("squeezenet1_1"),
    "mnasnet": lambda: vision("mnasnet0_5"),
    "swin": lambda: vision("swin_t"),
    "googlenet": lambda: vision("googlenet", aux_logits=False, init_weights=False),
    "timm_vit": lambda: timm_model("vit_tiny_patch16_224", 64, img_size=64, depth=3),
    "timm_mixer": lambda: timm_model("mixer_s32_224", 224),
    "timm_convnext": lambda: timm_model("convnext_atto", 64),
    "timm_resnet": lambda: timm_model("resnet10t", 64),
    "timm_mobilevit": lambda: timm_model("mobilevit_xxs", 64),
    "timm_ghostnet": lambda: timm_model("ghostnet_050", 64),
    "timm_efficientvit": lambda: timm_model("efficientvit_b0", 64),
    "timm_nfnet": lambda: timm_model("nf_resnet26", 64),
    "gpt2": lambda: language(
        "GPT2Config", "GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4, n_positions=32
    ),
    "bert": lambda: language("BertConfig", "BertForMaskedLM", **MLP),
    "distilbert": lambda: language(
        "DistilBertConfig", "DistilBertForMaskedLM", dim=64, n_layers=2, n_heads=4, hidden_dim=128
    ),
    "albert": lambda: language("AlbertConfig", "AlbertForMaskedLM", embedding_size=32, **MLP),
    "llama": lambda: language("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2, **MLP),
    "t5": lambda: language(
        "T5Config",
        "T5ForConditionalGeneration",
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        use_cache=False,
    ),
    "bart": lambda: language(
        "BartConfig",
        "BartForConditionalGeneration",
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=64,
        use_cache=False,
    ),
    "roberta": lambda: language("RobertaConfig", "RobertaForMaskedLM", pad_token_id=0, **MLP),
    "electra": lambda: language("ElectraConfig", "ElectraForMaskedLM", embedding_size=32, **MLP),
    "gpt_neox": lambda: language("GPTNeoXConfig", "GPTNeoXForCausalLM", **DECODER),
    "opt": lambda: language(
        "OPTConfig",
        "OPTForCausalLM",
        ffn_dim=128,
        word_embed_proj_dim=64,
        max_position_embeddings=64,
        use_cache=False,
        **SIZES,
    ),
    "bloom": lambda: language(
        "BloomConfig", "BloomForCausalLM", hidden_size=64, n_layer=2, n_head=4, use_cache=False
    ),
    "phi": lambda: language("PhiConfig", "PhiForCausalLM", **DECODER),
    "mistral": lambda: language("MistralConfig", "MistralForCausalLM", **GROUPED),
    "qwen3": lambda: language("Qwen3Config", "Qwen3ForCausalLM", head_dim=16, **GROUPED),
    "gemma2": lambda: language("Gemma2Config", "Gemma2ForCausalLM", head_dim=16, **GROUPED),
    "mixtral": lambda: language(
        "MixtralConfig", "MixtralForCausalLM", num_local_experts=4, **GROUPED
    ),
    "mamba": lambda: language(
        "MambaConfig", "MambaForCausalLM", hidden_size=64, num_hidden_layers=2, use_cache=False
    ),
}


def digest(tensors: list[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:16]


def train(name: str, way: str, steps: int, device: str) -> dict[str, Any]:
    """Trains from one seed. Returns digests of losses, parameters and buffers."""
    torch.manual_seed(0)
    step, batch = MODELS[name]()
    data = [tuple(t.to(device) for t in batch()) for _ in range(steps)]
    step.to(device).train()
    optimizer = torch.optim.SGD(step.parameters(), lr=1e-2, momentum=0.9)
    call: Any = step
    if way == "aot_eager":
        torch._dynamo.reset()
        call = torch.compile(step, backend="aot_eager")
    elif way != "eager":
        import gravure

        torch._dynamo.reset()
        whole = way == "compile_step"
        call = gravure.compile_step(step) if whole else torch.compile(step, backend="gravure")
    torch.manual_seed(1)
    losses, begun = [], time.perf_counter()
    for x, y in data:
        optimizer.zero_grad(set_to_none=True)
        loss = call(x, y)
        if way != "compile_step":
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    found = {
        "losses": digest(losses),
        "state": digest(list(step.parameters()) + list(step.buffers())),
        "finite": bool(torch.stack(losses).isfinite().all()),
        "seconds": round(time.perf_counter() - begun, 1),
    }
    if way in ("backend", "compile_step"):
        found["report"] = gravure.report()
    return found


def one(name: str, steps: int, device: str) -> dict[str, Any]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    ways = {way: train(name, "eager", steps, device) for way in ("eager", "again")}
    for way in ("backend", "compile_step"):
        try:
            ways[way] = train(name, way, steps, device)
        except Exception as error:  # told in the table
            ways[way] = {"error": f"{type(error).__name__}: {error}"[:400]}
    if "error" not in ways["backend"] and not agree(ways["backend"], ways["eager"]):
        ways["aot_eager"] = train(name, "aot_eager", steps, device)
    return ways


def agree(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(found[key] == expected[key] for key in ("losses", "state"))


def verdict(ways: dict[str, Any], way: str) -> str:
    found = ways[way]
    if "error" in found:
        return found["error"].splitlines()[0][:160]
    if agree(found, ways["eager"]):
        return "every bit"
    traced = ways.get("aot_eager")
    return "as aot_eager" if traced and agree(found, traced) else "DIFFERS"


def spawn(name: str, steps: int, device: str) -> dict[str, Any]:
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [sys.executable, __file__, "--one", name]
    command += ["--steps", str(steps), "--device", device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if lines:
        return json.loads(lines[-1].removeprefix("RESULT "))
    return {"said": (done.stderr or done.stdout).strip().splitlines()[-30:]}


def show(name: str, ways: dict[str, Any]) -> bool:
    if "said" in ways:
        print(f"| {name} | failed: {(ways['said'] or ['?'])[-1][:200]} | | |", flush=True)
        return False
    steady = verdict(ways, "again") == "every bit" and ways["eager"]["finite"]
    cells = [verdict(ways, way) for way in ("backend", "compile_step")]
    print(f"| {name} | {'yes' if steady else 'NO'} | " + " | ".join(cells) + " |", flush=True)
    return steady and cells == ["every bit", "every bit"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", metavar="MODEL")
    options = parser.parse_args()
    if options.one:
        print(
            "RESULT " + json.dumps(one(options.one, options.steps, options.device), default=str),
            flush=True,
        )
        return 0
    names = options.models.split(",")
    print("| model | eager equals itself | backend | compile_step |\n|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(options.at_once) as pool:
        rows = list(pool.map(lambda name: spawn(name, options.steps, options.device), names))
    passed = [show(name, row) for name, row in zip(names, rows, strict=True)]
    out = Path(os.environ.get("OUT", ".")) / "models.json"
    out.write_text(json.dumps(dict(zip(names, rows, strict=True)), indent=1))
    print(f"{sum(passed)} of {len(passed)} models agree in every bit")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
