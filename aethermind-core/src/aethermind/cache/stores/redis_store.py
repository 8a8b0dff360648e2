"""A store of KV cache blocks in Redis or Valkey, for engines on any machine that reaches the server.

The server's settings `maxmemory` and `maxmemory-policy allkeys-lru` decide how much is kept and what is evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlencode

from aethermind.cache.stores.kv_store import StoreAddress
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.first_party import pip_install_command

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RedisStore", "open_redis_store"]

_PREFIX = b"aethermind:kv:1:"
_TIMEOUT_S = 2.0


class RedisStore:
    """A `KVStore` in Redis; names are `aethermind:kv:1:` plus the key in hexadecimal. Connects at the first call."""

    def __init__(self, client: Redis, ttl_s: int | None = None) -> None:
        """Keep values for `ttl_s` seconds after their last write; None keeps them until the server evicts them."""
        self._client = client
        self._ttl_s = ttl_s

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `KVStore`."""
        return cast("list[bytes | None]", self._client.mget([_redis_key(key) for key in keys]))

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """See `KVStore`."""
        with self._client.pipeline(transaction=False) as pipeline:
            for key, value in entries:
                pipeline.set(_redis_key(key), value, ex=self._ttl_s)
            pipeline.execute()

    def remove(self, keys: Sequence[bytes]) -> None:
        """See `KVStore`."""
        self._client.unlink(*[_redis_key(key) for key in keys])

    def close(self) -> None:
        """See `KVStore`."""
        self._client.close()


def open_redis_store(address: StoreAddress) -> RedisStore:
    """Open `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, or `rediss://` for TLS.

    Options are `?ttl=SECONDS` and those of redis-py. ConfigError if the client is not installed, InvalidArgumentError
    for an address that redis-py does not accept.
    """
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigError(
            f"A KV store in Redis needs the package redis. Run `{pip_install_command('aethermind-core[redis]')}`."
        ) from None
    options = dict(address.options)
    ttl = options.pop("ttl", None)
    if ttl is not None and (not ttl.isdecimal() or int(ttl) == 0):
        raise InvalidArgumentError(f"ttl of a KV store should be a positive number of seconds, got {ttl!r}.")
    url = f"{address.name}:{address.location}" + (f"?{urlencode(options)}" if options else "")
    try:
        client = Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 1),  # for a connection closed by the server; the caller handles longer outages
        )
        client.connection_pool.make_connection()  # does not connect, but checks the options
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{address} is not the address of a Redis server ({error}); write redis://host:6379/0."
        ) from None
    return RedisStore(client, None if ttl is None else int(ttl))


def _redis_key(key: bytes) -> bytes:
    return _PREFIX + key.hex().encode()
