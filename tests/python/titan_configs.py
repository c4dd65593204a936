"""Configurations of torchtitan 0.3 that its CPU can run: `--module titan_configs`.

Flex attention has no backward there. The pipeline is as `--compile.pass_pipeline` says, so the same
configuration runs with Gravure's pass and without.
"""

from __future__ import annotations

import gravure.torchtitan  # noqa: F401  registers the pipeline
from titan_more_configs import graph_trainer_deepseek_v3_debugmodel_sdpa  # noqa: F401
from torchtitan.experiments.graph_trainer.llama3.config_registry import (  # noqa: F401
    graph_trainer_llama3_debugmodel_sdpa,
    graph_trainer_llama3_debugmodel_sdpa_cross_entropy_loss,
)
