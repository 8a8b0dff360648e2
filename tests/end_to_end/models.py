"""Directories like the demo model's, with something changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aethermind_qwen2

__all__ = ["CONFIG", "DEMO", "copy_demo"]

DEMO = Path(aethermind_qwen2.__file__).parent / "demo"
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
