"""The outbox never blocks: output for a slow reader is merged or bounded, and nothing that matters is lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.core.engine.requests.sources import WordSource, words

from aethermind.engine.process.protocol import EngineOutputs, LogLine, Unpacker, UtilityResult, decode_delta
from aethermind.engine.process.worker import Outbox
from aethermind.engine.requests.output_delta import OutputAccumulator, OutputDelta
from aethermind.errors import ContextLengthError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield ours, theirs


def read_all(outbox: Outbox, sock: socket.socket) -> list[EngineOutputs]:
    unpacker, messages = Unpacker(), list[EngineOutputs]()
    sock.setblocking(False)
    while True:
        is_done = outbox.flush()
        try:
            while True:
                messages += unpacker.feed(sock.recv(1 << 16))
        except BlockingIOError:
            if is_done:
                return messages


def read_deltas(outbox: Outbox, sock: socket.socket) -> list[tuple[int, OutputDelta]]:
    """The deltas that were sent, by handle."""
    messages = read_all(outbox, sock)
    return [(handle, decode_delta("name", values)) for one in messages for handle, *values in one.deltas or ()]


def test_output_that_was_not_read_is_merged(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox, source = Outbox(theirs), WordSource()
    outbox.open(1, "name")
    outbox.put([source.grow()])
    while outbox.flush():  # until the socket's buffer is full
        outbox.put([source.grow()])
    num_sent = source.num_tokens
    for _ in range(300):
        outbox.put([source.grow(7)])
        outbox.flush()
    outbox.put([source.end()])
    deltas = read_deltas(outbox, ours)
    assert len(deltas) == num_sent + 1
    accumulator = OutputAccumulator("Once", [3])
    assert [accumulator.add(delta) for _, delta in deltas][-1] == words(source.num_tokens, finished=True)
    assert outbox.is_empty


def test_output_is_held_except_the_first_and_the_last(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    now_s = 5.0
    outbox, accumulator = Outbox(theirs, lambda: now_s), OutputAccumulator("Once", [3])
    sources = [WordSource("name"), WordSource("other")]
    outbox.open(1, "name", 0.5)
    outbox.open(2, "other")

    def sent() -> list[int]:
        deltas = read_deltas(outbox, ours)
        for handle, delta in deltas:
            if handle == 1:
                source = sources[0]
                assert accumulator.add(delta) == words(source.num_tokens, finished=source.has_ended)
        return [handle for handle, _ in deltas]

    outbox.put([one.grow() for one in sources])
    assert sent() == [1, 2]
    for later_s in (5.2, 5.4):
        now_s = later_s
        outbox.put([one.grow() for one in sources])
        assert sent() == [2]
    assert outbox.is_empty
    now_s = 5.5
    assert sent() == [1]
    outbox.put([one.grow() for one in sources])
    assert sent() == [2]
    outbox.put([one.end() for one in sources])
    assert sent() == [1, 2]


def test_all_refusals_and_results_arrive_and_log_lines_are_bounded(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(theirs)
    num_told = 0

    def say(number: int) -> None:
        outbox.add_result(UtilityResult(number, "x" * 10))
        outbox.refuse(number, ContextLengthError(f"no {number}"))
        outbox.log(LogLine(30, "name", f"line {number}", 0.0, None))

    while outbox.flush():  # until the system takes no more
        say(num_told)
        num_told += 1
    for number in range(num_told, num_told + 3000):
        say(number)
        if number % 100 == 0:
            outbox.flush()
    messages = read_all(outbox, ours)
    numbers = range(num_told + 3000)
    assert [one.number for part in messages for one in part.results or ()] == list(numbers)
    refused = [(handle, str(error)) for part in messages for handle, error in part.refused or ()]
    assert refused == [(number, f"no {number}") for number in numbers]
    lines = [line.text for part in messages for line in part.logs]
    assert lines == [f"line {number}" for number in numbers if number < num_told or number >= numbers[-1000]]


def test_output_of_dropped_requests_is_not_sent(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(theirs)
    outbox.open(1, "name")
    outbox.put([WordSource().grow()])
    outbox.drop(1)
    outbox.drop(1)
    assert outbox.name_of(1) is None
    assert read_all(outbox, ours) == []


def test_a_reused_name_gets_no_output_of_the_request_before(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(theirs)
    outbox.open(1, "name")
    outbox.put([WordSource().end(5)])
    assert outbox.name_of(1) == "name", "its end was not sent yet"
    outbox.drop(1)
    outbox.open(2, "name")
    outbox.put([WordSource().grow(2)])
    ((handle, delta),) = read_deltas(outbox, ours)
    assert handle == 2
    assert OutputAccumulator("Once", [3]).add(delta) == words(2)


def test_a_closed_socket_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(theirs)
    ours.close()
    outbox.progress = (1, 2)
    with pytest.raises(OSError, match="pipe"):
        outbox.flush()
