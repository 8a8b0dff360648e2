"""What the host says about this process."""

from __future__ import annotations

import gc
import sys

import numpy as np

from aethermind.hal.host_memory import host_memory_bytes, resident_bytes


def test_memory_that_is_touched_is_resident() -> None:
    gc.collect()  # what other tests left is not to go in between
    before = resident_bytes()
    if sys.platform != "linux":
        assert before is None or before > 0
        return
    assert before is not None
    touched = np.ones(64 << 20, np.uint8)
    after = resident_bytes()
    assert after is not None
    assert after - before > touched.nbytes // 2
    assert after < host_memory_bytes()
