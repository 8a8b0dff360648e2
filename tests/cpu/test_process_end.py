"""A process keeps its exit code when it ends with daemon threads inside native calls."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A daemon thread waits for a stream that waits for input, which is written during interpreter shutdown. No thread
# releases the GIL before it is inside its native call.
PROGRAM = """
import ctypes, os, sys, threading
from aethermind_cpu import _native
from tests.cpu.native_kernel import CAPSULE, AmKernel, RunFunction, ScratchFunction, _new_capsule

sys.setswitchinterval(3600)
wait_for_input = ctypes.cast(ctypes.CDLL(None).getchar, RunFunction)
kernel = AmKernel(1, 0, 0, 0, b"test/getchar", wait_for_input, ctypes.cast(None, ScratchFunction))
capsule = _new_capsule(ctypes.addressof(kernel), CAPSULE, None)
reading, writing = os.pipe()
os.dup2(reading, 0)

class Last:
    def __del__(self):
        os.write(writing, b"\\n" * team.num_workers)
        for _ in range(2_000):
            event.synchronize()
            os.sched_yield()

def go(entered):
    stream = _native.Stream(team)
    plan = _native.Plan([], [_native.Step(capsule, [], [], [])])
    plan.prepare(team)
    stream.run(plan, (), 0, 1)
    entered.release()
    {call}

event, entered = _native.Event(), threading.Semaphore(0)
team = _native.Team(2)
sys.modules["last"] = Last()
threading.Thread(target=go, args=[entered], daemon=True).start()
entered.acquire()
raise SystemExit(7)
"""


@pytest.mark.parametrize("call", ["stream.synchronize()", "del stream"])
def test_a_daemon_thread_in_a_native_call_does_not_change_the_exit_code(call: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(call=call)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (ended.returncode, ended.stderr) == (7, "")
