"""Streamed text equals the whole answer in every script; no character is split or invented."""

from __future__ import annotations

import httpx
import openai
import pytest

TEXTS = {
    "emoji": "🦊🐔👍",
    "one emoji of many parts": "👩‍👩‍👧‍👦 and 🏳️‍🌈, 👋🏽",
    "Chinese": "狐狸和母鸡是朋友。",
    "Arabic": "الثعلب والدجاجة صديقان",
    "Devanagari": "लोमड़ी और मुर्गी",
    "Thai": "จิ้งจอกกับแม่ไก่",
    "combining marks": "Vie\u0302\u0323t Nam, e\u0301",
    "outside the plane": "𝔣𝔬𝔵 𒀀 𓃥",
    "among letters": "a🦊b狐c",
    "a replacement that was meant": "it reads \ufffd here",
    "line ends": "one\r\ntwo\u2028three\n",
}
GREEDY = {"model": "demo", "prompt": "The fox says", "temperature": 0.0, "max_tokens": 200}


def forced(text: str) -> dict[str, object]:
    """A constraint to exactly this text."""
    return {"structured_outputs": {"choice": [text]}}


def streamed(client: openai.OpenAI, **ask: object) -> str:
    return "".join(part.choices[0].text for part in client.completions.create(**ask, stream=True) if part.choices)


@pytest.mark.parametrize("name", TEXTS)
def test_any_text_is_the_same_whole_and_streamed(client: openai.OpenAI, name: str) -> None:
    ask = {**GREEDY, "extra_body": forced(TEXTS[name])}
    answer = client.completions.create(**ask)
    assert answer.choices[0].text == TEXTS[name]
    assert streamed(client, **ask) == TEXTS[name]
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "stream": True}
    parts = client.chat.completions.create(**chat, extra_body=forced(TEXTS[name]))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_an_answer_that_ends_within_a_character_omits_it(client: openai.OpenAI, name: str) -> None:
    text = TEXTS[name]
    num_tokens = client.completions.create(**GREEDY, extra_body=forced(text)).usage.completion_tokens
    for most in range(1, num_tokens, max(num_tokens // 8, 1)):
        ask = {**GREEDY, "max_tokens": most, "extra_body": forced(text)}
        whole = client.completions.create(**ask).choices[0].text
        assert text.startswith(whole)
        assert streamed(client, **ask) == whole


def test_random_answers_are_the_same_whole_and_streamed(client: openai.OpenAI) -> None:
    for seed in range(6):
        ask = {**GREEDY, "temperature": 4.0, "seed": seed, "max_tokens": 60, "extra_body": {"ignore_eos": True}}
        assert streamed(client, **ask) == client.completions.create(**ask).choices[0].text


def test_a_stop_string_ends_a_text_of_emoji(client: openai.OpenAI) -> None:
    ask = {**GREEDY, "stop": ["👍"], "extra_body": forced("🦊🐔👍🦊")}
    assert client.completions.create(**ask).choices[0].text == streamed(client, **ask) == "🦊🐔"


def test_events_are_split_at_line_feeds_only(http: httpx.Client) -> None:
    body = {**GREEDY, "stream": True, **forced("a\u2028b\u0085c\rd")}
    events = http.post("/v1/completions", json=body).content.split(b"\n\n")
    assert all(event.startswith(b"data: ") and b"\n" not in event and b"\r" not in event for event in events[:-1])
