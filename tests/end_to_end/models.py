"""Directories like the demo model's, with something changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aethermind_qwen2

__all__ = ["BOS", "CONFIG", "DEMO", "copy_demo", "copy_demo_with_bos", "poisoned_demo"]

DEMO = Path(aethermind_qwen2.__file__).parent / "demo"
BOS = "<|endoftext|>"
CONFIG: Mapping[str, Any] = json.loads((DEMO / "config.json").read_text())


def copy_demo(
    directory: Path, config: Mapping[str, Any] | None = None, files: Mapping[str, bytes | None] | None = None
) -> Path:
    """Copy the demo model with fields of its config.json changed, and files replaced by others or (None) left out."""
    directory.mkdir()
    for source in DEMO.iterdir():
        shutil.copy(source, directory)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    for name, content in (files or {}).items():
        if content is None:
            (directory / name).unlink()
        else:
            (directory / name).write_bytes(content)
    return directory


def poisoned_demo(folder: Path) -> Path:
    """The demo model, in a new directory below `folder`, with a norm that makes NaN of everything."""
    directory = copy_demo(folder / "poisoned")
    file = directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    first, last = json.loads(content[8:begin])["model.norm.weight"]["data_offsets"]
    content[begin + first : begin + last] = b"\xc0\x7f" * ((last - first) // 2)  # NaN in bfloat16
    file.write_bytes(content)
    return directory


def copy_demo_with_bos(directory: Path) -> Path:
    """The demo model whose tokenizer begins texts with a BOS token, which its chat template writes, too."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    (bos_id,) = (token["id"] for token in tokenizer["added_tokens"] if token["content"] == BOS)
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [bos_id], "tokens": [BOS]}},
    }
    config = json.loads((DEMO / "tokenizer_config.json").read_text())
    config |= {"bos_token": BOS, "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"}
    files = {"tokenizer.json": json.dumps(tokenizer).encode(), "tokenizer_config.json": json.dumps(config).encode()}
    return copy_demo(directory, files=files)
