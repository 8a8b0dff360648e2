"""Names that were renamed in plugin API version 1 still work, with a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

import aethermind.plugins
from aethermind import LLM
from aethermind.plugins.compatibility import DeprecatedUseWarning
from aethermind.runtime import Runtime


def test_the_registry_of_kv_stores_still_opens_one(tmp_path: Path) -> None:
    runtime = Runtime.boot()
    with pytest.warns(DeprecatedUseWarning, match="Runtime.open_kv_store"):
        store = runtime.kv_stores.open(f"disk:{tmp_path}")
    store.put([(b"k" * 16, b"value")])
    assert store.get([b"k" * 16]) == [b"value"]
    store.close()


def test_an_engine_still_has_its_compiled_model_by_the_old_name() -> None:
    with LLM("demo", device="numpy") as llm:
        with pytest.warns(DeprecatedUseWarning, match="Engine.compiled"):
            compiled = llm.engine.planned
        assert compiled is llm.engine.compiled


def test_the_plugin_api_version_still_has_its_old_name() -> None:
    with pytest.warns(DeprecatedUseWarning, match="API_VERSION"):
        number = aethermind.plugins.CONTRACT_VERSION
    assert number == aethermind.plugins.API_VERSION
