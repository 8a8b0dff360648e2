"""gpt-oss in the forms in which it is published, and its configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from tests.end_to_end.gguf_files import add_config, add_tokenizer
from tests.qwen2.checkpoints import write_checkpoint

from aethermind import LLM, Runtime
from aethermind.engine.text_pass import text_logits
from aethermind.errors import ConfigError
from aethermind.model import Paged, Window
from aethermind.testing.families import ModelCase
from aethermind.testing.families.transformers_reference import outputs_of, pretrained
from aethermind_gpt_oss.architecture import GPT_OSS
from aethermind_gpt_oss.conformance import CASES

CONFIG = {
    **CASES[0].config,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "swiglu_limit": 7.0,  # .gguf files do not have it
}
TEXT = np.random.default_rng(4).integers(0, 131, 40).tolist()
EXPERTS = "model.layers.{layer}.mlp.experts"
MXFP4 = gguf.GGMLQuantizationType.MXFP4
Tensors = dict[str, torch.Tensor]


class Published:
    """A model whose experts are multiples of mxfp4's elements: its checkpoint, and the logits of `TEXT`."""

    def __init__(self, folder: Path) -> None:
        self.directory = write_checkpoint(ModelCase("published", "GptOssForCausalLM", CONFIG), folder)
        self.tensors: Tensors = safetensors.torch.load_file(folder / "model.safetensors")
        self.blocks: dict[str, np.ndarray[Any, Any]] = {}
        """The experts as the gguf library quantises them: bytes [E, N, K / 32, 17]."""
        for name in [name for name in self.tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            matrices = self.tensors[name].numpy().swapaxes(1, 2)
            blocks = gguf.quantize(np.ascontiguousarray(matrices), MXFP4)
            self.tensors[name] = torch.tensor(gguf.dequantize(blocks, MXFP4).swapaxes(1, 2).copy())
            self.blocks[name] = blocks.reshape(*matrices.shape[:2], -1, 17)
        safetensors.torch.save_file(self.tensors, folder / "model.safetensors")
        self.logits = outputs_of(pretrained("GptOssForCausalLM", folder), TEXT)

    def error_of(self, path: Path, runtime: Runtime, device: str = "numpy") -> float:
        """The largest error of a logit as a fraction of its row's largest."""
        with LLM(path, device=device, dtype="float32", max_num_seqs=40, runtime=runtime, num_threads=1) as llm:
            found = text_logits(llm.engine, TEXT)
        return float((np.abs(found - self.logits).max(axis=1) / np.abs(self.logits).max(axis=1)).max())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def as_mxfp4(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as OpenAI publishes it: neighbours share a byte, where blocks of GGUF pair values 16 apart."""
    folder = tmp_path_factory.mktemp("mxfp4")
    tensors = {name: tensor for name, tensor in published.tensors.items() if name not in published.blocks}
    for name, blocks in published.blocks.items():
        packed = blocks[..., 1:]
        codes = np.concatenate([packed & 15, packed >> 4], axis=-1)
        tensors[f"{name}_blocks"] = torch.tensor(codes[..., ::2] | codes[..., 1::2] << 4)
        tensors[f"{name}_scales"] = torch.tensor(blocks[..., 0].copy())
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(published.directory / name, folder)
    config = json.loads((published.directory / "config.json").read_text())
    described = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": described}))
    return folder


def as_gguf(published: Published, path: Path) -> Path:
    """The model as llama.cpp converts it: a tensor for each projection, biases [E, N]."""
    writer = gguf.GGUFWriter(path, "gpt-oss")
    add_config(writer, CONFIG)
    writer.add_sliding_window(CONFIG["sliding_window"])
    add_tokenizer(writer, published.directory, CONFIG["vocab_size"], pre="gpt-4o")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, CONFIG["num_hidden_layers"])
    rows = {"gate": slice(0, None, 2), "up": slice(1, None, 2)}
    for name, tensor in published.tensors.items():
        values = tensor.float().numpy()
        if name.endswith("sinks"):
            writer.add_tensor(f"blk.{name.split('.')[2]}.attn_sinks.weight", values)
        elif ".experts." not in name:
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), values)
        else:
            base = f"blk.{name.split('.')[2]}.ffn"
            chosen = rows if "gate_up" in name else {"down": slice(None)}
            for projection, part in chosen.items():
                if name.endswith("bias"):
                    writer.add_tensor(f"{base}_{projection}_exps.bias", np.ascontiguousarray(values[:, part]))
                    continue
                blocks = published.blocks[name][:, part].reshape(len(values), -1, published.blocks[name].shape[2] * 17)
                writer.add_tensor(f"{base}_{projection}_exps.weight", np.ascontiguousarray(blocks), raw_dtype=MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def experts_of(runtime: Runtime, path: Path) -> Mapping[str, str]:
    """The formats of the experts' weights."""
    with LLM(path, device="numpy", dtype="float32", runtime=runtime) as llm:
        formats = llm.engine.compiled.weight_formats
    return {name: format.name for name, format in formats.items()}


def test_experts_in_mxfp4_compute_what_their_values_do(published: Published, as_mxfp4: Path, runtime: Runtime) -> None:
    assert published.error_of(published.directory, runtime) < 1e-5
    assert published.error_of(as_mxfp4, runtime) < 1e-5
    formats = experts_of(runtime, as_mxfp4)
    projections = [f"{EXPERTS}.{name}_proj.weight" for name in ("gate", "up", "down")]
    assert formats == {name.format(layer=layer): "mxfp4" for layer in range(2) for name in projections}


def test_native_kernels_compute_with_the_same_weights(published: Published, as_mxfp4: Path, runtime: Runtime) -> None:
    """Beside weights, their products quantise activations to 8 bits, as those of all quantised weights do."""
    assert published.error_of(as_mxfp4, runtime, "cpu") < 0.03
    with LLM(as_mxfp4, device="cpu", dtype="float32", runtime=runtime) as llm:
        plan = llm.engine.compiled.step.plan
    experts = [key for key, constant in plan.constants.items() if ".experts." in key and key.count("weight")]
    assert {plan.constants[key].pack for key in experts} == {"panels16_mxfp4"}


def test_a_gguf_file_computes_the_same(published: Published, runtime: Runtime, tmp_path: Path) -> None:
    path = as_gguf(published, tmp_path / "model.gguf")
    assert published.error_of(path, runtime) < 1e-5
    assert set(experts_of(runtime, path).values()) == {"mxfp4"}


def test_an_empty_config_means_what_transformers_takes_it_for() -> None:
    model, theirs = GPT_OSS.create({}), transformers.GptOssConfig()
    for name in ("hidden_size", "num_hidden_layers", "head_dim", "vocab_size", "max_position_embeddings"):
        assert getattr(model.config, name) == getattr(theirs, name), name
    assert (model.mixture.num_experts, model.mixture.width) == (theirs.num_local_experts, theirs.intermediate_size)
    assert model.config.rope.theta == theirs.rope_parameters["rope_theta"]
    assert model.config.rope.truncate is theirs.rope_parameters["truncate"] is False
    assert model.config.rope.max_positions == theirs.max_position_embeddings


def test_every_second_layer_has_a_window() -> None:
    layout = GPT_OSS.create(CONFIG).cache_layout()
    assert layout == (Window(2, 16, 16, 8), Paged(2, 16, 16))


@pytest.mark.parametrize(("field", "value"), [("swiglu_limit", 0), ("swiglu_alpha", "large")])
def test_numbers_of_the_activation_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} in config.json should be a positive number"):
        GPT_OSS.create({**CONFIG, field: value})
