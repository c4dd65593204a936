"""The small tokenizer, data set and configuration that torchtitan 0.2.2 trains with here."""

from __future__ import annotations

import json
import random
from pathlib import Path

_CONFIG = """
[job]
dump_folder = "./outputs"
[metrics]
log_freq = 1
disable_color_printing = true
[model]
name = "compiler_toolkit.llama3"
flavor = "debugmodel"
hf_assets_path = "./tests/assets/tokenizer"
[training]
local_batch_size = 2
seq_len = 32
steps = 6
dataset = "c4_test"
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "none"
[debug]
seed = 0
deterministic = true
"""


def write_assets(folder: Path, count: int = 99) -> None:
    """`count` texts; `debug.toml` beside them names them all relative to `folder`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    choose = random.Random(0).choices
    words = "graph plan pool warm tensor loss".split()
    texts = [" ".join(choose(words, k=99)) for _ in range(count)]
    data, tokens = (folder / "tests/assets" / name for name in ("c4_test", "tokenizer"))
    data.mkdir(parents=True)
    tokens.mkdir(parents=True)
    lines = [json.dumps({"text": text, "timestamp": "", "url": ""}) for text in texts]
    (data / "data.json").write_text("\n".join(lines) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special)
    )
    tokenizer.save(str(tokens / "tokenizer.json"))
    named = {"bos_token": special[0], "eos_token": special[1]}
    named["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tokens / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "debug.toml").write_text(_CONFIG)
