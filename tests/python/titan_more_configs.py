"""Configurations of torchtitan 0.3's graph trainer that its own registries lack.

`--module titan_more_configs`; importing it does not import Gravure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchtitan.experiments.graph_trainer.deepseek_v3 import config_registry as deepseek_v3
from torchtitan.experiments.graph_trainer.llama3 import config_registry as llama3
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.common.param_init import skip_param_init


def graph_trainer_deepseek_v3_debugmodel_sdpa() -> Any:
    config = deepseek_v3.graph_trainer_deepseek_v3_debugmodel()
    config.model_spec = deepseek_v3.model_registry("debugmodel", attn_backend="sdpa")
    return config


def _llama3(flavor: str, layers: int | None = None) -> Any:
    """The debug model's run with another model: no profiler, checkpoint or validation."""
    config = llama3.graph_trainer_llama3_debugmodel_sdpa()
    spec = llama3.model_registry(flavor, attn_backend="sdpa")
    if layers is not None:
        spec = replace(spec, model=replace(spec.model, layers=spec.model.layers[:layers]))
    config.model_spec = spec
    config.loss.loss_fn.global_vocab_size = decoder_vocab_size(spec)
    return config


def graph_trainer_llama3_debugmodel_sdpa_tied() -> Any:
    """Token embeddings and output projection are one parameter, as in the 1B model."""
    config = _llama3("debugmodel")
    embeddings = replace(
        config.model_spec.model.tok_embeddings, param_init={"weight": skip_param_init}
    )
    model = replace(config.model_spec.model, tok_embeddings=embeddings, enable_weight_tying=True)
    config.model_spec = replace(config.model_spec, model=model)
    return config


def graph_trainer_llama3_1b_sdpa() -> Any:
    return _llama3("1B")


def graph_trainer_llama3_8b_sdpa_four_layers() -> Any:
    return _llama3("8B", 4)
