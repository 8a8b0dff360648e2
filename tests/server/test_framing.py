"""Events written from a cached template equal those that are encoded whole, for any text."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.engine.requests.output_delta import CompletionDelta
from aethermind.server.generation import PromptState
from aethermind.server.openai.chat import ChatMessage, ChatRequest
from aethermind.server.openai.chat_response import ChatResponseBuilder
from aethermind.server.openai.completions import CompletionRequest, CompletionResponseBuilder
from aethermind.server.sse import NAMED, UNNAMED, Framing, TextEvents
from aethermind.text.answer_format import AnswerFormat

MODEL: Any = SimpleNamespace(name='a "model" of {text}', answer_format=AnswerFormat(), tokenizer=None)
TEXTS = st.text() | st.sampled_from(['"', "\\", "\n\r\t", "\x00\x1f\x7f", "\u2028\u2029", "🦊", "</script>"])


@pytest.mark.parametrize("framing", [UNNAMED, NAMED])
@given(text=TEXTS, index=st.integers(0, 3))
def test_an_event_from_a_template_equals_an_encoded_event(framing: Framing, text: str, index: int) -> None:
    def event(index: int, text: str) -> dict[str, Any]:
        return {"type": "delta", "choices": [{"index": index, "text": text, "end": None}]}

    events = TextEvents(framing, event)
    for _ in range(2):
        assert events.encode(index, text) == framing.encode(event(index, text))
    assert framing.encode_events([event(0, "a"), events.encode(1, text)]) == b"".join(
        framing.encode(event(*one)) for one in [(0, "a"), (1, text)]
    )


@given(text=TEXTS.filter(bool))
def test_a_part_with_nothing_but_text_differs_in_its_text_only(text: str) -> None:
    """Compared with a chunk that is encoded as an object, as the last of an answer is."""
    completion = CompletionResponseBuilder(CompletionRequest(model="m", prompt="x"), MODEL, "req_1")
    plain, last = (_events(completion, text, reason) for reason in (None, "length"))
    assert [one["choices"][0]["text"] for one in (plain[0], last[0])] == [text, text]
    assert plain[0] | {"choices": None} == last[0] | {"choices": None}
    assert plain[0]["choices"][0] | {"finish_reason": "length"} == last[0]["choices"][0]
    message = ChatMessage(role="user", content="x")
    chat = ChatResponseBuilder(ChatRequest(model="m", messages=[message]), MODEL, "req_1", "")
    role, *pieces = _events(chat, "a" + text + "b", None)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(one["choices"][0]["delta"]["content"] for one in pieces) == "a" + text + "b"
    assert all(one | {"choices": None} == role | {"choices": None} for one in pieces)


def _events(answer: Any, text: str, reason: str | None) -> list[dict[str, Any]]:
    """The events of an answer's first part, as a client reads them."""
    written = UNNAMED.encode_events(
        answer.delta_events(0, CompletionDelta(0, text, [1], None, 1, reason), PromptState("x", [1]))
    )
    return [json.loads(one.removeprefix(b"data: ")) for one in written.split(b"\n\n") if one]
