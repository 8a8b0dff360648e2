"""A KV store in Redis: key names, times to live, and servers that are unreachable or full."""

from __future__ import annotations

import sys

import pytest
import redis
from tests.redis_server import RedisServer

from aethermind.cache.stores import StoreAddress
from aethermind.cache.stores.redis_store import open_redis_store
from aethermind.errors import ConfigError, InvalidArgumentError

KEY = b"sixteen bytes .."


def test_keys_have_the_prefix_of_this_project(redis_server: RedisServer) -> None:
    store = open_redis_store(StoreAddress.parse(redis_server.url))
    store.put([(KEY, b"value")])
    assert redis_server.client.keys() == [b"aethermind:kv:1:" + KEY.hex().encode()]
    assert redis_server.client.ttl(b"aethermind:kv:1:" + KEY.hex().encode()) == -1, "it has no time to live"


def test_values_can_have_a_time_to_live(redis_server: RedisServer) -> None:
    store = open_redis_store(StoreAddress.parse(redis_server.url + "?ttl=100"))
    store.put([(KEY, b"value")])
    assert 90 < redis_server.client.ttl(b"aethermind:kv:1:" + KEY.hex().encode()) <= 100  # type: ignore[operator]


def test_a_full_server_raises_an_error(redis_server: RedisServer) -> None:
    store = open_redis_store(StoreAddress.parse(redis_server.url))
    redis_server.client.config_set("maxmemory", "100kb")
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            store.put([(bytes([i]) * 16, bytes(2**20)) for i in range(8)])
    finally:
        redis_server.client.config_set("maxmemory", "0")
    store.put([(KEY, b"value")])
    assert store.get([KEY]) == [b"value"]


def test_a_server_that_comes_back_is_used_again(redis_server: RedisServer) -> None:
    store = open_redis_store(StoreAddress.parse(redis_server.url))
    store.put([(KEY, b"value")])
    redis_server.stop()
    with pytest.raises(redis.ConnectionError):
        store.get([KEY])
    redis_server.start()
    assert store.get([KEY]) == [None], "it came back empty"
    store.put([(KEY, b"value")])
    assert store.get([KEY]) == [b"value"]


@pytest.mark.parametrize("rest", ["//host:port/0", "//host/0?nonsense=1", "?ttl=soon"])
def test_an_invalid_address_is_refused(rest: str) -> None:
    with pytest.raises(InvalidArgumentError):
        open_redis_store(StoreAddress.parse(f"redis:{rest}"))


def test_without_the_client_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install '.*aethermind-core\[redis\]'"):
        open_redis_store(StoreAddress.parse("redis://localhost:6379/0"))
