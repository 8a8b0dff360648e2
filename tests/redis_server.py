"""A Redis server of a test's own: on loopback, on a free port, with nothing on disk."""

from __future__ import annotations

import shutil
import subprocess
import time

import redis
from tests.ports import free_port

__all__ = ["REDIS_SERVER", "RedisServer"]

REDIS_SERVER = next(filter(None, map(shutil.which, ("redis-server", "valkey-server"))), None)
_PATIENCE_S = 120


class RedisServer:
    """Runs until `stop`; `start` runs it again, empty, on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis(port=self.port)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert REDIS_SERVER is not None
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([REDIS_SERVER, *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert self._process.poll() is None, "redis-server ended at once"
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.01)  # until it listens

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_PATIENCE_S)
            self._process = None
