"""Listening sockets: errors of addresses, and options of connections."""

from __future__ import annotations

import socket

import pytest

from aethermind.errors import InvalidArgumentError
from aethermind.server.run import bind


def test_connections_disable_the_nagle_algorithm() -> None:
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_an_error() -> None:
    with bind("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidArgumentError, match=f"Port {port} of 127.0.0.1 .* Choose another with --port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    "host", ["a" * 70, "192.0.2.1"]
)  # a name that is too long; an address of no machine (RFC 5737)
def test_an_address_of_another_machine_is_an_error(host: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Correct --host\."):
        bind(host, 0)
