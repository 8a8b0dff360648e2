"""Keys and values beyond one engine's memory: what it computes is offered to a store, what a store has is fetched.

`KVOffload` is all that the engine sees. Underneath, a writer and a reader work in threads of their own, `health`
decides when a store is left alone, `block_bytes` moves blocks between device memory and containers.
"""

from __future__ import annotations

from aethermind.engine.kv_offload.fingerprint import fingerprint
from aethermind.engine.kv_offload.offload import KVOffload
from aethermind.engine.kv_offload.stats import KVStoreStats

__all__ = ["KVOffload", "KVStoreStats", "fingerprint"]
