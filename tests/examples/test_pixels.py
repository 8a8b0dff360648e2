"""The example of a multimodal package says what transformers says when it is given the same embeddings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.qwen2.checkpoints import VOCAB_SIZE, qwen2, reference_model, write_checkpoint

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import AetherMindError, InvalidArgumentError

IMAGE = VOCAB_SIZE - 1
PATCH_SIZE = 4
CASE = qwen2("pixels")
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
RNG = np.random.default_rng(5)
TALL, WIDE = RNG.random((12, 8, 3)), RNG.random((4, 16, 3))
PROMPT = [3, 17, IMAGE, 40, 5, IMAGE, 9]


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoder alone, as a Qwen2 checkpoint."""
    return write_checkpoint(CASE, tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def checkpoint(text_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoder with a projection of patches beside it."""
    directory = tmp_path_factory.mktemp("pixels")
    config = json.loads((text_model / "config.json").read_text())
    config |= {"architectures": ["PixelsForCausalLM"], "image_token_id": IMAGE, "patch_size": PATCH_SIZE}
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((text_model / name).read_bytes())
    torch.manual_seed(1)
    weights = load_file(text_model / "model.safetensors")
    weights["pixels.projection.weight"] = torch.randn(config["hidden_size"], PATCH_SIZE * PATCH_SIZE * 3) * 0.2
    weights["pixels.projection.bias"] = torch.randn(config["hidden_size"]) * 0.1
    save_file(weights, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def open_pixels(checkpoint: Path, device: str, runtime: Runtime) -> Callable[..., LLM]:
    return lambda **options: LLM(checkpoint, device=device, dtype="float32", runtime=runtime, **options)


@pytest.fixture(scope="module")
def pixels(open_pixels: Callable[..., LLM]) -> Iterator[LLM]:
    with open_pixels(max_num_batched_tokens=64) as llm:
        yield llm


@pytest.fixture(scope="module")
def embed(checkpoint: Path, text_model: Path) -> Callable[[list[int], list[Any]], torch.Tensor]:
    """The embeddings of a prompt with its pictures, by torch's convolution; float64 [n, hidden_size]."""
    weights = load_file(checkpoint / "model.safetensors")
    kernel = weights["pixels.projection.weight"].double().unflatten(1, (PATCH_SIZE, PATCH_SIZE, 3)).permute(0, 3, 1, 2)
    bias = weights["pixels.projection.bias"].double()
    table = reference_model(text_model).get_input_embeddings().weight

    def computed(token_ids: list[int], images: list[Any]) -> torch.Tensor:
        left = iter(images)
        rows = []
        for token_id in token_ids:
            if token_id == IMAGE:
                picture = torch.tensor(next(left)).permute(2, 0, 1)[None]
                patches = torch.nn.functional.conv2d(picture, kernel, bias, stride=PATCH_SIZE)
                rows.append(patches[0].flatten(1).T)
            else:
                rows.append(table[token_id][None])
        return torch.cat(rows).detach()

    return computed


@pytest.fixture(scope="module")
def continued(text_model: Path) -> Callable[[torch.Tensor, int], list[int]]:
    """Transformers' greedy continuation of embeddings, each step over the whole sequence."""
    model = reference_model(text_model)

    def generate(embeddings: torch.Tensor, count: int) -> list[int]:
        token_ids: list[int] = []
        for _ in range(count):
            with torch.no_grad():
                logits = model(inputs_embeds=embeddings[None], use_cache=False).logits[0, -1]
            token_ids.append(int(logits.argmax()))
            embeddings = torch.cat([embeddings, model.get_input_embeddings().weight[token_ids[-1]][None].detach()])
        return token_ids

    return generate


def answers(llm: LLM, *prompts: Any, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(list(prompts), params)]


def with_images(*images: Any, token_ids: list[int] = PROMPT) -> dict[str, Any]:
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"image": list(images)}}


def test_images_in_a_prompt_agree_with_transformers(pixels: LLM, embed: Any, continued: Any) -> None:
    expected = continued(embed(PROMPT, [TALL, WIDE]), GREEDY.max_tokens)
    assert answers(pixels, with_images(TALL, WIDE)) == [expected]
    assert answers(pixels, with_images(WIDE, TALL)) == [continued(embed(PROMPT, [WIDE, TALL]), GREEDY.max_tokens)]


def test_prompts_with_and_without_images_share_a_batch(pixels: LLM, embed: Any, continued: Any) -> None:
    text = {"prompt_token_ids": [8, 2, 77, 31]}
    one = with_images(WIDE, token_ids=[IMAGE, 6])
    expected = [
        continued(embed(token_ids, images), GREEDY.max_tokens)
        for token_ids, images in ((text["prompt_token_ids"], []), (PROMPT, [TALL, WIDE]), ([IMAGE, 6], [WIDE]))
    ]
    assert answers(pixels, text, with_images(TALL, WIDE), one) == expected


def test_chunked_and_preempted_prompts_keep_their_images(open_pixels: Any, embed: Any, continued: Any) -> None:
    prompts = [with_images(TALL, WIDE), with_images(WIDE, TALL)]
    expected = [continued(embed(PROMPT, images), GREEDY.max_tokens) for images in ([TALL, WIDE], [WIDE, TALL])]
    with open_pixels(max_num_batched_tokens=3, max_num_seqs=2, block_size=4, num_kv_blocks=9) as llm:
        outputs = llm.generate(prompts, GREEDY)
        assert [list(output.outputs[0].token_ids) for output in outputs] == expected


def test_embeddings_computed_elsewhere_are_a_prompt(pixels: LLM, embed: Any, continued: Any) -> None:
    embeddings = embed(PROMPT, [TALL, WIDE])
    expected = continued(embeddings, GREEDY.max_tokens)
    assert (
        answers(pixels, {"prompt_embeds": embeddings.float()}, {"prompt_embeds": embeddings.numpy()}) == [expected] * 2
    )


def test_penalties_and_logprobs_work_with_images(pixels: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2, repetition_penalty=1.3)
    (output,) = pixels.generate([with_images(TALL, WIDE)], params)
    assert [len(step) >= 2 for step in output.outputs[0].logprobs] == [True] * 4


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (with_images(TALL), "2 places for images and 1 were given"),
        (with_images(TALL, RNG.random((5, 8, 3))), "multiples of 4, got the shape \\[5, 8, 3\\]"),
        (with_images("a picture", TALL), "array of numbers"),
        (
            {"prompt_token_ids": [1], "multi_modal_data": {"video": []}},
            "takes no video in multi_modal_data, only image",
        ),
        ({"prompt_token_ids": [1], "multi_modal_data": [1]}, "should be a mapping by modality"),
        ({"prompt_embeds": np.ones((2, 7))}, "shape \\[2, 7\\] but the model takes \\[n, 32\\]"),
        ({"prompt_embeds": np.full((2, 32), np.nan)}, "contain NaN or infinity"),
        ({"prompt_embeds": "no"}, "should be an array"),
        ({"prompt_embeds": np.ones((2, 32)), "prompt": "x"}, "A prompt has one of"),
        ({"prompt": "x", "image": TALL}, "A prompt has one of"),
    ],
)
def test_wrong_prompts_are_refused_in_a_sentence(pixels: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        pixels.generate([prompt])
    assert not pixels.engine.has_unfinished


def test_a_model_without_an_input_processor_is_reported(text_model: Path, runtime: Runtime) -> None:
    with (
        LLM(text_model, device="numpy", runtime=runtime) as llm,
        pytest.raises(AetherMindError, match="no installed package has an input processor for Qwen2ForCausalLM"),
    ):
        llm.generate([with_images(TALL, WIDE)])
