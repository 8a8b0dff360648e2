"""Directories as sentence-transformers writes them: its own vectors, or a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from aethermind import LLM, Runtime
from aethermind.errors import ConfigError
from aethermind.testing.families import Checkpoints
from aethermind_bert.conformance import CASES

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(40))]
TEXT = " ".join(WORDS[4:24])
HIDDEN_SIZE = 48


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random BERT as the first module, whose texts are cut to 12 tokens."""
    path = Checkpoints(tmp_path_factory.mktemp).directory(CASES[0])
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(path)
    return modules.Transformer(str(path), max_seq_length=12)


@pytest.mark.parametrize("mode", ["cls", "mean", "lasttoken"])
def test_vectors(runtime: Runtime, transformer: Any, mode: str, tmp_path: Path) -> None:
    theirs = SentenceTransformer(modules=[transformer, modules.Pooling(HIDDEN_SIZE, pooling_mode=mode)], device="cpu")
    theirs.save(str(tmp_path))
    with LLM(tmp_path, device="cpu", runtime=runtime) as llm:
        for text in (TEXT, "w3 w4", ""):
            for prompt in (text, {"prompt": text}):
                (found,) = llm.embed(prompt, normalize=False)
                np.testing.assert_allclose(found, theirs.encode(text), rtol=0, atol=1e-5)
        long = " ".join([TEXT] * 2000)
        np.testing.assert_array_equal(llm.embed(long, normalize=False), llm.embed(TEXT, normalize=False))


def test_unsupported_pooling_is_reported_when_an_embedding_is_requested(
    runtime: Runtime, transformer: Any, tmp_path: Path
) -> None:
    pooling = modules.Pooling(HIDDEN_SIZE, pooling_mode="mean")
    theirs = SentenceTransformer(modules=[transformer, pooling, modules.Dense(HIDDEN_SIZE, 24)], device="cpu")
    theirs.save(str(tmp_path))
    with LLM(tmp_path, device="cpu", runtime=runtime) as llm:
        with pytest.raises(ConfigError, match=r"module 'Dense'.*Say which pooling to use instead"):
            llm.embed(TEXT)
        assert llm.embed(TEXT, pooling="mean")[0].shape == (HIDDEN_SIZE,)
