"""The page about quantisation names every format that is read."""

from __future__ import annotations

import re
from pathlib import Path

from aethermind.checkpoint.gguf_blocks import BLOCK_TYPES
from aethermind.checkpoint.quantized_tensors import METHODS

PAGE = (Path(__file__).parents[3] / "docs" / "using" / "quantization.md").read_text()
TABLE = PAGE[PAGE.index("## Quantised checkpoints") : PAGE.index("## Arithmetic")]


def test_every_block_type_of_gguf_is_in_the_table_with_its_format() -> None:
    rows = [row for row in TABLE.splitlines() if row.startswith("| ")]
    for block in BLOCK_TYPES.values():
        named = [row for row in rows if re.search(rf"\b{block.name}\b", row.partition(" | ")[0])]
        assert any(f"`{block.format_name}`" in row for row in named), block.name


def test_every_method_is_in_the_table() -> None:
    for method in METHODS:
        assert method.casefold() in TABLE.casefold(), method
