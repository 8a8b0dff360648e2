"""Contracts: a plugin and a core of different ages find the newest they both speak, or say who is to be updated."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.plugins import discovery, hookspecs
from aethermind.plugins.compatibility import negotiate
from aethermind.plugins.hookspecs import HookSpecs, hookspec

OLDER = "this core speaks 2 to 3; they use 2, an older one, which still works."


@pytest.fixture
def core_of_contract_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core two contracts on, which still speaks the one before and has a hook more."""

    class NewHookSpecs(HookSpecs):
        @hookspec
        def register_dreams(self, registry: Any) -> None: ...

    monkeypatch.setattr(hookspecs, "CONTRACT_VERSION", 3)
    monkeypatch.setattr(hookspecs, "OLDEST_CONTRACT", 2)
    monkeypatch.setattr(discovery, "HookSpecs", NewHookSpecs)


@pytest.mark.usefixtures("core_of_contract_3")
@pytest.mark.parametrize(
    ("offered", "contract", "words"),
    [
        ("3", "3", "it speaks plugin contract 3, this core speaks 2 to 3; they use 3."),
        (
            "2",
            "2",
            "it speaks plugin contract 2, this core speaks 2 to 3; they use 2, an older one, which still works.",
        ),
        ("123", "3", "it speaks plugin contract 1, 2 and 3, this core speaks 2 to 3; they use 3."),
        ("42", "2", f"it speaks plugin contract 2 and 4, {OLDER}"),
    ],
)
def test_the_newest_common_contract_is_taken(offered: str, contract: str, words: str) -> None:
    found = negotiate(tuple(offered), "fake")
    assert (found.contract, found.words, found.error) == (contract, words, None)


@pytest.mark.usefixtures("core_of_contract_3")
@pytest.mark.parametrize(
    ("offered", "error", "advice"),
    [
        (("1",), "it speaks plugin contract 1, this core speaks 2 to 3.", "Install a newer fake, made for contract 3"),
        (("4",), "it speaks plugin contract 4, this core speaks 2 to 3.", "Install a newer core (pip install "),
        (("1", "4"), "it speaks plugin contract 1 and 4, this core speaks 2 to 3.", "Install a newer core (pip"),
        (("next",), "it speaks plugin contract next, this core speaks 2 to 3.", "Install a newer core (pip install "),
    ],
)
def test_without_a_common_contract_the_advice_is_to_upgrade_the_older_side(
    offered: tuple[str, ...], error: str, advice: str
) -> None:
    found = negotiate(offered, "fake")
    assert found.error == error
    assert found.advice.startswith(advice)


@pytest.mark.usefixtures("core_of_contract_3")
def test_a_plugin_for_the_contract_before_works(fakes: FakeDistributions) -> None:
    fakes.install(
        "last_year",
        """
        @hookimpl
        def register_kernels():  # from before this hook had an argument
            pass

        @hookimpl
        def register_policies(registry):
            registry.register("old", "aethermind.engine.policies:FirstComeFirstServed", provider="fake-last_year")
        """,
        distribution="fake-last-year",
        contracts=(2,),
    )
    fakes.install("this_year", "@hookimpl\ndef register_dreams(registry): ...", contracts=(3,))
    fakes.install("long_ago", "raise AssertionError", contracts=(1,))
    fakes.install("next_year", "raise AssertionError", contracts=(4,))
    runtime = Runtime.boot()
    errors = {record.name: record.error for record in runtime.plugins if record.distribution.startswith("fake-")}
    assert errors == {
        "last_year": None,
        "this_year": None,
        "long_ago": "it speaks plugin contract 1, this core speaks 2 to 3.",
        "next_year": "it speaks plugin contract 4, this core speaks 2 to 3.",
    }
    (last_year,) = [record for record in runtime.plugins if record.name == "last_year"]
    assert last_year.deprecated == ["plugin contract 2 goes with version 4 of the contract; use contract 3."]
    assert runtime.policies.get("old")() is not None
    assert runtime.providers("policies", "old") == ["fake-last-year 9.9"]
