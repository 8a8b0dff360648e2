"""`aethermind quantize`: folders of compressed-tensors against their original weights, and what is refused."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import typer.testing
from tests.qwen2.checkpoints import qwen2, reference_model

from aethermind import Runtime
from aethermind.cli.app import app
from aethermind.cli.bench.quality import compare_logits
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.quantize import activation_importance, find_matrices
from aethermind.testing.families import ModelCase
from aethermind.testing.families.transformers_reference import outputs_of

CheckpointOf = Callable[[ModelCase], Path]
CASE = qwen2("written", hidden_size=64, intermediate_size=128, vocab_size=2048)
MOE = ModelCase("written_moe", "Qwen3MoeForCausalLM", {**CASE.config, "num_experts": 4, "num_experts_per_tok": 2,
                                                       "moe_intermediate_size": 32, "head_dim": 16})  # fmt: skip
TEXT = "Once upon a time there was a lighthouse, and its keeper counted the ships that passed. " * 6


def run(*args: str | Path) -> typer.testing.Result:
    device = () if "--device" in args else ("--device", "numpy")
    return typer.testing.CliRunner().invoke(app, ["quantize", *map(str, args), *device])


def written(*args: str | Path) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for file in folder.glob("*.safetensors")
        for name, tensor in safetensors.torch.load_file(file).items()
    }


def dequantised(parts: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    """The values of a matrix, float64, from any of the layouts."""
    scale = parts[f"{module}.weight_scale"].double()
    if f"{module}.weight_packed" in parts:
        rows, columns = parts[f"{module}.weight_shape"].tolist()
        packed = parts[f"{module}.weight_packed"].numpy().view(np.uint8)
        if packed.shape[1] < columns:  # 4 bits
            packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, -1)
        middle = 8 if packed.max() < 16 else 128
        codes = torch.from_numpy(packed[:, :columns].astype(np.float64) - middle)
    else:
        codes = parts[f"{module}.weight"].double()
    return (codes.view(len(codes), scale.shape[1], -1) * scale[..., None]).view(len(codes), -1)


@pytest.mark.parametrize("name", ["int4_g32", "int4_g64", "int8_channel", "fp8", "w8a8"])
def test_a_folder_has_the_weights_the_configuration_and_all_other_files(
    checkpoint: CheckpointOf, tmp_path: Path, name: str
) -> None:
    source, out = checkpoint(CASE), tmp_path / "out"
    record = written(source, "--to", name, "--out", out, "--quality-tokens", "0")
    original, found = weights_of(source), weights_of(out)
    modules = [one.removesuffix("_scale").removesuffix(".weight") for one in found if one.endswith("_scale")]
    assert sorted(f"{module}.weight" for module in modules) == sorted(
        one for one in original if one.endswith("_proj.weight")
    )
    assert record["num_matrices"] == len(modules) == 14
    for module in modules:
        weight = original[f"{module}.weight"].double()
        assert torch.linalg.norm(dequantised(found, module) - weight) < (
            0.2 if "4" in name else 0.04
        ) * torch.linalg.norm(weight)
    for one in original:
        if not one.endswith("_proj.weight"):
            assert torch.equal(found[one], original[one])
    config = json.loads((out / "config.json").read_text())
    described = config.pop("quantization_config")
    assert config == json.loads((source / "config.json").read_text())
    assert described["ignore"] == ["lm_head"]
    assert described["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert not list(tmp_path.glob("*.part*"))
    assert record["nbytes"] == sum(tensor.nbytes for tensor in found.values())


def test_the_importance_is_the_mean_square_of_each_input_channel(checkpoint: CheckpointOf, runtime: Runtime) -> None:
    """Against hooks on transformers' linear layers, in windows of a text."""
    folder, sums = checkpoint(CASE), dict[str, Any]()
    options: Any = {"device": "numpy", "dtype": "float32", "max_model_len": 32, "num_kv_blocks": 4, "fallback": "allow"}
    compiled = compile_model(runtime, folder, max_num_batched_tokens=32, weight_cache=0.0, **options)
    windows = [list(range(3, 33)), list(range(40, 58))]
    found = activation_importance(compiled, windows)
    model = reference_model(folder)

    def add(name: str) -> Any:
        def hook(_: Any, args: Any) -> None:
            sums[name] = sums.get(name, 0) + (args[0].reshape(-1, args[0].shape[-1]) ** 2).sum(0)

        return hook

    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    handles = [module.register_forward_pre_hook(add(f"{name}.weight")) for name, module in linear.items()]
    with torch.no_grad():
        for window in windows:
            model(torch.tensor([window]))
    for handle in handles:
        handle.remove()
    assert found.keys() == sums.keys() == {f"{name}.weight" for name in linear}
    for name, expected in sums.items():
        np.testing.assert_allclose(found[name], expected.numpy() / 48, rtol=1e-4)


def test_experts_are_quantised_and_their_router_is_not(checkpoint: CheckpointOf, runtime: Runtime) -> None:
    options: Any = {"device": "numpy", "dtype": "float32", "fallback": "allow", "max_model_len": 32, "num_kv_blocks": 4}
    compiled = compile_model(runtime, checkpoint(MOE), max_num_batched_tokens=32, weight_cache=0.0, **options)
    stored = compiled.source.weights()
    matrices = find_matrices(compiled, stored)
    experts = [name for name in stored.names if ".experts." in name]
    assert len(experts) == 2 * 4 * 3
    assert set(experts) < matrices.linear.keys()
    assert {matrices.linear[name] for name in experts if "layers.0" in name and "up_proj" in name} == {
        "model.layers.0.mlp.experts.up_proj.weight"
    }
    assert not any(name.endswith("mlp.gate.weight") for name in matrices.linear)
    importance = activation_importance(compiled, [list(range(3, 33))])
    assert set(matrices.linear.values()) <= importance.keys()


def test_importance_helps_where_channels_differ(checkpoint: CheckpointOf, tmp_path: Path) -> None:
    """On another text, by transformers with the dequantised weights. Norms give some channels large activations."""
    folder = tmp_path / "outliers"
    shutil.copytree(checkpoint(CASE), folder)
    weights = weights_of(folder)
    for name, tensor in weights.items():
        if name.endswith("norm.weight"):
            tensor[::7] *= 8
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model, text = copy.deepcopy(reference_model(folder)), tmp_path / "text.txt"
    text.write_text(TEXT)
    other = np.random.default_rng(5).integers(5, 2000, 64).tolist()
    expected = outputs_of(model, other)
    kl = {}
    for label, more in {"without": (), "with": ("--imatrix", text)}.items():
        out = tmp_path / label
        written(folder, "--to", "int4_g64", "--out", out, "--quality-tokens", "0", *more)
        parts = weights_of(out)
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.data = dequantised(parts, name.removesuffix(".weight"))
        kl[label] = compare_logits(expected, outputs_of(model, other)).kl_mean
    assert 0 < kl["with"] < 0.9 * kl["without"]


@pytest.mark.parametrize("name", ["int4_g32", "int8_channel", "fp8", "w8a8"])
def test_the_result_is_compared_with_the_model(checkpoint: CheckpointOf, tmp_path: Path, name: str) -> None:
    found = written(checkpoint(CASE), "--to", name, "--out", tmp_path / "out", "--quality-tokens", "48")["quality"]
    assert (found["num_tokens"], found["text"]) == (48, None)
    assert 0 < found["kl_mean"] < (0.1 if "4" in name else 0.01)


def test_what_exists_is_replaced_by_force_only_and_if_it_is_a_model(checkpoint: CheckpointOf, tmp_path: Path) -> None:
    source, out = checkpoint(CASE), tmp_path / "out"
    options = ("--to", "int8_channel", "--quality-tokens", "0")
    written(source, "--out", out, *options)
    refused = run(source, "--out", out, *options)
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    (out / "left.json").write_text("from before")
    written(source, "--out", out, *options, "--force")
    assert not (out / "left.json").exists()
    other = tmp_path / "letters"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    refused = run(source, "--out", other, *options, "--force")
    assert (refused.exit_code, "not a folder of a quantised model alone" in refused.stderr) == (2, True)
    assert (other / "letter.txt").exists()
    refused = run(source, "--out", source, *options, "--force")
    assert (refused.exit_code, "the model itself" in refused.stderr) == (2, True)


def test_force_keeps_files_that_are_not_part_of_a_quantised_model(checkpoint: CheckpointOf, tmp_path: Path) -> None:
    out, options = tmp_path / "out", ("--to", "int8_channel", "--quality-tokens", "0", "--force")
    written(checkpoint(CASE), "--out", out, *options)
    for foreign in (out / "notes.txt", out / "sub" / "precious.json"):
        foreign.parent.mkdir(exist_ok=True)
        foreign.write_text("mine")
        assert run(checkpoint(CASE), "--out", out, *options).exit_code == 2
        assert foreign.read_text() == "mine"
        shutil.rmtree(foreign.parent) if foreign.parent != out else foreign.unlink()
    dense = tmp_path / "dense"
    shutil.copytree(checkpoint(CASE), dense)
    assert run(checkpoint(CASE), "--out", dense, *options).exit_code == 2, "not one that was quantised"
    thesis = tmp_path / "thesis.gguf"
    thesis.write_text("chapter 1")
    assert run(checkpoint(CASE), "--to", "q8_0", "--out", thesis, "--force").exit_code == 2
    assert thesis.read_text() == "chapter 1"


def test_links_lead_to_no_loss(checkpoint: CheckpointOf, tmp_path: Path) -> None:
    """Neither to a folder that holds the source's files, nor to one that the name of the output is a link to."""
    options = ("--to", "int8_channel", "--quality-tokens", "0", "--force")
    quantised, links, link = tmp_path / "quantised", tmp_path / "links", tmp_path / "link"
    written(checkpoint(CASE), "--out", quantised, *options)
    links.mkdir()
    for file in quantised.iterdir():
        (links / file.name).symlink_to(file)
    link.symlink_to(quantised)
    for source, out in ((links, quantised), (checkpoint(CASE), link)):
        assert run(source, "--out", out, *options).exit_code == 2
    assert {file.name for file in quantised.iterdir()} == {file.name for file in links.iterdir()}
    assert link.is_symlink()


def test_a_text_without_tokens_is_told_before_the_work(checkpoint: CheckpointOf, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    for more in (("--quality", tmp_path / "empty.txt"), ("--quality-tokens", "1")):
        result = run(checkpoint(CASE), "--to", "fp8", "--out", tmp_path / "x", *more)
        assert (result.exit_code, (tmp_path / "x").exists()) == (2, False), result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--to", "int5", "--out", "x"), "There is no format 'int5' to write"),
        (("--to", "int4_g128", "--out", "{tmp}/x"), "not a multiple of the group size 128"),
        (("--to", "fp8", "--out", "{tmp}/none/x"), "is not a directory. Create it first"),
        (("--to", "fp8", "--out", "{tmp}/x", "--imatrix", "{tmp}/none.txt"), "There is no text"),
        (("--to", "fp8"), "--out"),
    ],
)
def test_mistakes_are_one_sentence(checkpoint: CheckpointOf, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    result = run(checkpoint(CASE), *(arg.replace("{tmp}", str(tmp_path)) for arg in args))
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_before_and_during_the_work(
    checkpoint: CheckpointOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        result = run(checkpoint(CASE), "--to", "fp8", "--out", tmp_path / "x")
    assert (result.exit_code, " 0 MB free" in result.stderr) == (2, True)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("aethermind.engine.quantize.compressed_tensors.write_safetensors", full)
    result = run(checkpoint(CASE), "--to", "fp8", "--out", tmp_path / "x")
    assert (result.exit_code, "No space left" in result.stderr) == (2, True)
    assert not list(tmp_path.iterdir())
