"""What the host says about this process."""

from __future__ import annotations

import mmap
import sys

from aethermind.hal.host_memory import host_memory_bytes, resident_bytes


def test_memory_that_is_touched_is_resident() -> None:
    before = resident_bytes()
    if sys.platform != "linux":
        assert before is None or before > 0
        return
    assert before is not None
    nbytes = 64 << 20
    # A map of its own: an allocator may hand out memory that other tests touched and freed.
    with mmap.mmap(-1, nbytes) as touched:
        touched.write(b"\1" * nbytes)
        after = resident_bytes()
    assert after is not None
    assert after - before > nbytes // 2
    assert after < host_memory_bytes()
