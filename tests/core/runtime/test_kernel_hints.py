"""Hints about kernels that no plan can use: when their device is opened, and from `doctor`."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import typer.testing
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.cli.app import app

PLUGIN = """
    import os
    from aethermind.dispatch import Kernel, Pack
    from aethermind.hal import DType

    def kernel(operator, device="null", **options):
        return Kernel(operator, device, f"odd/{{operator}}", frozenset({{DType.FLOAT32}}), function=print, **options)

    def load():
        pack = Pack("p", lambda shape, dtype: 1, lambda source, address: None)
        return {offered}

    @hookimpl
    def register_kernels(registry):
        registry.register({device!r}, load, provider="fake-odd")
"""


def install(fakes: FakeDistributions, offered: str, device: str = "null") -> None:
    fakes.install("odd", PLUGIN.format(offered=offered, device=device))


def hints() -> list[str]:
    result = typer.testing.CliRunner().invoke(app, ["plugins", "list", "--json"])
    (record,) = [record for record in json.loads(result.stdout)["plugins"] if record["name"] == "odd"]
    assert record["status"] == "loaded"
    found: list[str] = record["hints"]
    return found


TYPO = "its kernel 'odd/paged_atention' for null is never used: no installed package defines operator "


@pytest.mark.parametrize(
    ("offered", "hint", "is_mistake"),
    [
        ("[kernel('paged_atention')]", f"{TYPO}'paged_atention'; did you mean 'paged_attention'?", True),
        (
            "[kernel('no_such_op')]",
            "its kernel 'odd/no_such_op' for null is never used: no installed package defines operator 'no_such_op'; "
            "it is of use only beside a package that defines it.",
            False,
        ),
        (
            "[kernel('split_heads')]",
            "its kernel 'odd/split_heads' for null is never used: split_heads is a view, which no kernel computes.",
            True,
        ),
        (
            "[kernel('linear', packs={'weights': pack})]",
            "its kernel 'odd/linear' for null is never used: it packs 'weights', but the inputs of linear are x, "
            "weight, bias.",
            True,
        ),
    ],
)
def test_a_kernel_that_no_plan_can_use(
    fakes: FakeDistributions, caplog: pytest.LogCaptureFixture, offered: str, hint: str, is_mistake: bool
) -> None:
    install(fakes, offered)
    assert hints() == [hint]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "aethermind"):
        Runtime.boot().open_device("null").backend.close()
    assert len(caplog.records) == is_mistake
    for record in caplog.records:
        assert record.getMessage().endswith(f"of fake-odd, for null, is never used: {hint.partition('used: ')[2]}")


@pytest.mark.parametrize(
    ("offered", "device", "hint"),
    [
        ("[42]", "null", "The kernels of fake-odd for null cannot be loaded: Item 0 of what load() returned is 42,"),
        ("1 // 0", "null", "The kernels of fake-odd for null cannot be loaded: ZeroDivisionError: integer division"),
        ("os.abort()", "null", "loading its kernels crashed with signal 6 (SIGABRT)."),
        (
            "[]",
            "numpi",
            "it offers kernels for 'numpi', a device that no installed package provides; did you mean 'nump",
        ),
        (
            "[]",
            "zx80",
            "it offers kernels for 'zx80', a device that no installed package provides; they are of use only",
        ),
    ],
)
def test_kernels_that_cannot_be_used_at_all(fakes: FakeDistributions, offered: str, device: str, hint: str) -> None:
    install(fakes, offered, device)
    (found,) = hints()
    assert found.startswith(hint)


def test_useful_kernels_give_no_hint(fakes: FakeDistributions, caplog: pytest.LogCaptureFixture) -> None:
    """Those of a device that is absent cannot be loaded, which is no hint either."""
    absent = """
    @hookimpl
    def register_devices(registry):
        registry.register("absent", probe=lambda: Probe(0, "no card."), open=NullBackend, provider="fake")
    @hookimpl
    def register_kernels(registry):
        registry.register("absent", lambda: __import__("no_such_driver"), provider="fake")
    """
    fakes.install("gone", absent)
    install(fakes, "[kernel('linear', packs={'weight': pack})]")
    assert hints() == []
    result = typer.testing.CliRunner().invoke(app, ["doctor"])
    assert "hint: " not in result.stdout
    caplog.clear()
    Runtime.boot().open_device("null").backend.close()
    assert not caplog.records


def test_doctor_shows_kernel_hints(fakes: FakeDistributions) -> None:
    install(fakes, "[kernel('paged_atention')]")
    result: Any = typer.testing.CliRunner().invoke(app, ["doctor"])
    assert f"hint: {TYPO}'paged_atention'; did you mean 'paged_attention'?" in result.stdout
