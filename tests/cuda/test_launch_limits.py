"""What steps of a large model would launch, held against what each target's GPUs have: nothing is run.

Sizes are those at which 32-bit numbers and the directions of grids end: long contexts, large batches, long prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.architecture.sources import ROOT
from tests.cuda.check.qwen2_7b import CONFIG, write_model
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind import Runtime
from aethermind.cache.layers import has_latent
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_graph import GraphKey, GraphKind
from aethermind.graph.plan import Operand, Plan
from aethermind.hal import Probe
from aethermind.model.architecture import cache_layout
from aethermind.ops.dims import resolve
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Launch
from aethermind_cuda.library import Cubins
from aethermind_cuda.parameters import Parameters

SHARED_BYTES = {"80": 163 << 10, "86": 99 << 10, "89": 99 << 10, "90a": 227 << 10, "100f": 227 << 10, "120": 99 << 10}
"""What a block can have at most (CUDA C++ Programming Guide, 20.2); 1 KiB more is the driver's."""
REGISTERS, SCHEDULERS = 65536, 4
"""Of a multiprocessor, whose schedulers have as many registers each."""
CONTEXT = 131_072
FAR = 1 << 46
"""Where arrays lie, as far as anybody looks."""
KEYS = (
    GraphKey(),
    GraphKey(True),
    GraphKey(False, True),
    GraphKey(kind=GraphKind.SCORES),
    GraphKey(kind=GraphKind.KEY_SHIFT),
)
QWEN2 = {**CONFIG, "num_hidden_layers": 1, "max_position_embeddings": CONTEXT}
QWEN3_5 = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 4096,
    "max_position_embeddings": CONTEXT,
}
"""Two layers of Qwen3.5-27B, with a narrow vocabulary."""
MAMBA2 = {
    "architectures": ["Mamba2ForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 2560,
    "expand": 2,
    "num_heads": 80,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
    "vocab_size": 4096,
    "max_position_embeddings": CONTEXT,
}
"""A layer of Mamba-2 2.7B."""
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "vocab_size": 4096,
    "max_position_embeddings": CONTEXT,
}
"""Two layers, one of them a mixture of experts, with a narrow vocabulary."""
DEEPSEEK_V3 = {
    **DEEPSEEK_V2_LITE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
}
"""A dense layer, whose attention has eight times as many heads."""
OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "deterministic": {"dtype": "float16", "deterministic": True},
    "float32": {"dtype": "float32"},
    "recurrent, delta rule": {"dtype": "bfloat16", "config": QWEN3_5},
    "recurrent, Mamba 2": {"dtype": "float32", "config": MAMBA2},
    "latent attention, 16 heads": {"dtype": "bfloat16", "config": DEEPSEEK_V2_LITE},
    "latent attention, 128 heads": {"dtype": "bfloat16", "config": DEEPSEEK_V3, "quantization": "int4"},
    "int4, int8 cache": {"dtype": "bfloat16", "quantization": "int4", "kv_cache_dtype": "int8"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8"},
}


@pytest.fixture(params=list(OPTIONS))
def compiled(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompiledModel:
    """A layer or two of a model, Qwen2-7B unless said otherwise, for 128k tokens and 512 sequences."""
    chosen = dict(OPTIONS[request.param])
    folder = write_model(tmp_path / "model", chosen.pop("config", QWEN2))
    cubins = fake_cubins(tmp_path, [source.stem for source in (ROOT / "aethermind-cuda" / "csrc").glob("*.cu")])
    monkeypatch.setattr("aethermind_cuda.probe.probe", lambda: Probe(1, "a GPU that computes nothing."))
    monkeypatch.setattr("aethermind_cuda.probe.open_backend", lambda: CudaBackend(HostDriver(memory=1 << 40), cubins))
    monkeypatch.setattr("aethermind_cuda.kernels._cublaslt.find_cublaslt", lambda: None)
    options = {"load_format": "dummy", "max_num_batched_tokens": 65536, "max_num_seqs": 512, "num_kv_blocks": 100_000}
    return compile_model(Runtime.boot(), str(folder), device="cuda", **options, **chosen)


def launches(plan: Plan, sizes: Mapping[str, int], facts: DeviceFacts) -> Iterator[Launch]:
    """Of all steps."""

    def array(operand: Operand) -> DeviceArray:
        return DeviceArray(FAR, operand.dtype, resolve(operand.shape, sizes))

    for step in plan.steps:
        inputs = tuple(None if operand is None else array(operand) for operand in step.inputs)
        function: Any = step.kernel.function
        for work in function(Call(inputs, tuple(map(array, step.outputs)), step.attributes, facts, FAR)):
            assert isinstance(work, Launch)
            yield work


def assert_fits(launch: Launch, manifest: Mapping[str, Any], available: int) -> None:
    """By the limits of grids and blocks, and by what the compiled kernel takes in targets with the shared memory."""
    (x, y, z), threads = launch.grid, launch.block[0] * launch.block[1] * launch.block[2]
    assert x < 1 << 31, launch
    assert max(y, z) < 1 << 16, launch
    assert 0 < threads <= 1024, launch
    assert threads % 32 == 0, launch
    for target, built in manifest[launch.source]["targets"].items():
        if SHARED_BYTES[target] < available:
            continue
        usage = built["kernels"][launch.kernel]
        of_a_warp = -(-usage["registers"] * 32 // 256) * 256
        warps_of_a_scheduler = -(-threads // 32 // SCHEDULERS)
        assert warps_of_a_scheduler * of_a_warp <= REGISTERS // SCHEDULERS, (launch, target, usage)
        assert usage["shared_bytes"] + launch.shared_bytes <= SHARED_BYTES[target], (launch, target, usage)
    Parameters(launch.arguments)  # none of the numbers is too large for its parameter


def test_every_launch_fits_every_gpu(compiled: CompiledModel) -> None:
    manifest = Cubins().operators
    assert manifest, "There are no compiled kernels: run `make cuda-kernels`."
    names = set()
    is_latent = has_latent(cache_layout(compiled.model))
    for key in KEYS:
        if is_latent and key.kind is GraphKind.KEY_SHIFT:
            continue
        plan = compiled.compile(key).plan
        most = dict(plan.symbols)
        batch = {name: min(512, size) for name, size in most.items() if name in ("T", "S", "R")}
        drafts = {name: {"T": min(5, size), "S": 1, "R": 1}.get(name, size) for name, size in most.items()}
        of_steps = (
            most,
            {**dict.fromkeys(most, 0), **batch, "B": most.get("B", 0)},
            {**most, "S": 1, "R": 1},
            drafts,
        )
        for sizes, shared_bytes in product(of_steps, (min(SHARED_BYTES.values()), max(SHARED_BYTES.values()))):
            facts = DeviceFacts((9, 0), 132, shared_bytes)
            for launch in launches(plan, {name: sizes[name] for name in most}, facts):
                names.add(launch.source)
                if all(launch.grid):
                    assert_fits(launch, manifest, facts.shared_bytes)
    assert {"embedding", "sample_tokens", "adjust_logits", "token_logprobs"} <= names
    assert any(name.startswith(("paged_attention", "ssd_scan", "mla_attention")) for name in names)
