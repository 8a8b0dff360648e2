"""API versions: a plugin and a core use the newest version that both support, or say which side to upgrade."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.plugins import hookspecs, loading
from aethermind.plugins.compatibility import negotiate
from aethermind.plugins.hookspecs import HookSpecs, hookspec

OLDER = "this core supports 2 to 3; they use 2, an older one, which still works."


@pytest.fixture
def core_of_api_version_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core of plugin API version 3, which still supports version 2 and has one more hook."""

    class NewHookSpecs(HookSpecs):
        @hookspec
        def register_dreams(self, registry: Any) -> None: ...

    monkeypatch.setattr(hookspecs, "API_VERSION", 3)
    monkeypatch.setattr(hookspecs, "OLDEST_API_VERSION", 2)
    monkeypatch.setattr(loading, "HookSpecs", NewHookSpecs)


@pytest.mark.usefixtures("core_of_api_version_3")
@pytest.mark.parametrize(
    ("offered", "api_version", "summary"),
    [
        ("3", "3", "it supports plugin API 3, this core supports 2 to 3; they use 3."),
        (
            "2",
            "2",
            "it supports plugin API 2, this core supports 2 to 3; they use 2, an older one, which still works.",
        ),
        ("123", "3", "it supports plugin API 1, 2 and 3, this core supports 2 to 3; they use 3."),
        ("42", "2", f"it supports plugin API 2 and 4, {OLDER}"),
    ],
)
def test_the_newest_common_api_version_is_used(offered: str, api_version: str, summary: str) -> None:
    found = negotiate(tuple(offered), "fake")
    assert (found.api_version, found.summary, found.error) == (api_version, summary, None)


@pytest.mark.usefixtures("core_of_api_version_3")
@pytest.mark.parametrize(
    ("offered", "error", "advice"),
    [
        (
            ("1",),
            "it supports plugin API 1, this core supports 2 to 3.",
            "Install a newer fake, made for plugin API 3",
        ),
        (("4",), "it supports plugin API 4, this core supports 2 to 3.", "Install a newer core (pip install "),
        (("1", "4"), "it supports plugin API 1 and 4, this core supports 2 to 3.", "Install a newer core (pip"),
        (
            ("next",),
            "it supports plugin API next, this core supports 2 to 3.",
            "Install a newer core (pip install ",
        ),
    ],
)
def test_without_a_common_api_version_the_advice_is_to_upgrade_the_older_side(
    offered: tuple[str, ...], error: str, advice: str
) -> None:
    found = negotiate(offered, "fake")
    assert found.error == error
    assert found.advice.startswith(advice)


@pytest.mark.usefixtures("core_of_api_version_3")
def test_a_plugin_for_the_version_before_works(fakes: FakeDistributions) -> None:
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
        api_versions=(2,),
    )
    fakes.install("this_year", "@hookimpl\ndef register_dreams(registry): ...", api_versions=(3,))
    fakes.install("long_ago", "raise AssertionError", api_versions=(1,))
    fakes.install("next_year", "raise AssertionError", api_versions=(4,))
    runtime = Runtime.boot()
    errors = {record.name: record.error for record in runtime.plugins if record.distribution.startswith("fake-")}
    assert errors == {
        "last_year": None,
        "this_year": None,
        "long_ago": "it supports plugin API 1, this core supports 2 to 3.",
        "next_year": "it supports plugin API 4, this core supports 2 to 3.",
    }
    (last_year,) = [record for record in runtime.plugins if record.name == "last_year"]
    assert last_year.deprecated == ["plugin API 2 is removed in version 4 of the plugin API; use plugin API 3."]
    assert runtime.policies.get("old")() is not None
    assert runtime.providers("policies", "old") == ["fake-last-year 9.9"]
