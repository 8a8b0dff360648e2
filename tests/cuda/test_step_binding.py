"""Steps bound by relocation launch, byte for byte, what each of them launches when its kernel is called by itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cuda.check.qwen2_7b import write_model
from tests.cuda.emulator.builder import CSRC
from tests.cuda.host_driver import HostDriver, fake_cubins, tensor_map
from tests.cuda.test_cublas import FakeCublasLt

from aethermind import Runtime
from aethermind.dispatch import Dispatcher, Kernel
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_graph import GraphKey
from aethermind.errors import KernelError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import compile_graph
from aethermind.graph.executor import MemoryMap, addresses_in_run
from aethermind.graph.plan import Operand, Place, Plan
from aethermind.hal import Buffer, DeviceId, DType, Probe
from aethermind.ops.dims import SymDim, resolve
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.cublas import DenseProduct, bucket_of, prompt_buckets
from aethermind_cuda.devices import Context
from aethermind_cuda.executable import CudaExecutable
from aethermind_cuda.graph_capture import CudaGraphCache
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Enqueue, Int64, KernelFunction, Launch, TensorMap
from aethermind_cuda.library import KernelLibrary
from aethermind_cuda.parameters import Parameters
from aethermind_cuda.relocation import find_operand, relocated_address, symbolic_address
from aethermind_cuda.step_binding import StepBinder

GPU = DeviceFacts((8, 0), 108, 163 << 10)
WORKSPACE = 7 << 40
OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int4, int8 cache": {"dtype": "bfloat16", "quantization": "int4", "kv_cache_dtype": "int8"},
}
QUERIES_OF_TOKENS, QUERIES_OF_ROWS = 5, 3
"""Of cuBLASLt's heuristics for a new number of tokens: q, k like v, o, gate like up, down. The last layer's MLP is
computed for the rows of logits alone, so a new number of these has gate like up, down and lm_head. Where q, k and v are
one product, there is one query less.
"""


class RecordingCublasLt(FakeCublasLt):
    """Products are written down, with their shapes, addresses and bias, and not computed."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def cublasLtMatmul(self, *arguments: Any) -> int:  # noqa: N802
        _, desc, _, a, a_layout, b, b_layout, _, _, _, d, d_layout, _, workspace, _, _ = arguments
        shapes = [self.things[layout.value][1:3] for layout in (a_layout, b_layout, d_layout)]
        self.log.append((shapes, a.value, b.value, d.value, self.things[desc.value].get(8), workspace.value))
        return 0


class Bench:
    """A library whose launches and products are written to `log`."""

    def __init__(self, folder: Path, sources: list[str]) -> None:
        self.log: list[Any] = []
        self.driver = HostDriver()
        self.driver.launches = self.log
        self.library = KernelLibrary(self.driver, GPU, fake_cubins(folder, sources))
        self.stream = self.driver.stream_create(0)
        self.bound: list[Enqueue] = []

    def launched(self, binder: StepBinder, plan: Plan, symbols: tuple[int, ...]) -> list[Any]:
        """What all steps enqueue; arguments are there until the next call."""
        steps = range(len(plan.steps))
        self.bound = [enqueue for position in steps for enqueue in binder.bind(position, symbols)]
        for enqueue in self.bound:
            enqueue(self.stream)
        log = self.log.copy()
        self.log.clear()
        return log


def expected(plan: Plan, memory: MemoryMap, symbols: tuple[int, ...]) -> Iterator[Any]:
    """What all steps should enqueue: launches with the bytes of each argument, and products, by calls of their own."""
    sizes = dict(zip(plan.symbols, symbols, strict=True))
    address = addresses_in_run(plan, memory, sizes)

    def array(operand: Operand) -> DeviceArray:
        return DeviceArray(address(operand), operand.dtype, resolve(operand.shape, sizes))

    for step in plan.steps:
        inputs = tuple(None if operand is None else array(operand) for operand in step.inputs)
        function: Any = step.kernel.function
        for work in function(Call(inputs, tuple(map(array, step.outputs)), step.attributes, GPU, WORKSPACE)):
            if isinstance(work, DenseProduct):
                (num_tokens, num_inputs), (num_outputs, _) = work.x.shape, work.weight.shape
                shapes = [(num_inputs, num_outputs), (num_inputs, num_tokens), (num_outputs, num_tokens)]
                bias = None if work.bias is None else work.bias.address
                if num_tokens:
                    yield shapes, work.weight.address, work.x.address, work.out.address, bias, work.workspace
            elif all(work.grid):
                values = [
                    tensor_map(*argument) if isinstance(argument, TensorMap) else bytes(value)
                    for argument, value in zip(work.arguments, Parameters(work.arguments).values, strict=True)
                ]
                yield f"{work.source}:{work.kernel}", work.grid, work.block, work.shared_bytes, values


def compare(log: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Equal in order, number and every byte."""
    assert len(log) == len(wanted)
    for got, want in zip(log, wanted, strict=True):
        if isinstance(want[0], str):
            *what, values = want
            pointers = ctypes.cast(got.parameters, ctypes.POINTER(ctypes.c_void_p))
            contents = [ctypes.string_at(pointers[i], len(value)) for i, value in enumerate(values)]
            assert ([*got[:4]], contents) == (what, values)
        else:
            assert got == want


def map_memory(plan: Plan, step_bytes: int = 0, *, has_adjacent: bool = False) -> dict[tuple[Place, str], int]:
    """Addresses far apart, of which every third is `step_bytes` beyond a multiple of 256; with `has_adjacent` the
    constants of a step are one behind the other.
    """
    memory = {(Place.ARENA, ""): 1 << 40, (Place.INPUT, ""): 2 << 40}
    for step in plan.steps:
        end = 0
        for operand in (one for one in step.inputs if one is not None):
            place = operand.place, operand.name
            if place in memory or operand.place not in (Place.STATE, Place.CONSTANT):
                continue
            count = len(memory)
            memory[place] = (3 << 40) + (count << 30) + (step_bytes if count % 3 == 0 else 0)
            if has_adjacent and operand.place is Place.CONSTANT:
                memory[place] = end or memory[place]
                end = memory[place] + operand.nbytes({})
    return memory


@pytest.fixture(params=[False, True], ids=["alone", "cublaslt"])
def has_cublaslt(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def plan_large_model(folder: Path, monkeypatch: pytest.MonkeyPatch, cublaslt: Any, **options: Any) -> Plan:
    """All layers of Qwen2-7B, without their memory; `cublaslt` stands for the library, None for none."""
    model = write_model(folder / "model")
    cubins = fake_cubins(folder, [source.stem for source in CSRC.glob("*.cu")])
    monkeypatch.setattr("aethermind_cuda.probe.probe", lambda: Probe(1, "a GPU that computes nothing."))
    monkeypatch.setattr("aethermind_cuda.probe.open_backend", lambda: CudaBackend(HostDriver(memory=1 << 40), cubins))
    monkeypatch.setattr("aethermind_cuda.kernels._cublaslt.find_cublaslt", lambda: cublaslt)
    limits = {"load_format": "dummy", "max_num_batched_tokens": 8192, "max_num_seqs": 256, "num_kv_blocks": 10_000}
    return compile_model(Runtime.boot(), str(model), device="cuda", **limits, **options).compile(GraphKey()).plan


@pytest.fixture(params=list(OPTIONS))
def plan(request: pytest.FixtureRequest, has_cublaslt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    return plan_large_model(tmp_path, monkeypatch, object() if has_cublaslt else None, **OPTIONS[request.param])


def sizes_of(plan: Plan, **sizes: int) -> tuple[int, ...]:
    """Symbols in the order of the plan; those not given are 0."""
    return tuple(sizes.get(name, 0) for name in plan.symbols)


SIZES = [
    {"T": 1, "S": 1, "R": 1, "B": 1},
    {"T": 33, "S": 3, "R": 3, "B": 8, "E": 3},
    {"T": 500, "S": 40, "R": 40, "B": 64},
    {"T": 501, "S": 40, "R": 40, "B": 64},
    {"T": 8192, "S": 2, "R": 0, "B": 512},
]


@pytest.mark.parametrize(("step_bytes", "has_adjacent"), [(0, False), (16, False), (0, True)])
def test_a_large_model(
    plan: Plan,
    has_cublaslt: bool,
    step_bytes: int,
    has_adjacent: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(tmp_path, [source.stem for source in CSRC.glob("*.cu")])
    cublas = RecordingCublasLt(bench.log)
    monkeypatch.setattr("aethermind_cuda.library.find_cublaslt", lambda: cublas)
    calls: list[str] = []
    counted = counting(plan, calls)
    memory = map_memory(plan, step_bytes, has_adjacent=has_adjacent)
    binder = StepBinder(counted, memory, GPU, bench.library, WORKSPACE)
    numbers: set[int] = set()
    is_dense = all(constant.weight_format is None for constant in plan.constants.values())
    for sizes in SIZES:
        symbols = sizes_of(plan, **sizes)
        before = cublas.num_heuristics
        calls.clear()
        log = bench.launched(binder, counted, symbols)
        compare(log, list(expected(plan, memory, symbols)))
        if not step_bytes:
            assert len(calls) <= 20, "of 28 layers and what is around them, kinds of steps"
            is_new = {name: sizes[name] > 32 and bucket_of(sizes[name]) not in numbers for name in "TR"}
            queries = (QUERIES_OF_TOKENS - (has_adjacent and is_dense)) * is_new["T"] + QUERIES_OF_ROWS * is_new["R"]
            assert cublas.num_heuristics - before <= queries
            if is_dense and has_cublaslt:
                assert (cublas.num_heuristics > before) == (queries > 0)
        numbers |= {bucket_of(sizes["T"]), bucket_of(sizes["R"])}


def test_prompts_do_not_wait_for_algorithm_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, [source.stem for source in CSRC.glob("*.cu")])
    cublas = RecordingCublasLt(bench.log)
    monkeypatch.setattr("aethermind_cuda.library.find_cublaslt", lambda: cublas)
    plan = plan_large_model(tmp_path, monkeypatch, cublas, dtype="bfloat16")
    captured = CudaGraphCache(bench.driver, Context(bench.driver, 0))
    workspace = Buffer(DeviceId("cuda", 0), WORKSPACE, 1 << 30, is_host_accessible=False, release=lambda: None)
    executable = CudaExecutable(plan, map_memory(plan), 0, GPU, bench.library, captured, lambda _: workspace)
    chosen = cublas.num_heuristics
    assert 0 < chosen <= QUERIES_OF_TOKENS * len(list(prompt_buckets(9, 4096)))
    assert bench.log == [], "nothing is launched"
    for num_tokens in (9, 37, 481, 1993, 2047, 4095):
        executable._enqueue(sizes_of(plan, T=num_tokens, S=1, R=1, B=8), 0, len(plan.steps), bench.stream)
    assert cublas.num_heuristics == chosen
    assert bench.log


def counting(plan: Plan, calls: list[str]) -> Plan:
    """The plan with kernels that note their calls: steps that share a kernel still do."""
    kernels: dict[int, Kernel] = {}

    def counted(kernel: Kernel) -> Kernel:
        function: Any = kernel.function

        def launches(call: Call) -> Any:
            calls.append(kernel.operator)
            return function(call)

        return replace(kernel, function=function._replace(launches=launches))

    for step in plan.steps:
        if id(step.kernel) not in kernels:
            kernels[id(step.kernel)] = counted(step.kernel)
    return replace(plan, steps=tuple(replace(step, kernel=kernels[id(step.kernel)]) for step in plan.steps))


class Pointers(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("size", ctypes.c_int32), ("x", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class Pair(ctypes.Structure):
    _fields_ = (("scale", ctypes.c_float), ("inner", Pointers))


class Opaque(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 2),)


class Halves(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64, 32), ("high", ctypes.c_uint64, 32))


def pointers(out: DeviceArray, x: DeviceArray) -> Pointers:
    return Pointers(out.address + 64, x.size, x.address - 32, x.nbytes)


ARGUMENTS: dict[str, tuple[bool, Callable[[DeviceArray, DeviceArray], Any]]] = {
    "arrays": (True, lambda out, x: x),
    "parts of arrays": (True, lambda out, x: x._replace(address=x.address + 100)),
    "pointers": (True, lambda out, x: ctypes.c_void_p(x.address - 8)),
    "a pointer to something else": (True, lambda out, x: ctypes.c_void_p(0x7F12_3456_7890)),
    "a structure": (True, pointers),
    "a structure in another": (True, lambda out, x: Pair(0.5, pointers(out, x))),
    "a tensor map": (True, lambda out, x: TensorMap(x.address + 96, x.size, 24, 8)),
    "what the alignment decides": (True, lambda out, x: x.address % 256),
    "what equality decides": (True, lambda out, x: out.address == x.address),
    "an address as a number": (False, lambda out, x: Int64(x.address)),
    "a part of an address as a number": (False, lambda out, x: Int64(x.address >> 4)),
    "an array": (False, lambda out, x: (ctypes.c_uint64 * 2)(x.address, 3)),
    "an array in a structure": (False, lambda out, x: Opaque((ctypes.c_uint64 * 2)(x.address, 3))),
    "bit fields": (False, lambda out, x: Halves(x.address & 0xFFFF_FFFF, x.address >> 32)),
}
NUM_STEPS = 6


@pytest.mark.parametrize("is_relocatable", [True, False])
@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_arguments_of_every_kind(name: str, is_relocatable: bool, runtime: Runtime, tmp_path: Path) -> None:
    """Of six steps in a row, whose values take turns in the arena; those that are opaque are bound one by one."""
    can_relocate, argument = ARGUMENTS[name]
    calls: list[Call] = []

    def launches(call: Call) -> Iterator[Launch]:
        calls.append(call)
        (x,), (out,) = call.inputs, call.outputs
        assert x is not None
        workspace = ctypes.c_void_p(call.workspace + 5)
        yield Launch("thing", "thing", (x.size, 1, 1), (32, 1, 1), (out, argument(out, x), workspace))

    function: Any = KernelFunction(launches, is_relocatable=is_relocatable)
    plan = compiled(runtime, Kernel("silu", "cuda", "third-party", frozenset({DType.FLOAT32}), function=function))
    memory = {(Place.ARENA, ""): (1 << 40) + 16, (Place.INPUT, ""): 2 << 40}
    bench = Bench(tmp_path, ["thing"])
    binder = StepBinder(plan, memory, GPU, bench.library, WORKSPACE)
    for num_tokens in (3, 4):
        symbols = (num_tokens,)
        calls.clear()
        log = bench.launched(binder, plan, symbols)
        num_calls = len(calls)
        compare(log, list(expected(plan, memory, symbols)))
        if is_relocatable and can_relocate:
            assert num_calls <= 3
        else:
            assert num_calls >= NUM_STEPS


class OtherWork:
    """Work that knows no symbolic addresses."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def bind(self, context: Any) -> Callable[[int], None]:
        return self._launch.bind(context)


def test_non_relocatable_work_is_bound_individually(runtime: Runtime, tmp_path: Path) -> None:
    def launches(call: Call) -> Iterator[Any]:
        arguments = (*call.outputs, *call.inputs)
        yield OtherWork(Launch("thing", "thing", (1, 1, 1), (32, 1, 1), arguments))

    function: Any = KernelFunction(launches, is_relocatable=True)
    plan = compiled(runtime, Kernel("silu", "cuda", "third-party", frozenset({DType.FLOAT32}), function=function))
    memory: Mapping[Any, int] = {(Place.ARENA, ""): 1 << 40, (Place.INPUT, ""): 2 << 40}
    bench = Bench(tmp_path, ["thing"])
    log = bench.launched(StepBinder(plan, memory, GPU, bench.library, WORKSPACE), plan, (5,))
    address = addresses_in_run(plan, memory, {"T": 5})
    got = [(one.argument(0, ctypes.c_uint64), one.argument(1, ctypes.c_uint64)) for one in log]
    assert got == [(address(step.outputs[0]), address(step.inputs[0])) for step in plan.steps if step.inputs[0]]


@pytest.mark.parametrize("is_relocatable", [True, False])
def test_a_kernel_that_raises_is_named_with_its_package(runtime: Runtime, tmp_path: Path, is_relocatable: bool) -> None:
    def launches(_: Call) -> Iterator[Any]:
        yield from ()
        raise IndexError("no such tile")

    function: Any = KernelFunction(launches, is_relocatable=is_relocatable)
    kernel = Kernel("silu", "cuda", "tiled", frozenset({DType.FLOAT32}), function=function, provider="a-package")
    plan = compiled(runtime, kernel)
    memory: Mapping[Any, int] = {(Place.ARENA, ""): 1 << 40, (Place.INPUT, ""): 2 << 40}
    bench = Bench(tmp_path, ["thing"])
    with pytest.raises(KernelError, match=r"^Kernel 'tiled' for silu of a-package raised IndexError: no such tile\."):
        bench.launched(StepBinder(plan, memory, GPU, bench.library, WORKSPACE), plan, (5,))


def compiled(runtime: Runtime, kernel: Kernel) -> Plan:
    builder = GraphBuilder("chain", runtime.operators, DType.FLOAT32)
    value = builder.input("x", DType.FLOAT32, (SymDim("T"), 24))
    for _ in range(NUM_STEPS):
        value = builder.op("silu", value)
    builder.output("out", value)
    return compile_graph(builder.finish(), runtime.operators, Dispatcher([kernel]), "cuda", {"T": 8}).plan


@pytest.mark.parametrize("addend", [-4096, -1, 0, 1, 1 << 40])
@pytest.mark.parametrize("address", [1 << 47, (5 << 40) + 48])
def test_addends_are_kept(address: int, addend: int) -> None:
    symbolic = symbolic_address(9, address % 256)
    assert symbolic % 256 == address % 256
    bases = [0] * 9 + [address & -256]
    assert relocated_address(symbolic + addend, bases) == address + addend
    assert relocated_address(0, bases) == 0
    assert find_operand(address) is None
