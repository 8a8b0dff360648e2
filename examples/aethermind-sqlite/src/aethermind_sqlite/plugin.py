"""What this package registers: a KV store."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl


@hookimpl
def register_kv_stores(registry: Any) -> None:
    registry.register("sqlite", "aethermind_sqlite.store:open_store", provider="aethermind-sqlite")
