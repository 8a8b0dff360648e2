"""Which KV stores are installed, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.cache.stores.kv_store import StoreAddress
from aethermind.errors import ConfigError
from aethermind.plugins.claims import Claims

if TYPE_CHECKING:
    from aethermind.cache.stores.kv_store import KVStore

__all__ = ["KVStoreRegistry"]


class KVStoreRegistry(Claims):
    """Names that addresses of KV stores begin with, and what opens them."""

    kind = "KV store"

    def open(self, text: str) -> KVStore:
        """Open the store at an address; ConfigError lists the installed ones when its name is unknown."""
        address = StoreAddress.parse(text)
        factory = self.find_object(address.name)
        if factory is None:
            raise ConfigError(
                f"Unknown KV store {address.name!r}. Installed: {', '.join(self.names())}. Choose one of them, or "
                "install the package that provides it."
            )
        store: KVStore = factory(address)
        return store
