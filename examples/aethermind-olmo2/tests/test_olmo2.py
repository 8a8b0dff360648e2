"""Random models compared with transformers: log probabilities at every position of ragged batches, from both file
formats.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import ConfigError
from aethermind.server import Limits, bind, running

RUNTIME = Runtime.boot()
TINY = RUNTIME.models.locate("tiny-olmo2")
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=5, prompt_logprobs=5)
PROMPTS = [np.random.default_rng(length).integers(0, 250, length).tolist() for length in (37, 1, 20)]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {"num_key_value_heads": 2},
    "every_head_its_own": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "one_head_for_all": {"num_key_value_heads": 1, "num_hidden_layers": 3, "rope_parameters": YARN},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Checkpoints of these shapes, with weights for which every norm matters."""

    @cache
    def written(shape: str) -> Path:
        sizes = {"vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
        options = {"num_hidden_layers": 2, "max_position_embeddings": 128, "pad_token_id": 257, **SHAPES[shape]}
        torch.manual_seed(len(shape))
        model = transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**sizes, **options))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(std=1.3 * parameter.shape[-1] ** -0.5)
        folder = tmp_path_factory.mktemp(shape)
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TINY / name, folder)
        return folder

    return written


def assert_parity(model: Path, reference: Path, device: str, **more: int) -> None:
    """The five best log probabilities at every position are those of transformers in float64."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32).double()
    options = {"max_num_seqs": 2, "max_num_batched_tokens": 12, "block_size": 4, "fallback": "error", **more}
    with LLM(model, device=device, dtype="float32", runtime=RUNTIME, **options) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], PARAMS)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        (answer,) = output.outputs
        with torch.no_grad():
            logits = theirs(torch.tensor([[*prompt, *answer.token_ids]])).logits[0]
        expected = torch.log_softmax(logits, dim=-1)
        logprobs = [*output.prompt_logprobs[1:], *answer.logprobs]
        assert len(logprobs) == len(expected) - 1
        for row, favourites in zip(expected, logprobs, strict=False):
            assert len(favourites) >= 5
            for token_id, found in favourites.items():
                assert abs(found.logprob - row[token_id].item()) < 1e-4


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_agrees_with_transformers(checkpoint: Callable[[str], Path], shape: str, device: str) -> None:
    assert_parity(checkpoint(shape), checkpoint(shape), device)


@pytest.mark.parametrize(("shape", "size"), [("grouped", 4), ("every_head_its_own", 2)])
def test_tensor_parallel_ranks_agree_with_transformers(
    checkpoint: Callable[[str], Path], shape: str, size: int
) -> None:
    """Queries and keys are normed over the heads of all ranks."""
    assert_parity(checkpoint(shape), checkpoint(shape), "cpu", tensor_parallel_size=size, num_threads=1)


def as_gguf(folder: Path, path: Path) -> Path:
    """A checkpoint as llama.cpp's converter writes it."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "olmo2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    state = json.loads((folder / "tokenizer.json").read_text())
    tokens = [*state["model"]["vocab"], *(added["content"] for added in state["added_tokens"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("dbrx")
    writer.add_token_list(tokens)
    writer.add_token_types([*[gguf.TokenType.NORMAL] * (len(tokens) - 1), gguf.TokenType.CONTROL])
    writer.add_token_merges([" ".join(merge) for merge in state["model"]["merges"]])
    writer.add_eos_token_id(len(tokens) - 1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.OLMO2, config["num_hidden_layers"])
    for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_the_same_model(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    assert_parity(as_gguf(checkpoint("grouped"), tmp_path / "model.gguf"), checkpoint("grouped"), "cpu")


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_the_tiny_model_counts_to_ten(tmp_path: Path, device: str) -> None:
    for model in (TINY, as_gguf(TINY, tmp_path / "tiny.gguf")):
        with LLM(model, device=device, runtime=RUNTIME) as llm:
            outputs = llm.generate(["one two three", "eight"], SamplingParams(temperature=0.0, max_tokens=64))
        assert [output.outputs[0].text for output in outputs] == [
            " four five six seven eight nine ten",
            " nine ten",
        ]
        assert {output.outputs[0].finish_reason for output in outputs} == {"stop"}


def test_an_unsupported_feature_is_named() -> None:
    with pytest.raises(ConfigError, match="attention_bias is true"):
        RUNTIME.architectures.get("Olmo2ForCausalLM").create({"attention_bias": True})


def test_a_server_separates_reasoning_from_the_answer() -> None:
    """The tiny model does not reason by itself, so a grammar makes it."""
    with LLM(TINY, device="cpu", runtime=RUNTIME) as llm, served(llm) as address:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "one"}], "temperature": 0}
        body |= {"structured_outputs": {"regex": "<think>(one|two)</think>three"}}
        (choice,) = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=300).json()["choices"]
    assert choice["message"]["reasoning_content"] in ("one", "two")
    assert choice["message"]["content"] == "three"


@contextmanager
def served(llm: LLM) -> Iterator[str]:
    """The address of a server in its own thread."""
    is_up, loops, stop = threading.Event(), [], asyncio.Event()

    async def serve() -> None:
        async with running({"tiny": llm}, listening, limits=Limits()):
            loops.append(asyncio.get_running_loop())
            is_up.set()
            await stop.wait()

    with bind("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        try:
            assert is_up.wait(300)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            loops[0].call_soon_threadsafe(stop.set)
            thread.join()
