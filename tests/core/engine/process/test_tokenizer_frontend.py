"""What a process knows of a model whose engine is elsewhere."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.models import copy_demo

from aethermind import Runtime
from aethermind.engine.process.client import TokenizerFrontend
from aethermind.engine.requests.prompt_reader import TextToEmbed


def test_only_texts_to_embed_are_truncated(tmp_path: Path, runtime: Runtime) -> None:
    limits = {"modules.json": b"[]", "sentence_bert_config.json": b'{"max_seq_length": 3}'}
    face = TokenizerFrontend.open(runtime, copy_demo(tmp_path / "model", files=limits), None)
    text = "Once upon a time there was an old fox. " * 1000
    whole = face.tokenizer.encode(text)
    assert face.prompts.read(TextToEmbed(text)).token_ids == whole[:3]
    assert face.prompts.read(text).token_ids == whole
