"""Every kernel waits for the one before it, since in a graph it may be launched while that one runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.architecture.sources import ROOT
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind_cuda.launch import DeviceFacts, Launch
from aethermind_cuda.library import KernelLibrary

CSRC = ROOT / "aethermind-cuda" / "csrc"
WAITS_INSIDE = {
    "dense_wgmma.cu": ("multiply_dense_wgmma",),
    "gate_up_silu.cu": ("project_gemv",),
    "linear.cu": ("project_gemv",),
    "qkv_projection.cu": ("project_qkv_gemv",),
    "gate_up_silu_float8.cu": ("project_gemv",),
    "linear_float8.cu": ("project_gemv",),
    "qkv_projection_float8.cu": ("project_qkv_gemv",),
    "gate_up_silu_quantized.cu": ("quantized_gemv",),
    "linear_quantized.cu": ("quantized_gemv",),
    "qkv_projection_quantized.cu": ("project_qkv_quantized_gemv",),
    "qkv_rope_quantized.cu": ("project_rotated",),
    "quantized_wgmma.cu": ("quantized_wgmma",),
    "qkv_projection_quantized_wgmma.cu": ("project_qkv_quantized_wgmma",),
}
"""Sources with kernels that have something to do before they wait (common/project_gemv.cuh, quantized_gemv.cuh,
dense_wgmma.cuh), and what they call."""

FILLS_A_TABLE_FIRST = {"find_windows.cu", "sample_tokens.cu"}

BEGINNING = re.compile(r"__global__[^{]*\{[\s\\]*(.*?);", re.DOTALL)


KERNELS = [path for path in sorted(CSRC.rglob("*.cu*")) if "__global__" in path.read_text()]
"""Sources, and a header that defines kernels of several."""


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_every_kernel_begins_by_waiting(source: Path) -> None:
    text = source.read_text()
    others = {beginning for beginning in BEGINNING.findall(text) if beginning != "aether::begin_kernel()"}
    if source.name in FILLS_A_TABLE_FIRST:
        fill, wait, read = (text.index(call) for call in ("powers.fill();", "wait_for_predecessor();", "blockIdx.x"))
        assert others == {"aether::launch_dependents()"}
        assert fill < wait < read
        return
    called = WAITS_INSIDE.get(source.name, ())
    assert all(any(f"aether::{name}<" in beginning for name in called) for beginning in others)


@pytest.mark.parametrize(
    ("header", "copy", "read"),
    [
        ("project_gemv.cuh", "begin_copy(stage", "load_group<"),
        ("quantized_gemv.cuh", "begin_copy(stage", "rows.load_group("),
        ("dense_wgmma.cuh", "copy_weights(step", "copy_inputs(step"),
    ],
)
def test_projections_issue_their_first_copies_before_waiting(header: str, copy: str, read: str) -> None:
    text = (CSRC / "common" / header).read_text()
    copies, waits, reads = (text.index(call) for call in (copy, "wait_for_predecessor", read))
    assert copies < waits < reads


@pytest.mark.parametrize(
    ("capability", "waits", "is_dependent_launch"),
    [((8, 9), True, False), ((9, 0), True, True), ((12, 0), False, False)],
)
def test_launches_overlap_where_hardware_and_kernel_can(
    tmp_path: Path, capability: tuple[int, int], waits: bool, is_dependent_launch: bool
) -> None:
    driver = HostDriver()
    driver.set_context(driver.retain_context(0))
    targets = f"{capability[0]}{capability[1]}"
    library = KernelLibrary(
        driver, DeviceFacts(capability, 1, 1 << 16), fake_cubins(tmp_path, ["rms_norm"], (targets,))
    )
    stream = driver.stream_create(0)
    launch = Launch("rms_norm", "rms_norm_float32", (1, 1, 1), (32, 1, 1), (1,), is_dependent_launch=waits)
    library.bind_launch(launch)(stream)
    assert [launched.is_dependent_launch for launched in driver.launches] == [is_dependent_launch]
