"""Which names can mean nothing but this machine."""

from __future__ import annotations

from ipaddress import ip_address

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether a host is an address that loops back, or `localhost`; in lower case, and without the brackets of URLs."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
