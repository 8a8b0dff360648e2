"""A reader that does not read costs the engine neither time nor memory, and misses nothing that counts."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from aethermind.engine.process.outbox import Outbox
from aethermind.engine.process.output_delta import OutputAccumulator
from aethermind.engine.process.protocol import EngineOutputs, LogLine, Unpacker, UtilityResult
from aethermind.engine.requests.output import CompletionOutput, RequestMetrics, RequestOutput
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.errors import ContextLengthError

PROMPT = EnginePrompt("Once", [3])


def state(num_tokens: int, *, finished: bool = False, name: str = "name") -> RequestOutput:
    answer = CompletionOutput(
        0, "word " * num_tokens, list(range(num_tokens)), None, "stop" if finished else None, None
    )
    return RequestOutput(name, "Once", [3], [answer], finished, RequestMetrics(0.0, None, None))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield ours, theirs


def read_all(outbox: Outbox, sock: socket.socket) -> list[EngineOutputs]:
    unpacker, news = Unpacker(), []
    sock.setblocking(False)
    while True:
        is_done = outbox.flush()
        try:
            while True:
                news += unpacker.feed(sock.recv(1 << 16))
        except BlockingIOError:
            if is_done:
                return news


def test_states_that_nobody_read_are_merged(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(theirs)
    outbox.open(1, "name")
    growing = OutputAccumulator("name", PROMPT)
    num_told = 1
    outbox.put([state(num_told)])
    while outbox.flush():  # until the system takes no more, which is sooner or later
        num_told += 1
        outbox.put([state(num_told)])
    for num_tokens in range(num_told + 1, num_told + 2000, 7):
        outbox.put([state(num_tokens)])
        outbox.flush()
    outbox.put([state(num_told + 2000, finished=True)])
    pieces = [piece[1:] for one in read_all(outbox, ours) for piece in one.states or ()]
    assert len(pieces) == num_told + 1
    assert [growing.grow(piece) for piece in pieces][-1] == state(num_told + 2000, finished=True)
    assert outbox.is_empty


def test_news_may_be_held_back_but_for_the_first_and_the_last(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    now_s = 5.0
    outbox, growing = Outbox(theirs, lambda: now_s), OutputAccumulator("name", PROMPT)
    outbox.open(1, "name", 0.5)
    outbox.open(2, "other")

    def told(num_tokens: int, *, finished: bool = False) -> list[int]:
        outbox.put([state(num_tokens, finished=finished, name=name) for name in ("name", "other")])
        pieces = [piece for news in read_all(outbox, ours) for piece in news.states or ()]
        for handle, *piece in pieces:
            if handle == 1:
                assert growing.grow(piece) == state(num_tokens, finished=finished)
        return [handle for handle, *_ in pieces]

    assert told(1) == [1, 2]
    now_s = 5.2
    assert told(2) == [2]
    now_s = 5.4
    assert told(3) == [2]
    assert outbox.is_empty
    now_s = 5.5
    ((handle, *piece),) = [piece for news in read_all(outbox, ours) for piece in news.states or ()]
    assert handle == 1
    assert growing.grow(piece) == state(3)
    assert told(4) == [2]
    assert told(5, finished=True) == [1, 2]


def test_refusals_and_replies_all_arrive_and_logs_are_bounded(ends: tuple[socket.socket, socket.socket]) -> None:
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
    news = read_all(outbox, ours)
    numbers = range(num_told + 3000)
    assert [one.number for part in news for one in part.results or ()] == list(numbers)
    refused = [(handle, str(error)) for part in news for handle, error in part.refused or ()]
    assert refused == [(number, f"no {number}") for number in numbers]
    lines = [line.text for part in news for line in part.logs]
    assert lines == [f"line {number}" for number in numbers if number < num_told or number >= numbers[-1000]]


def test_dropped_requests_are_not_told_of(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(theirs)
    outbox.open(1, "name")
    outbox.put([state(1)])
    outbox.drop(1)
    outbox.drop(1)
    assert outbox.name_of(1) is None
    assert read_all(outbox, ours) == []


def test_a_name_that_comes_again_gets_nothing_of_the_request_before(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(theirs)
    outbox.open(1, "name")
    outbox.put([state(5, finished=True)])
    assert outbox.name_of(1) == "name", "its end was not told yet"
    outbox.drop(1)
    outbox.open(2, "name")
    outbox.put([state(2)])
    ((handle, *piece),) = [piece for news in read_all(outbox, ours) for piece in news.states or ()]
    assert handle == 2
    assert OutputAccumulator("name", PROMPT).grow(piece) == state(2)


def test_a_reader_that_has_gone_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outbox = Outbox(theirs)
    ours.close()
    outbox.progress = (1, 2)
    with pytest.raises(OSError, match="pipe"):
        outbox.flush()
