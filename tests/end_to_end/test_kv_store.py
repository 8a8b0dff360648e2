"""Processes share keys and values through a disk and through Redis: seen in counts, never in tokens."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions
from tests.redis_server import RedisServer

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.kv_offload import KVStoreStats
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.errors import ConfigError

PROMPT = {"prompt_token_ids": [7 + (i * 31) % 500 for i in range(1000)]}
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
MODEL: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 1100}

PROCESS = """
import json, sys
from tests.end_to_end.test_kv_store import ask
print(json.dumps(ask(sys.argv[1], **json.loads(sys.argv[2]))))
"""


def ask(address: str, **options: Any) -> tuple[list[int], int]:
    """The answer to PROMPT, and how many tokens of it were known."""
    with LLM("demo", kv_store=address, **{**MODEL, **options}) as llm:
        (output,) = llm.generate(PROMPT, PARAMS)
        assert llm.engine.kv_offload is not None
        assert llm.engine.kv_offload.flush(60)  # which closing does, too, but it waits for no slow disk
    return output.outputs[0].token_ids, output.num_cached_tokens


def ask_in_another_process(address: str, folder: Path, **options: Any) -> tuple[list[int], int, str]:
    """The same, and what was said on stderr."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-c", PROCESS, address, json.dumps(options)]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    token_ids, num_cached = json.loads(result.stdout)
    return token_ids, num_cached, result.stderr


@pytest.mark.parametrize(("kind", "kv_cache_dtype"), [("disk", "auto"), ("disk", "int8"), ("redis", "auto")])
def test_another_process_reuses_stored_blocks(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, kv_cache_dtype: str
) -> None:
    address = f"disk:{tmp_path}/kv" if kind == "disk" else str(request.getfixturevalue("redis_server").url)
    expected, num_cached = ask(address, kv_cache_dtype=kv_cache_dtype)
    assert num_cached == 0
    token_ids, num_cached, said = ask_in_another_process(address, tmp_path, kv_cache_dtype=kv_cache_dtype)
    assert token_ids == expected
    assert num_cached >= 960
    assert said == ""


def test_a_store_server_that_is_restarted(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = ask("host:1GiB")
    caplog.clear()
    with LLM("demo", kv_store=redis_server.url, **MODEL) as llm:
        redis_server.stop()
        try:
            (output,) = llm.generate(PROMPT, PARAMS)
            assert (output.outputs[0].token_ids, output.num_cached_tokens) == (expected, 0)
            assert stats(llm).num_errors > 0
        finally:
            redis_server.start()
        offload = llm.engine.kv_offload
        assert offload is not None
        deadline = time.monotonic() + 120
        for prompt in itertools.cycle(range(1, 900)):  # it is asked again after a second or two
            llm.generate({"prompt_token_ids": [prompt] * 200}, PARAMS)
            offload.flush(0.2)
            if stats(llm).num_stored:
                break
            assert time.monotonic() < deadline, "it is not asked again"
    assert [record.levelname for record in caplog.records if record.levelname != "INFO"] == ["WARNING"]
    assert f"KV store {redis_server.url} cannot be used (ConnectionError" in caplog.text


def test_a_store_of_a_plugin_is_chosen_by_its_name(fakes: FakeDistributions) -> None:
    module = fakes.install(
        "shelf",
        """
        values = {}

        class Shelf:
            def __init__(self, address):
                self.depth = int(address.options["depth"])
            def get(self, keys):
                return [values.get(key) for key in keys]
            def put(self, entries):
                values.update(entries)
            def remove(self, keys):
                for key in keys:
                    values.pop(key, None)
            def close(self):
                values["closed"] = self.depth

        @hookimpl
        def register_kv_stores(registry):
            registry.register("shelf", __name__ + ":Shelf", provider="fake-shelf")
        """,
    )
    runtime = Runtime.boot()
    assert runtime.kv_stores.names() == ["disk", "host", "redis", "rediss", "shelf"]
    first, second = (ask("shelf?depth=3", runtime=runtime) for _ in range(2))
    assert first[0] == second[0]
    assert (first[1], second[1]) == (0, 992)
    assert sys.modules[module].values["closed"] == 3
    with pytest.raises(ConfigError, match=r"Unknown KV store 'shelv'\. Installed: disk, host, redis, rediss, shelf"):
        ask("shelv", runtime=runtime)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDistributions:
    return FakeDistributions(tmp_path, monkeypatch)


def stats(llm: LLM) -> KVStoreStats:
    found = EngineStats.of(llm.engine).kv_store
    assert found is not None
    return found
