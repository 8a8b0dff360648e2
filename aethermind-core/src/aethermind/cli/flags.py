"""Messages name arguments as Python callers write them; on a command line they are flags."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["with_flags"]


def with_flags(message: str) -> str:
    """A message with flags for arguments: `num_kv_blocks`, `dtype='float32'` and `as dtype` become `--num-kv-blocks`,
    `--dtype float32` and `as --dtype`.

    Words that mean something else in prose are arguments only behind `as` or before an equals sign.
    """
    flags = _flags()
    names = "|".join(sorted(flags, key=len, reverse=True))
    long_names = "|".join(name for name in flags if "_" in name)
    message = re.sub(rf"(?<![\w.'-])({names})='([\w.]+)'", lambda found: f"{flags[found[1]]} {found[2]}", message)
    message = re.sub(rf"(?<=\bas )({names})\b(?![\w=])", lambda found: flags[found[1]], message)
    return re.sub(rf"(?<![\w./'\"-])({long_names})(?![\w='\"/]|\.\w)", lambda found: flags[found[1]], message)


def _flags() -> Mapping[str, str]:
    """The flags of options that set an argument of `LLM` or `SamplingParams`, by that argument."""
    from dataclasses import fields
    from typing import get_type_hints

    from aethermind.cli.groups import EngineOptions, ModelOptions, SamplingOptions, StepOptions

    flags = {}
    for group in (ModelOptions, EngineOptions, StepOptions, SamplingOptions):
        hints = get_type_hints(group, include_extras=True)
        for option in fields(group):
            option_info = hints[option.name].__metadata__[0]
            declared = (option_info.default, *(option_info.param_decls or ()))  # typer takes the first for a default
            long = [text for text in declared if isinstance(text, str) and text.startswith("--")]
            flags[option.name] = long[0].partition("/")[0] if long else f"--{option.name.replace('_', '-')}"
    return flags
