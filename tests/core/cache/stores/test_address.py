"""Addresses of stores, as people write them."""

from __future__ import annotations

import pytest

from aethermind.cache.stores import StoreAddress
from aethermind.cache.stores.kv_store import parse_size
from aethermind.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "name", "location", "options"),
    [
        ("disk:/var/kv?size=10GiB", "disk", "/var/kv", {"size": "10GiB"}),
        ("disk:relative/path", "disk", "relative/path", {}),
        ("redis://localhost:6379/0", "redis", "//localhost:6379/0", {}),
        ("rediss://me:secret@host/1?ttl=60&ssl_cert_reqs=none", "rediss", "//me:secret@host/1",
         {"ttl": "60", "ssl_cert_reqs": "none"}),
        ("host:2GiB", "host", "2GiB", {}),
        ("mine", "mine", "", {}),
        ("mine?depth=3", "mine", "", {"depth": "3"}),
    ],
)  # fmt: skip
def test_an_address_is_parsed(text: str, name: str, location: str, options: dict[str, str]) -> None:
    address = StoreAddress.parse(text)
    assert (address.name, address.location, dict(address.options)) == (name, location, options)


def test_a_password_is_not_shown() -> None:
    shown = str(StoreAddress.parse("redis://me:secret@host:1/0?password=secret"))
    assert shown == "redis://host:1/0"


@pytest.mark.parametrize("text", ["", ":", "/var/kv", "9:x", "disk store:/x"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is no address of a KV store; write disk:/path"):
        StoreAddress.parse(text)


def test_options_must_be_known_and_not_repeated() -> None:
    with pytest.raises(InvalidArgumentError, match="has one option of a KV store twice"):
        StoreAddress.parse("disk:/x?size=1GB&size=2GB")
    with pytest.raises(InvalidArgumentError, match="has no option 'sise'; it has size"):
        StoreAddress.parse("disk:/x?sise=1GB").check_options(("size",))
    with pytest.raises(InvalidArgumentError, match="has no option 'a'; it has none"):
        StoreAddress.parse("host:1GB?a=1").check_options(())


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("4096", 4096), ("1.5KiB", 1536), ("10GiB", 10 * 2**30), ("2 GB", 2 * 10**9), ("3m", 3 * 10**6), ("1TiB", 2**40)],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "10 PiB", "ten"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is no size; write one such as 10GiB"):
        parse_size(text)


def test_a_size_of_zero_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="0GiB is less than a byte"):
        parse_size("0GiB")
