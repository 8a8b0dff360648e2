"""What the connections of a server are set to, on which every answer's last 40 ms depend."""

from __future__ import annotations

import socket

from aethermind.server.run import bind


def test_small_answers_are_not_held_back() -> None:
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
