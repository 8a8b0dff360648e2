"""Booting with broken plugins: the others are there, and nothing of the broken ones is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.cli.plugins import plugin_rows
from aethermind.dispatch import Fallback, Signature
from aethermind.errors import ConfigError, DeviceError, InvalidArgumentError, PluginError
from aethermind.graph import GraphBuilder
from aethermind.graph.compile import compile_graph
from aethermind.hal import DType
from aethermind.hal.registry import DeviceRegistry
from aethermind.plugins.discovery import PluginRecord

GOOD = """
    @hookimpl
    def register_devices(registry):
        claim_device(registry, "good", "fake-good")
"""


def record_of(runtime: Runtime, name: str) -> PluginRecord:
    (record,) = [record for record in runtime.plugins if record.name == name]
    return record


def device_names(registry: DeviceRegistry) -> set[str]:
    return {entry.name for entry in registry}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('libx.so is missing')", "importing it raised OSError: libx.so is missing."),
        ("raise SystemExit('no licence')", "importing it raised SystemExit: no licence."),
        ("@hookimpl\ndef register_device(registry): ...", "unknown hook 'register_device'"),
        (
            "@hookimpl\ndef register_devices(registry): claim_device(registry, 'numpy', 'fake-rogue')",
            "Device 'numpy' is claimed by both aethermind-core and fake-rogue.",
        ),
        ("@hookimpl\ndef register_kernels(registry): 1 / 0", "register_kernels raised ZeroDivisionError: division by"),
        ("@hookimpl\ndef register_models(registry): raise SystemExit(1)", "register_models raised SystemExit: 1."),
        ("@hookimpl\ndef register_devices(registry): registry.register('x')", "register_devices raised TypeError"),
    ],
)
def test_a_broken_plugin_affects_no_other(fakes: FakeDistributions, source: str, reason: str) -> None:
    fakes.install("rogue", source)
    fakes.install("good", GOOD)
    runtime = Runtime.boot()
    rogue = record_of(runtime, "rogue")
    assert rogue.error is not None
    assert reason in rogue.error
    assert record_of(runtime, "good").error is None
    assert {"good", "cpu", "numpy", "null"} <= device_names(runtime.devices)
    assert "Qwen2ForCausalLM" in runtime.architectures.names()
    assert runtime.devices.select("numpy").entry.provider == "aethermind-core"
    with pytest.raises(
        DeviceError, match=r"^Device 'rogue' is not available: its plugin rogue \(fake-rogue 9\.9\) failed: "
    ):
        runtime.devices.select("rogue")


def test_a_plugin_of_another_api_version_is_left_out(fakes: FakeDistributions) -> None:
    fakes.install("old", GOOD, api_versions=(0,))
    runtime = Runtime.boot()
    assert "supports plugin API 0" in str(record_of(runtime, "old").error)
    assert "good" not in device_names(runtime.devices)


@pytest.mark.parametrize("number", [1, 2])
def test_kernels_have_the_plugin_api_of_their_package(fakes: FakeDistributions, number: int) -> None:
    """Those for version 1 are not given rotary tables that are narrower than a head, which they read as wide ones."""
    fakes.install(
        "rotating",
        """
        from aethermind.dispatch import Kernel
        from aethermind.hal import DType

        @hookimpl
        def register_kernels(registry):
            kernel = Kernel("rope", "numpy", "theirs", frozenset({DType.FLOAT32}), 9, function=print)
            registry.register("numpy", lambda: [kernel], provider="fake-rotating")
        """,
        api_versions=(number,),
    )
    runtime = Runtime.boot()
    for rotary_dim in (8, 4):
        builder = GraphBuilder("rotation", runtime.operators)
        x, table = builder.input("x", DType.FLOAT32, (3, 2, 8)), builder.input("table", DType.FLOAT32, (3, rotary_dim))
        builder.output("out", builder.op("rope", x, table))
        dispatcher = runtime.open_device("numpy").dispatcher
        (step,) = compile_graph(builder.finish(), runtime.operators, dispatcher, "numpy", {}).plan.steps
        assert (step.kernel.name == "theirs") == (number == 2 or rotary_dim == 8)
    signature = Signature(
        "rope", "numpy", DType.FLOAT32, (), {}, extension="rotary tables that are narrower than a head"
    )
    (theirs,) = (kernel for kernel in runtime.kernels.kernels("numpy") if kernel.name == "theirs")
    assert theirs.api_version == number
    reason = "is for plugin API 1, which has no rotary tables that are narrower than a head"
    assert theirs.reason_against(signature) == (reason if number == 1 else None)


def test_a_plugin_that_fails_half_way_leaves_nothing_behind(fakes: FakeDistributions) -> None:
    fakes.install(
        "half",
        """
        @hookimpl
        def register_devices(registry):
            claim_device(registry, "half", "fake-half")

        @hookimpl
        def register_models(registry):
            registry.register("half-model", lambda: None, provider="fake-half")
            raise ValueError("out of luck")
        """,
    )
    fakes.install("later", GOOD)
    runtime = Runtime.boot()
    assert record_of(runtime, "half").error == "register_models raised ValueError: out of luck."
    assert "half" not in device_names(runtime.devices)
    assert "half-model" not in runtime.models.names()
    assert "good" in device_names(runtime.devices)


def test_of_two_plugins_that_claim_one_device_the_first_by_name_has_it(fakes: FakeDistributions) -> None:
    for name in ("a", "b"):
        fakes.install(name, f"@hookimpl\ndef register_devices(registry): claim_device(registry, 'x', 'fake-{name}')")
    runtime = Runtime.boot()
    assert runtime.devices.select("x").entry.provider == "fake-a"
    assert str(record_of(runtime, "b").error).startswith("Device 'x' is claimed by both fake-a and fake-b.")


def test_a_third_party_takes_over_a_first_party_architecture_and_doctor_says_so(fakes: FakeDistributions) -> None:
    fakes.install(
        "mine",
        """
        @hookimpl
        def register_architectures(registry):
            registry.register("Qwen2ForCausalLM", "pathlib:Path", provider="fake-mine")

        @hookimpl
        def register_gguf_families(registry):
            registry.register("qwen2", "pathlib:Path", provider="fake-mine")
        """,
    )
    runtime = Runtime.boot()
    assert record_of(runtime, "mine").error is None
    assert runtime.architectures.get("Qwen2ForCausalLM") is Path
    assert runtime.gguf_families.get("qwen2") is Path
    assert runtime.architectures.provider("Qwen3ForCausalLM") == "aethermind-qwen2"
    (row,) = [row for row in plugin_rows(runtime.plugins) if row[0] == "mine"]
    assert "Qwen2ForCausalLM (architectures) is this package's instead of aethermind-qwen2's" in row[-1]
    assert "qwen2 (gguf families) is this package's instead of aethermind-qwen2's" in row[-1]


def test_of_two_third_parties_with_one_architecture_the_second_fails(fakes: FakeDistributions) -> None:
    for name in ("a", "b"):
        fakes.install(
            name,
            "@hookimpl\ndef register_architectures(registry):\n"
            f"    registry.register('Qwen2ForCausalLM', 'pathlib:Path', provider='fake-{name}')",
        )
    runtime = Runtime.boot()
    assert runtime.architectures.provider("Qwen2ForCausalLM") == "fake-a"
    assert "'Qwen2ForCausalLM' is claimed by both fake-a and fake-b." in str(record_of(runtime, "b").error)


def test_a_third_party_cannot_replace_a_first_party_device(fakes: FakeDistributions) -> None:
    fakes.install("a", "@hookimpl\ndef register_devices(registry):\n    claim_device(registry, 'cpu', 'third')\n")
    runtime = Runtime.boot()
    (third_party,) = [record for record in runtime.plugins if record.name == "a"]
    assert "claimed by both aethermind-cpu and third" in str(third_party.error)
    assert runtime.open_device("cpu").backend.name == "cpu"


def test_operators_of_a_plugin_join_the_catalog_whole_or_not_at_all(fakes: FakeDistributions) -> None:
    source = """
        from dataclasses import replace
        from aethermind.ops.catalog.elementwise import ADD
        from aethermind.ops.schema import OperatorSchema

        def page(name):
            return replace(ADD, schema=OperatorSchema.parse(f"{name}(a: F[T], b: F[T]) -> (out: F[T])"))

        @hookimpl
        def register_operators(registry):
            for name in NAMES:
                registry.register(page(name), "fake")
    """
    fakes.install("plus", source.replace("NAMES", "['plus']"))
    fakes.install("nope", source.replace("NAMES", "['fresh', 'linear']"))
    runtime = Runtime.boot()
    assert "plus" in runtime.operators
    assert "fresh" not in runtime.operators
    assert "linear" in runtime.operators
    assert runtime.operators is runtime.operators
    assert "Operator 'linear' of fake exists already" in str(record_of(runtime, "nope").error)


def test_the_allow_list(fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.install("bad", "raise ImportError")
    monkeypatch.setenv("AETHERMIND_PLUGINS", "qwen2")
    runtime = Runtime.boot()
    assert [record.name for record in runtime.plugins] == ["qwen2"]
    assert device_names(runtime.devices) == {"numpy", "null"}
    assert runtime.devices.select("auto").device.type == "numpy"


def test_two_runtimes_share_nothing(fakes: FakeDistributions) -> None:
    first = Runtime.boot()
    fakes.install("good", GOOD)
    second = Runtime.boot()
    assert "good" not in device_names(first.devices)
    assert "good" in device_names(second.devices)
    for name in ("devices", "kernels", "architectures", "models", "operators", "manager"):
        assert getattr(first, name) is not getattr(second, name)
    one, other = first.open_device("numpy"), second.open_device("numpy")
    buffer = one.backend.allocator.alloc(1000)
    assert other.backend.allocator.stats().allocated_bytes == 0
    buffer.free()


def test_registries_are_frozen_after_boot() -> None:
    runtime = Runtime.boot()
    with pytest.raises(AssertionError, match="frozen"):
        runtime.kernels.register("x", list, provider="late")
    with pytest.raises(AssertionError, match="frozen"):
        runtime.operators.register(runtime.operators["add"])


@pytest.mark.parametrize(("fallback", "has_fallbacks"), [(Fallback.ERROR, False), (Fallback.WARN, True)])
def test_opening_a_device_loads_its_kernels_and_fallbacks(fallback: Fallback, has_fallbacks: bool) -> None:
    opened = Runtime.boot().open_device("numpy:0", fallback=fallback, num_threads=3)
    assert (str(opened.device), opened.backend.name, opened.num_threads) == ("numpy:0", "numpy", 1)
    signature = Signature("linear", "numpy", DType.FLOAT32, (), {})
    assert opened.dispatcher.resolve(signature).chosen is not None
    assert (opened.dispatcher.resolve_fallback(signature).chosen is not None) == has_fallbacks


def test_kernels_that_cannot_be_loaded_name_their_package(fakes: FakeDistributions) -> None:
    fakes.install(
        "k",
        """
        @hookimpl
        def register_kernels(registry):
            registry.register("numpy", load, provider="fake-k")

        def load():
            raise OSError("libk.so is missing")
        """,
    )
    runtime = Runtime.boot()
    with pytest.raises(
        PluginError, match=r"kernels of fake-k for numpy cannot be loaded: OSError: libk\.so is missing"
    ):
        runtime.open_device("numpy")


def test_unknown_names_list_the_installed_ones() -> None:
    runtime = Runtime.boot()
    with pytest.raises(DeviceError, match=r"Installed: .*cpu, .*null, numpy"):
        runtime.open_device("abacus")
    with pytest.raises(ConfigError, match=r"Qwen2ForCausalLM, .*and \d+ others; did you mean Qwen3ForCausalLM\?"):
        runtime.architectures.get("Qwen4ForCausalLM")


def test_booting_imports_nothing_heavy(fakes: FakeDistributions) -> None:
    (fakes.folder / "heavy_part.py").write_text("")
    fakes.install(
        "lazy",
        """
        @hookimpl
        def register_devices(registry):
            def open_backend():
                import heavy_part
            registry.register("lazy", probe=lambda: Probe(1, "here."), open=open_backend, priority=99, provider="lazy")
        """,
    )
    heavy = (
        "heavy_part",
        "numpy",
        "torch",
        "transformers",
        "tokenizers",
        "pydantic",
        "jinja2",
        "aethermind_cpu._native",
    )
    code = (
        "import sys; from aethermind import Runtime; runtime = Runtime.boot()\n"
        "assert str(runtime.devices.select('auto').device) == 'lazy:0'\n"
        "assert all(record.error is None for record in runtime.plugins), runtime.plugins\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    path = f"import sys; sys.path.insert(0, {str(fakes.folder)!r})\n"
    result = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_plugins_add_weight_formats(fakes: FakeDistributions) -> None:
    fakes.install(
        "formats",
        """
        @hookimpl
        def register_weight_formats(registry):
            from aethermind.ops.weight_format import WeightFormat
            registry.register({"nf4": WeightFormat("nf4", 4, 64, False)}.get, names=["nf4"], provider="fake-formats")
        """,
    )
    formats = Runtime.boot().weight_formats
    assert {"int4", "nf4"} <= set(formats.names())
    found = formats.get("nf4")
    assert found is not None
    assert found.name == "nf4"
    with pytest.raises(InvalidArgumentError, match="Did you mean nf4"):
        formats.get("nf5")
