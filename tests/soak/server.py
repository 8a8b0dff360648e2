"""A server of its own process, as people run it, and what can be seen of it from outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["KEY", "Server", "started"]

KEY = "light"
"""What is sent as a key where nothing else is said; a server without keys does not look at it."""

_HEADERS = {"Authorization": f"Bearer {KEY}"}

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    host: str
    port: int
    pid: int
    model: str

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.host}:{self.port}"

    def samples(self) -> dict[str, float]:
        """Its metrics by name without the prefix, those of one name added up."""
        found: dict[str, float] = {}
        text = httpx.get(f"{self.url}/metrics", headers=_HEADERS, timeout=60, trust_env=False).text
        for sample in (one for family in text_string_to_metric_families(text) for one in family.samples):
            name = sample.name.removeprefix("aethermind_")
            found[name] = found.get(name, 0.0) + sample.value
        return found

    def resident_bytes(self) -> int:
        """Memory of its processes, pages that they share counted in each."""
        return sum(_resident_bytes(pid) for pid in (self.pid, *_children(self.pid)))

    def own_resident_bytes(self) -> int:
        """Memory of the process that answers HTTP requests."""
        return _resident_bytes(self.pid)

    def engine_pids(self) -> list[int]:
        """The processes of its engines: its children that run our code."""
        return [pid for pid in _children(self.pid) if "aethermind" in _command(pid)]

    def is_idle(self) -> bool:
        """Whether nothing runs, waits, or holds a block or a connection (but this question's)."""
        now = self.samples()
        is_free = now["num_free_kv_blocks"] == now["num_kv_blocks"]
        return (
            is_free and not now["num_requests_running"] + now["num_requests_waiting"] and now["http_requests_open"] == 1
        )


@contextmanager
def started(flags: Sequence[str]) -> Iterator[Server]:
    """Start `aethermind serve` on a free port; stop it at the end, which it must do in good order."""
    command = [sys.executable, "-m", "aethermind", "serve", "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said: list[str] = []
    # A line for each request would fill a pipe that nobody reads, and the server would wait.
    drain = Thread(target=said.extend, args=(process.stderr,))
    try:
        address = None
        while address is None:
            line = process.stderr.readline()
            if not line:
                raise RuntimeError(f"the server did not start: {' '.join(command)}")
            if " at http://" in line:
                address = urlsplit(line.split(" at ")[1].split(" ")[0])
        drain.start()
        models = f"{address.scheme}://{address.netloc}/v1/models"
        listed = httpx.get(models, headers=_HEADERS, timeout=60, trust_env=False)
        model = listed.json()["data"][0]["id"]
        yield Server(str(address.hostname), int(address.port or 0), process.pid, model)
    finally:
        process.terminate()
        status = process.wait(600)
        if drain.is_alive():
            drain.join()
    if status != 0:
        raise RuntimeError(f"the server ended with {status}: {''.join(said)}")


def _children(pid: int) -> list[int]:
    direct = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [one for child in direct for one in (child, *_children(child))]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
