"""The store fulfils its contract; engines that share one compute less and give the same answers, even when it fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.cache.stores import KVStore
from aethermind.errors import InvalidArgumentError

RUNTIME = Runtime.boot()
KEYS = [bytes([number]) * 16 for number in range(5)]
PROMPT = {"prompt_token_ids": [7 + (i * 31) % 500 for i in range(200)]}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


@pytest.fixture
def store(path: Path) -> KVStore:
    return RUNTIME.open_kv_store(f"sqlite:{path}")


def test_values_can_be_read_overwritten_and_removed(store: KVStore) -> None:
    store.put([(KEYS[0], b"one"), (KEYS[1], b"\x00" * 100_000)])
    store.put([(KEYS[0], b"one")])
    assert store.get([KEYS[1], KEYS[2], KEYS[0]]) == [b"\x00" * 100_000, None, b"one"]
    store.remove([KEYS[0], KEYS[2]])
    assert store.get(KEYS[:2]) == [None, b"\x00" * 100_000]


def test_values_outlive_the_store(store: KVStore, path: Path) -> None:
    store.put([(KEYS[0], b"one")])
    store.close()
    assert RUNTIME.open_kv_store(f"sqlite:{path}").get(KEYS[:1]) == [b"one"]


def test_the_least_recently_used_value_is_evicted(path: Path) -> None:
    store = RUNTIME.open_kv_store(f"sqlite:{path}?size=300B")
    store.put([(key, bytes(100)) for key in KEYS[:3]])
    store.get(KEYS[:1])
    store.put([(KEYS[3], bytes(100))])
    assert [value is not None for value in store.get(KEYS)] == [True, False, True, True, False]


@pytest.mark.parametrize("wrong", ["sqlite", "sqlite:/tmp/x?colour=red", "sqlite:/tmp/x?size=much"])
def test_a_wrong_address_is_refused_in_a_sentence(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"sqlite|no size"):
        RUNTIME.open_kv_store(wrong)


def ask(address: str | None, meanwhile: Callable[[], object] = lambda: None) -> list[tuple[list[int], int]]:
    """Two answers to one prompt, and how many of its tokens an engine did not have to compute; the second one comes
    after `meanwhile`.
    """
    options = {"max_model_len": 256, "num_kv_blocks": 17, "kv_store": address}
    with LLM("demo", device="numpy", dtype="float32", runtime=RUNTIME, **options) as llm:
        found = []
        for prepare in (lambda: None, meanwhile):
            prepare()
            (output,) = llm.generate(PROMPT, GREEDY)
            found.append((output.outputs[0].token_ids, output.num_cached_tokens))
    return found


def test_another_engine_reuses_what_this_one_computed(path: Path) -> None:
    (expected, _), _ = ask(None)
    assert ask(f"sqlite:{path}")[0] == (expected, 0)
    assert ask(f"sqlite:{path}")[0] == (expected, 192)  # all blocks of 16 tokens that are full


def test_answers_are_the_same_where_the_store_fails(path: Path) -> None:
    expected = [token_ids for token_ids, _ in ask(None)]
    damages: dict[str, Callable[[], object]] = {
        "it cannot be opened": lambda: path.with_name("folder").mkdir(),
        "it is no database": lambda: path.write_bytes(b"rubbish " * 1000),
        "its values are wrong": lambda: alter("UPDATE kv SET value = zeroblob(LENGTH(value))"),
        "its values are cut": lambda: alter("UPDATE kv SET value = SUBSTR(value, 1, LENGTH(value) / 2)"),
        "it is another table": lambda: alter("ALTER TABLE kv RENAME COLUMN value TO other"),
    }

    def alter(statement: str) -> None:
        with sqlite3.connect(path) as database:
            database.execute(statement)

    for what, damage in damages.items():
        path.unlink(missing_ok=True)
        ask(f"sqlite:{path}")
        damage()
        where = path.with_name("folder") if what == "it cannot be opened" else path
        assert [token_ids for token_ids, _ in ask(f"sqlite:{where}")] == expected, what


def test_answers_are_the_same_where_the_store_breaks_meanwhile(path: Path) -> None:
    expected = [token_ids for token_ids, _ in ask(None)]
    assert [ids for ids, _ in ask(f"sqlite:{path}", lambda: path.write_bytes(b"rubbish " * 1000))] == expected
