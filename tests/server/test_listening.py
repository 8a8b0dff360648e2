"""Where a server listens, and what its connections are set to, on which every answer's last 40 ms depend."""

from __future__ import annotations

import socket

import pytest

from aethermind.errors import InvalidArgumentError
from aethermind.server.run import bind


def test_small_answers_are_not_held_back() -> None:
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidArgumentError, match=f"Port {port} of 127.0.0.1 .* Choose another with --port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["a" * 70, "192.0.2.1"])  # no name can be so long; nobody's address (RFC 5737)
def test_an_address_that_is_none_of_ours(host: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Correct --host\."):
        bind(host, 0)
