"""The shapes of Qwen2-7B (config.json of Qwen/Qwen2-7B), for weights that are made up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["CONFIG", "NUM_PARAMETERS", "PROMPT_TOKENS", "SMALL_CONFIG", "write_model"]

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
SMALL_CONFIG = CONFIG | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
}
"""For a rehearsal."""
NUM_PARAMETERS = 7_615_616_512
PROMPT_TOKENS = 512


def write_model(folder: Path, config: Mapping[str, Any] = CONFIG) -> Path:
    """A folder with a configuration and the demo model's tokenizer."""
    import aethermind_qwen2

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(aethermind_qwen2.__file__).parent / "demo" / name, folder / name)
    return folder
