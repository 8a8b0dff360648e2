"""A start with a cached tokenizer does not differ from one without."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from aethermind import LLM, Runtime, SamplingParams, StructuredOutputs
from aethermind.text import tokenizer_cache, tokenizer_files
from aethermind.text.mapped_bpe import MappedBpe

PROMPTS = ["Once upon a time", "<|im_start|>user\nWas the fox kind?<|im_end|>", "Überall 漢字 👍🏽"]


def answers(runtime: Runtime) -> tuple[bool, list[object]]:
    """Whether the tokenizer is mapped, and what the demo model answers, freely and by a grammar."""
    with LLM("demo", max_num_seqs=4, runtime=runtime) as llm:
        is_mapped = isinstance(llm.tokenizer._fast, MappedBpe)
        free = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=12, stop=["."]))
        talk = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(temperature=0.0, max_tokens=8))
        bound = llm.generate(
            "Was the fox kind?",
            SamplingParams(temperature=0.0, max_tokens=8, structured_outputs=StructuredOutputs(choice=["yes", "no"])),
        )
    outputs = [*free, *talk, *bound]
    return is_mapped, [(one.prompt_token_ids, one.outputs[0].token_ids, one.outputs[0].text) for one in outputs]


def test_answers_are_the_same_with_a_cached_tokenizer(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tokenizer_files, "MIN_CACHED_BYTES", 0)
    monkeypatch.setattr(tokenizer_cache, "atexit", SimpleNamespace(register=lambda keep, *arguments: keep(*arguments)))
    monkeypatch.setattr(tokenizer_cache, "_pending", {})
    was_mapped, before = answers(runtime)
    is_mapped, after = answers(runtime)
    assert not was_mapped
    assert is_mapped
    assert after == before
