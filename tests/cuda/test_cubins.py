"""What was compiled: every operator for every target, nothing spilled, nothing older than its source."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from tests.architecture.sources import ROOT
from tests.cuda.check.kernels import load_builder

from aethermind_cuda.library import Cubins
from aethermind_cuda.targets import best_target

SOURCES = sorted((ROOT / "aethermind-cuda" / "csrc").glob("*.cu"))


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """The build script."""
    return load_builder()


@pytest.fixture(scope="module")
def cubins() -> Cubins:
    """Those of the installed package, which `make test` has compiled."""
    cubins = Cubins()
    assert cubins.operators, "There are no compiled kernels: run `make cuda-kernels`."
    return cubins


def test_every_source_is_compiled_for_every_target(cubins: Cubins, builder: ModuleType) -> None:
    wanted = {source.stem: builder.targets_of(source) for source in SOURCES}
    if builder.read_manifest(cubins.folder)["triton"]:
        wanted |= dict.fromkeys(builder.build_triton.KERNELS, builder.build_triton.TARGETS)
    missing = [
        f"{name} for {target}"
        for name, targets in wanted.items()
        for target in targets
        if target not in cubins.operators.get(name, {"targets": {}})["targets"]
    ]
    assert missing == []
    files = {built["file"] for one in cubins.operators.values() for built in one["targets"].values()}
    assert files == {path.name for path in cubins.folder.glob("*.cubin")}


def test_no_cubin_is_older_than_its_source(cubins: Cubins, builder: ModuleType) -> None:
    manifest = builder.read_manifest(cubins.folder)
    digests = builder.digests(manifest["compiler"], manifest["triton"])
    assert {name: one["digest"] for name, one in cubins.operators.items()} == digests


def test_a_digest_ignores_comments_and_whitespace(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "SOURCES", tmp_path)
    source = tmp_path / "thing.cu"

    def digest(text: str) -> str:
        source.write_text(text)
        return str(builder.source_digest(source))

    code = digest('#include "a.cuh"\nint f() { return g("// no comment") + 1; }\n')
    assert code == digest('// Why.\n#include "a.cuh"\nint f() {\n  return g("// no comment")+1;  /* one\n more */\n}\n')
    assert code != digest('#include "a.cuh"\nint f() { return g("//no comment") + 1; }\n')
    assert code != digest('#include "a.cuh"\nint f() { return g("// no comment") + 2; }\n')


def test_no_kernel_spills(cubins: Cubins) -> None:
    spilling = {
        f"{name} for {target}": usage["spill_bytes"]
        for operator in cubins.operators.values()
        for target, built in operator["targets"].items()
        for name, usage in built["kernels"].items()
        if usage["spill_bytes"]
    }
    assert spilling == {}


def test_every_kernel_is_in_every_target_and_in_one_source_alone(cubins: Cubins) -> None:
    sources: dict[str, str] = {}
    for source, operator in cubins.operators.items():
        (kernels,) = {frozenset(built["kernels"]) for built in operator["targets"].values()}
        assert kernels, source
        assert {name: sources.setdefault(name, source) for name in kernels} == dict.fromkeys(kernels, source)


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)])
def test_every_supported_gpu_has_kernels(builder: ModuleType, capability: tuple[int, int]) -> None:
    assert best_target(builder.TARGETS, capability) is not None


def test_the_binaries_are_for_the_architectures_in_their_names(cubins: Cubins, builder: ModuleType) -> None:
    cuobjdump = str(builder.find_tool("cuobjdump"))
    for built in next(iter(cubins.operators.values()))["targets"].values():
        file = cubins.folder / built["file"]
        header = run(cuobjdump, "--dump-elf", str(file)).splitlines()[:3]
        number = re.sub(r".*sm_(\d+a?)f?\.cubin", r"\1", built["file"])
        assert f"sm={number}," in " ".join(header)
        entries = re.findall(
            r"^FUNC\s+GLOBAL\s+DEFAULT\s+ENTRY\s+(\w+)$", run(cuobjdump, "--dump-elf-symbols", str(file)), re.M
        )
        assert set(entries) == set(built["kernels"])


def run(*command: str) -> str:
    """What a tool says."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
