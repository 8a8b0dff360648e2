"""Training rows: stories and dialogues as token ids, with the weight of each token in the loss."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from dialogues import Message, dialogue
from stories import stories, story
from tokenizers import Tokenizer
from tokens import END_OF_TEXT, IM_END, IM_START

HELD_OUT_SEEDS = range(1000)
HELD_OUT_QUESTIONS = Path(__file__).parent / "held_out_questions.json"

Row = tuple[list[int], list[float]]


def held_out_stories() -> set[str]:
    """The stories no training run may see."""
    return {story(seed) for seed in HELD_OUT_SEEDS}


def held_out_questions() -> set[str]:
    """The questions, in lower case, no training run may see; none where the file is missing."""
    if not HELD_OUT_QUESTIONS.exists():
        return set()
    return {entry["question"].lower() for entry in json.loads(HELD_OUT_QUESTIONS.read_text(encoding="utf-8"))}


def rendered(messages: Iterable[Message]) -> list[tuple[str, bool]]:
    """The chat template's text of `messages` in pieces, each with whether the model is to say it."""
    pieces = []
    for role, content in messages:
        pieces.append((f"{IM_START}{role}\n", False))
        pieces.append((content + IM_END, role == "assistant"))
        pieces.append(("\n", False))
    return pieces


class Rows:
    """Rows of stories or of dialogues; each begins with one, as a prompt does (mutable)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        first_story: int,
        first_dialogue: int,
        invented_names: float,
        share: float,
        question_weight: float,
    ) -> None:
        self.first_story = self.story = first_story
        self.first_dialogue = self.dialogue = first_dialogue
        self._invented_names = invented_names
        self._share = share
        self._question_weight = question_weight
        self._tokenizer = tokenizer
        self._held_out_stories = held_out_stories()
        self._held_out_questions = held_out_questions()
        self._end = tokenizer.token_to_id(END_OF_TEXT)
        self._told: list[Row] = []
        self._due = 0.0

    def batch(self, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`rows` new rows: `length` + 1 ids each, and the weights of the last `length`."""
        ids, weights = [], []
        for _ in range(rows):
            self._due += self._share
            row = self._row(length, talk=self._due >= 1)
            self._due -= self._due >= 1
            ids.append(row[0])
            weights.append(row[1][1:])
        return torch.tensor(ids), torch.tensor(weights)

    def _row(self, length: int, *, talk: bool) -> Row:
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) <= length:
            more = self._next_dialogue() if talk else self._next_story()
            ids += more[0]
            weights += more[1]
        return ids[: length + 1], weights[: length + 1]

    def _next_story(self) -> Row:
        if not self._told:
            told = stories(self.story, 256, self._invented_names)
            texts = [text + END_OF_TEXT for text in told if text not in self._held_out_stories]
            encoded = self._tokenizer.encode_batch(texts)
            self._told = [(encoding.ids, [1.0] * len(encoding.ids)) for encoding in encoded]
            self.story += 256
        return self._told.pop()

    def _next_dialogue(self) -> Row:
        while True:
            messages = dialogue(self.dialogue, self._held_out_questions)
            self.dialogue += 1
            if not any(content in self._held_out_stories for _, content in messages):
                break
        pieces = rendered(messages)
        ids: list[int] = []
        weights: list[float] = []
        for encoding, (_, said) in zip(self._tokenizer.encode_batch([text for text, _ in pieces]), pieces, strict=True):
            ids += encoding.ids
            weights += [1.0 if said else self._question_weight] * len(encoding.ids)
        return [*ids, self._end], [*weights, 0.0]
