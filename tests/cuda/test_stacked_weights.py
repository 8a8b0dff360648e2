"""Weights that lie one behind the other are one matrix for cuBLASLt, and the kernels behind it read its columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.cuda.emulator.cublaslt import EmulatedCublasLt
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.emulator.opening import emulated_cuda
from tests.sim import small_model

from aethermind import LLM, SamplingParams
from aethermind.dispatch import Kernel
from aethermind.hal import DType
from aethermind.ops.catalog.feed_forward import GATE_UP_SILU
from aethermind.ops.operator import Operator, Sample
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.kernel_cases import kernel_cases
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cuda.cublas import WORKSPACE_BYTES, DenseProduct
from aethermind_cuda.kernels import gate_up_silu, qkv_rope_cache_write
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, KernelFunction, Launch

RUNTIME = Runtime.boot()
PROMPTS = ["Once upon a time there was a", "A little fox ran over the snow"]
BF16 = DType.BFLOAT16
KERNELS = (*gate_up_silu.KERNELS, *qkv_rope_cache_write.KERNELS)
BY_CUBLASLT = [kernel for kernel in KERNELS if kernel.name == "cuda/cublaslt"]
CASES = [
    case
    for case in kernel_cases(RUNTIME.operators, BY_CUBLASLT, RUNTIME.weight_formats)
    if len(case.sample.inputs[0]) > 32
]


class Emulated(NamedTuple):
    driver: EmulatedDriver
    cublaslt: EmulatedCublasLt
    opened: OpenDevice


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    """A GPU with cuBLASLt."""
    folder: Path = tmp_path_factory.mktemp("cubins")
    with emulated_cuda(folder) as driver, pytest.MonkeyPatch.context() as patch:
        cublaslt = EmulatedCublasLt(driver)
        for module in ("kernels._cublaslt", "library"):
            patch.setattr(f"aethermind_cuda.{module}.find_cublaslt", lambda: cublaslt)
        opened = Runtime.boot().open_device("cuda")
        yield Emulated(driver, cublaslt, opened)
        opened.backend.close()


@pytest.fixture
def products(emulated: Emulated) -> list[tuple[int, int, int]]:
    """Those of a test."""
    emulated.cublaslt.products.clear()
    return emulated.cublaslt.products


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: KernelCase, emulated: Emulated, products: list[tuple[int, int, int]]) -> None:
    """Every sample of more tokens than our own kernels take, adjacent where the sizes of its weights allow it."""
    check_kernel(case, RUNTIME.operators, emulated.opened)
    x, *weights = case.sample.inputs[: 3 if case.operator is GATE_UP_SILU else 4]
    # Biases are no constants of such a plan: theirs are tested by a model.
    has_bias = case.operator is not GATE_UP_SILU and case.sample.inputs[4] is not None
    is_adjacent = not has_bias and all(array.size * case.float_type.itemsize % 256 == 0 for array in weights)
    num_runs, rest = divmod(len(products), 1 if is_adjacent else len(weights))
    assert rest == 0
    assert num_runs >= 1
    if is_adjacent:
        assert products == [(len(x), sum(map(len, weights)), x.shape[1])] * num_runs
    else:
        assert sorted(products) == sorted([(len(x), len(weight), x.shape[1]) for weight in weights] * num_runs)


def test_samples_with_and_without_adjacent_weights() -> None:
    labels = {case.sample.label for case in CASES}
    assert {"whole_vectors_bias", "whole_vectors_norm", "prefill_bias"} <= labels


def test_a_model_with_biases(products: list[Any], tmp_path: Path) -> None:
    """Its answers are those of the `numpy` device, and the prompts' projections are two products a layer."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("HIDDEN", 128), ("HEAD_DIM", 32), ("INTERMEDIATE", 64)):
            patch.setattr(small_model, name, size)
        model = small_model.write_small_model(Path(RUNTIME.models.locate("demo")), tmp_path / "model")
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    answers = []
    for device in ("cuda", "numpy"):
        llm = LLM(str(model), device=device, runtime=Runtime.boot(), dtype="float32", max_model_len=64)
        answers.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)])
        llm.close()
    assert answers[0] == answers[1]
    of_prompts = [(num_outputs, num_inputs) for tokens, num_outputs, num_inputs in products if tokens > 8]
    assert (128 + 2 * 64, 128) in of_prompts
    assert (2 * 64, 128) in of_prompts
    assert of_prompts.count((256, 128)) == small_model.NUM_LAYERS


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, BF16], ids=str)
@pytest.mark.parametrize("inner", [32, 36, 1088], ids="{} outputs".format)
def test_halves_of_rows_are_gated(emulated: Emulated, products: list[Any], inner: int, dtype: DType) -> None:
    """Rows that are whole vectors, and that are not."""
    rng = np.random.default_rng(inner)
    x, gate, up = (rng.standard_normal((rows, 64)) for rows in (33, inner, inner))
    kernel = next(kernel for kernel in BY_CUBLASLT if kernel.operator == "gate_up_silu")
    gates = emulated.driver.launched[f"elementwise_silu_mul_halves_{dtype}"]
    check_kernel(
        KernelCase(GATE_UP_SILU, kernel, dtype, Sample("", (x, gate / 8, up), {}), None),
        RUNTIME.operators,
        emulated.opened,
    )
    assert set(products) == {(33, 2 * inner, 64)}
    assert emulated.driver.launched[f"elementwise_silu_mul_halves_{dtype}"] == gates + len(products)


A100, H200 = DeviceFacts((8, 0), 108, 163 << 10), DeviceFacts((9, 0), 132, 227 << 10)


def adjacent(begin: int, *shapes: tuple[int, ...], gap: int = 0) -> list[DeviceArray]:
    """Arrays one behind the other, or with a gap before the last."""
    arrays = []
    for position, shape in enumerate(shapes):
        begin += gap * (position == len(shapes) - 1)
        arrays.append(DeviceArray(begin, BF16, shape))
        begin += arrays[-1].nbytes
    return arrays


def work_of(
    device: DeviceFacts,
    kernel: Kernel,
    inputs: Sequence[DeviceArray | None],
    outputs: Sequence[DeviceArray],
    **attributes: Any,
) -> list[Any]:
    assert isinstance(kernel.function, KernelFunction)
    return [*kernel.function(Call(tuple(inputs), tuple(outputs), attributes, device, 1 << 40))]


def qkv_work(num_tokens: int, gap: int = 0, bias_gap: int = 0, device: DeviceFacts = A100) -> list[Any]:
    """Of the shapes of Qwen2-7B."""
    heads = 3584, 512, 512
    weights = adjacent(1 << 30, *((rows, 3584) for rows in heads), gap=gap)
    biases = adjacent(2 << 30, *((rows,) for rows in heads), gap=bias_gap)
    x, out = DeviceArray(3 << 30, BF16, (num_tokens, 3584)), DeviceArray(4 << 30, BF16, (num_tokens, 28, 128))
    table, slots = (
        DeviceArray(5 << 30, DType.FLOAT32, (num_tokens, 128)),
        DeviceArray(6 << 30, DType.INT64, (num_tokens,)),
    )
    caches = [DeviceArray(place << 30, BF16, (100, 4, 16, 128)) for place in (7, 8)]
    kernel = next(kernel for kernel in BY_CUBLASLT if kernel.operator == "qkv_rope_cache_write")
    return work_of(device, kernel, (x, *weights, *biases, None, None, table, slots, *caches), (out, *caches), eps=1e-6)


def gate_up_work(num_tokens: int, gap: int = 0, device: DeviceFacts = A100) -> list[Any]:
    weights = adjacent(1 << 30, (18944, 3584), (18944, 3584), gap=gap)
    kernel = next(kernel for kernel in BY_CUBLASLT if kernel.operator == "gate_up_silu")
    x, out = (DeviceArray(place << 31, BF16, (num_tokens, width)) for place, width in ((3, 3584), (4, 18944)))
    return work_of(device, kernel, (x, *weights), (out,))


@pytest.mark.parametrize("num_tokens", [9, 33, 64, 256, 2048])
def test_projections_of_a_layer_are_one_product(num_tokens: int) -> None:
    product, finish = qkv_work(num_tokens)
    assert isinstance(product, DenseProduct)
    assert (product.out.shape, product.weight.shape) == ((num_tokens, 4608), (4608, 3584))
    assert product.bias is not None
    assert (product.bias.address, product.bias.shape) == (2 << 30, (4608,))
    assert product.out.address == product.workspace + WORKSPACE_BYTES
    assert finish.source == "qkv_rope_cache_write"
    assert finish.grid[0] * finish.block[0] >= num_tokens * 36 * 8 > (finish.grid[0] - 1) * finish.block[0]


@pytest.mark.parametrize(("gap", "bias_gap"), [(256, 0), (0, 256)])
def test_weights_or_biases_with_a_gap_are_three_products(gap: int, bias_gap: int) -> None:
    *products, finish = qkv_work(33, gap, bias_gap)
    assert [product.out.shape[1] for product in products] == [3584, 512, 512]
    assert isinstance(finish, Launch)
    assert [len(qkv_work(num_tokens, gap, bias_gap)) for num_tokens in (1, 8, 9, 32)] == [2] * 4


@pytest.mark.parametrize("num_tokens", [9, 33, 512])
def test_gate_and_up_are_one_product(num_tokens: int) -> None:
    product, gated = gate_up_work(num_tokens)
    assert product.out.shape == (num_tokens, 2 * 18944)
    assert gated.grid == (19, num_tokens, 1)


@pytest.mark.parametrize(("num_tokens", "gap"), [(64, 256), (513, 0)])
def test_gate_and_up_are_two_products_with_a_gap_or_of_many_tokens(num_tokens: int, gap: int) -> None:
    assert [type(work) for work in gate_up_work(num_tokens, gap)] == [DenseProduct, DenseProduct, Launch]


@pytest.mark.parametrize("num_tokens", [9, 128])
def test_projections_by_wgmma(num_tokens: int) -> None:
    """q, k and v in one launch where they are adjacent; gate and up wherever they are."""
    product, finish = qkv_work(num_tokens, device=H200)
    assert (product.source, finish.source) == ("dense_wgmma", "qkv_rope_cache_write")
    *products, _ = qkv_work(num_tokens, 256, device=H200)
    assert [one.source for one in products] == ["dense_wgmma"] * 3 if num_tokens > 32 else ["qkv_projection"]
    for gap in (0, 256):
        (gate_up,) = gate_up_work(num_tokens, gap, H200)
        assert gate_up.kernel.startswith("gate_up_silu_wgmma")
    assert isinstance(gate_up_work(129, device=H200)[0], DenseProduct)


def test_the_workspace_holds_a_product_of_both_kinds() -> None:
    """Sizes are asked for without addresses."""
    for kernel in BY_CUBLASLT:
        assert isinstance(kernel.function, KernelFunction)
        if kernel.operator != "gate_up_silu":
            continue
        for num_tokens, rows in ((100, 200), (512, 1024), (8192, 8192)):
            shapes = (num_tokens, 3584), (18944, 3584), (18944, 3584), (num_tokens, 18944)
            *inputs, out = (DeviceArray(0, BF16, shape) for shape in shapes)
            call = Call(tuple(inputs), (out,), {}, H200)
            assert kernel.function.workspace_bytes(call) == WORKSPACE_BYTES + rows * 18944 * 2


def test_operators_are_the_ones_with_several_weights() -> None:
    operators: set[Operator] = {case.operator for case in CASES}
    assert {operator.name for operator in operators} == {
        "gate_up_silu",
        "qkv_rope_cache_write",
        "qkv_rope_cache_write_quantized",
    }
