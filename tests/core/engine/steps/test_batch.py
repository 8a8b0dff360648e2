"""A step's batch in the plan's inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.core.engine.loops import Loop

from aethermind.engine.steps.batch import BatchWriter


def test_tables_are_copied_as_memory_and_padded_with_block_0() -> None:
    loop = Loop(block_size=4)
    requests = [loop.add(num_prompt, max_tokens=9) for num_prompt in (11, 2, 5)]
    decision = loop.schedule()
    names = ("token_ids", "positions", "slot_mapping", "cu_seqlens_q", "seqlens_k", "block_tables", "logits_rows")
    arrays: dict[str, Any] = {name: np.full(64, -9, np.int32) for name in names}
    sampled, width = BatchWriter(arrays, loop.cache).write(decision, lambda width: width + 1)
    assert (sampled, width) == (requests, 4)
    tables = [loop.cache.block_table(request.request_id) for request in requests]
    assert all(memoryview(table).format == "i" for table in tables), "not a list, which is read number by number"
    written = arrays["block_tables"][:12].reshape(3, 4).tolist()
    assert written == [[*table, *[0] * (4 - len(table))] for table in tables]
    assert (arrays["block_tables"][12:] == -9).all()
