"""KV offload: an engine writes computed KV blocks to a store, and fetches blocks that the store has.

`KVOffload` is the engine's interface. A writer and a reader have threads of their own, `health` has the circuit breaker
of a failing store, and `block_bytes` serialises blocks. `states` has the snapshots of recurrent states, which are
stored beside blocks.
"""

from __future__ import annotations

from aethermind.engine.kv_offload.block_bytes import fingerprint
from aethermind.engine.kv_offload.health import KVStoreStats
from aethermind.engine.kv_offload.offload import KVOffload

__all__ = ["KVOffload", "KVStoreStats", "fingerprint"]
