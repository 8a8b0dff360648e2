"""Instruction set levels: detection, limits, and equal results of every level that this CPU has."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import InvalidArgumentError
from aethermind_cpu import _native, plugin
from aethermind_cpu.isa import Isa, built_levels, isa_levels, isa_limit
from aethermind_cpu.kernels import kernels

LEVELS = [isa for isa in built_levels() if isa.features <= set(_native.cpu_features())]
X86_64 = Isa.AMX.features | Isa.AVX2_VNNI.features
AARCH64 = {"asimd", "fphp", "asimddp"}
X86_64_NAMES = ["portable", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"]
AARCH64_NAMES = ["portable", "neon", "neon_dot", "neon_i8mm"]


@pytest.fixture(autouse=True)
def _nothing_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AETHERMIND_CPU_ISA", raising=False)


@pytest.mark.parametrize(
    ("features", "labels"),
    [(X86_64, X86_64_NAMES), ((), X86_64_NAMES), (AARCH64, AARCH64_NAMES)],
)
def test_levels_belong_to_the_architecture_and_are_ascending(features: set[str], labels: list[str]) -> None:
    levels = isa_levels(features)
    assert [isa.label for isa in levels] == labels
    assert [isa.level for isa in levels] == list(range(len(levels)))
    for lower, higher in itertools.combinations(levels, 2):
        assert not higher.features <= lower.features


@pytest.mark.parametrize(
    ("features", "forced", "limit"),
    [
        (X86_64, None, Isa.AMX),
        (X86_64, "avx512_bf16", Isa.AVX512_BF16),
        (Isa.AMX.features - {"amx_tile"}, "amx", Isa.AVX512_BF16),
        (Isa.AMX.features - {"avx512_bf16"}, None, Isa.AVX512_VNNI),
        (X86_64, "avx512", Isa.AVX512),
        (X86_64, "portable", Isa.PORTABLE),
        (Isa.AVX2.features, "avx512bf16", Isa.AVX2),
        (X86_64, "avx2_vnni", Isa.AVX2_VNNI),
        (Isa.AVX2_VNNI.features, None, Isa.AVX2_VNNI),
        (Isa.AVX512_VNNI.features, None, Isa.AVX512_VNNI),
        (Isa.AVX512_VNNI.features, "avx2_vnni", Isa.AVX2),
        ({"avx2", "fma"}, None, Isa.PORTABLE),
        ((), None, Isa.PORTABLE),
        (AARCH64, None, Isa.NEON_DOT),
        (AARCH64, "neon", Isa.NEON),
        (AARCH64, "neoni8mm", Isa.NEON_DOT),
        (AARCH64 | {"i8mm"}, None, Isa.NEON_I8MM),
        (AARCH64 | {"i8mm"}, "neon_dot", Isa.NEON_DOT),
        ({"asimd", "i8mm"}, None, Isa.NEON),
        (AARCH64, "portable", Isa.PORTABLE),
    ],
)
def test_the_limit_is_the_highest_level_of_the_cpu_or_a_forced_lower_one(
    monkeypatch: pytest.MonkeyPatch, features: set[str], forced: str | None, limit: Isa
) -> None:
    if forced is not None:
        monkeypatch.setenv("AETHERMIND_CPU_ISA", forced)
    assert isa_limit(features, tuple(Isa)) is limit


@pytest.mark.parametrize(
    ("features", "built", "limit"),
    [
        (X86_64, {Isa.PORTABLE}, Isa.PORTABLE),
        (X86_64, {Isa.PORTABLE, Isa.AVX2}, Isa.AVX2),
        (Isa.AVX2.features, {Isa.PORTABLE, Isa.AVX512_VNNI, Isa.AVX512_BF16}, Isa.PORTABLE),
        (Isa.AVX512_VNNI.features, {Isa.PORTABLE, Isa.AVX512_VNNI, Isa.AVX512_BF16}, Isa.AVX512_VNNI),
        (AARCH64, {Isa.PORTABLE, Isa.NEON, Isa.NEON_I8MM}, Isa.NEON),
    ],
)
def test_a_level_that_was_not_built_falls_back_to_the_next_lower(
    features: set[str], built: set[Isa], limit: Isa
) -> None:
    assert isa_limit(features, built) is limit


def test_forcing_a_level_that_was_not_built_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_CPU_ISA", "avx2")
    with pytest.raises(InvalidArgumentError) as error:
        isa_limit(X86_64, {Isa.PORTABLE, Isa.AVX512_BF16})
    assert "does not have. It has portable, avx512_bf16; this installs all: AETHERMIND_CPU_LEVELS=all" in str(
        error.value
    )


def test_doctor_reports_built_levels_and_how_to_build_missing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def report() -> str:
        return dict(plugin.doctor_checks())["cpu: instruction sets"]()

    best = LEVELS[-1].label
    assert report().startswith(f"kernels use {best}; built are portable")
    assert "AETHERMIND_CPU_LEVELS" not in report()
    if best != "portable":
        monkeypatch.setattr(_native, "BUILT_LEVELS", ["portable"])
        assert f"this CPU has {best}, which would be faster: AETHERMIND_CPU_LEVELS=all pip install" in report()


@pytest.mark.skipif(os.environ.get("AETHERMIND_CPU_LEVELS") != "all", reason="this build may have fewer levels")
def test_every_level_of_the_architecture_is_built() -> None:
    assert built_levels() == isa_levels()


@pytest.mark.parametrize(
    ("features", "forced", "known"),
    [
        (X86_64, "neon", ", ".join(X86_64_NAMES)),
        (AARCH64, "avx2", ", ".join(AARCH64_NAMES)),
        (AARCH64, "sve", ", ".join(AARCH64_NAMES)),
    ],
)
def test_a_level_of_another_architecture_is_an_error(
    monkeypatch: pytest.MonkeyPatch, features: set[str], forced: str, known: str
) -> None:
    monkeypatch.setenv("AETHERMIND_CPU_ISA", forced)
    with pytest.raises(InvalidArgumentError, match=f"'{forced}'.*Known here: {known}\\.$"):
        isa_limit(features, tuple(Isa))


def _entries() -> list[_native.KernelEntry]:
    return _native.kernel_table() + _native.quantized_kernel_table()


def test_every_level_of_this_cpu_has_kernels_of_its_own() -> None:
    supported = {entry.variant for entry in _entries() if entry.is_supported}
    assert supported >= {isa.label for isa in LEVELS}


@pytest.mark.parametrize("isa", LEVELS, ids=lambda isa: isa.label)
def test_no_kernel_exceeds_a_forced_level(monkeypatch: pytest.MonkeyPatch, isa: Isa) -> None:
    monkeypatch.setenv("AETHERMIND_CPU_ISA", isa.label)
    priorities = {kernel.name: kernel.priority for kernel in kernels()}
    highest = max(priorities, key=priorities.__getitem__)
    assert highest.partition(" ")[0] == f"cpu/{isa.label}"  # a suffix distinguishes kernels within a level


def test_every_level_generates_the_same_greedy_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo model in float32, two requests at once: decode has more than one row."""
    stories = {}
    for isa in LEVELS:
        monkeypatch.setenv("AETHERMIND_CPU_ISA", isa.label)
        llm = LLM(device="cpu", dtype="float32", max_model_len=128, runtime=Runtime.boot())
        outputs = llm.generate(["Once upon a time", "The dog"], SamplingParams(temperature=0.0, max_tokens=40))
        stories[isa.label] = [output.outputs[0].token_ids for output in outputs]
    assert all(story == stories["portable"] for story in stories.values()), stories


_STORIES = """
import json
from aethermind import LLM, Runtime, SamplingParams
from aethermind_cpu.kernels import kernels

llm = LLM(device="cpu", dtype="bfloat16", max_model_len=128, runtime=Runtime.boot())
params = SamplingParams(temperature=0.0, max_tokens=24)
prompts = ["Once upon a time", "The dog", "One day, a girl named Lily found a needle in her room. She knew it was"]
together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
alone = [llm.generate([prompt], params)[0].outputs[0].token_ids for prompt in prompts]
print(json.dumps([together, alone, sorted({kernel.name for kernel in kernels() if kernel.operator == "linear"})]))
"""


NEEDS_TILES = pytest.mark.skipif(
    Isa.AMX not in built_levels() or Isa.AVX512_BF16 not in LEVELS,
    reason="Needs a CPU with AVX-512 BF16, and a build with level amx.",
)


def _output_of(script: str, isa: Isa) -> Any:
    """What a process of its own prints at that level, on the model of the tile unit where this CPU has none."""
    tiles = "" if Isa.AMX in LEVELS else "model"
    environment = {**os.environ, "AETHERMIND_CPU_ISA": isa.label, "AETHERMIND_CPU_TILES": tiles}
    return json.loads(subprocess.check_output([sys.executable, "-c", script], env=environment, text=True))


@NEEDS_TILES
def test_the_tile_unit_generates_the_same_stories_alone_and_in_a_batch() -> None:
    together, alone, names = _output_of(_STORIES, Isa.AMX)
    assert "cpu/amx" in names
    assert together == alone
    below, _, names = _output_of(_STORIES, Isa.AVX512_BF16)
    assert "cpu/amx" not in names
    assert [story[:8] for story in together] == [story[:8] for story in below]


_QUANTISED = """
import json
from aethermind import LLM, Runtime, SamplingParams

prompts = ["One day, a girl named Lily found a needle in her room. She knew it was difficult to play with it. " * 3]
results = []
for deterministic in (False, True):
    llm = LLM(device="cpu", dtype="bfloat16", quantization="int8", deterministic=deterministic, max_model_len=256,
              runtime=Runtime.boot())
    output = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1))[0]
    values = [next(iter(each.values())).logprob for each in output.prompt_logprobs if each]
    results.append([output.outputs[0].token_ids, values])
print(json.dumps(results))
"""


@NEEDS_TILES
def test_prompts_over_quantised_weights_use_the_tile_unit_unless_results_must_not_depend_on_the_batch() -> None:
    (_, tiles), (tokens, bytes_) = _output_of(_QUANTISED, Isa.AMX)
    below, exact = _output_of(_QUANTISED, Isa.AVX512_BF16)
    assert below == exact == [tokens, bytes_]  # products of bytes have the same bits on every level
    assert tiles != bytes_
    assert tiles == pytest.approx(bytes_, abs=0.5)


def test_quantised_kernels_of_the_tile_unit_declare_that_rows_differ_and_that_activations_are_rounded() -> None:
    entries = [entry for entry in _native.quantized_kernel_table() if entry.variant == Isa.AMX.label]
    assert bool(entries) == (Isa.AMX in built_levels())
    assert not any(entry.is_batch_invariant for entry in entries)
    assert all(entry.multiplies_bytes for entry in entries)


def test_a_wrong_name_of_the_tile_unit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_CPU_TILES", "hardware")
    with pytest.raises(InvalidArgumentError, match="AETHERMIND_CPU_TILES is 'hardware'; set it to model"):
        isa_limit()


@pytest.mark.parametrize(
    ("support", "report"),
    [
        ("present", "this process may use its tile registers"),
        ("not in cpu", "no AMX"),
        ("not saved", "XCR0"),
        ("not permitted", "arch_prctl"),
    ],
)
def test_doctor_says_whether_the_tile_unit_serves(monkeypatch: pytest.MonkeyPatch, support: str, report: str) -> None:
    monkeypatch.setattr(_native, "tile_support", lambda: support)
    assert report in dict(plugin.doctor_checks())["cpu: tile unit"]()
