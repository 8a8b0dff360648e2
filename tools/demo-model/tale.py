"""A tale being told: sentences chosen among variants, filled with its characters, joined into paragraphs."""

from __future__ import annotations

import re
from random import Random

from cast import Cast, Character
from world import Place

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SENTENCE_START = re.compile(r'(^"?|[.!?] "?|\." "?|[!?]" ")([a-z])')
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio]|um|un(?!i))")


class Tale:
    """Collects the text of one story (mutable).

    Templates use `[one|other]` for a random choice, `{slot}` for what the story has bound, and `{he}`,
    `{him}`, `{his}` for the hero. Sentence starts are capitalised and "a" becomes "an" before a vowel.
    """

    def __init__(self, rng: Random, place: Place, cast: Cast, hero: Character) -> None:
        self.rng = rng
        self.place = place
        self.cast = cast
        self.brief = rng.random() < 0.4
        self._slots: dict[str, object] = {
            "h": hero,
            "he": hero.he,
            "him": hero.him,
            "his": hero.his,
            "He": hero.he.capitalize(),
            "place": place.name,
        }
        self._sentences: list[str] = []
        self._turns: list[int] = []

    @property
    def hero(self) -> Character:
        """The main character."""
        hero = self._slots["h"]
        assert isinstance(hero, Character)
        return hero

    def bind(self, **slots: object) -> None:
        """Give names to what later sentences will mention."""
        self._slots.update(slots)

    def say(self, *variants: str) -> None:
        """Add one of `variants`."""
        text = _ARTICLE.sub(r"\1n ", self.fill(self.rng.choice(variants)))
        self._sentences.append(_SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text))

    def maybe(self, *variants: str, chance: float = 0.45) -> None:
        """Add one of `variants`, or nothing; never in a brief tale."""
        if not self.brief and self.rng.random() < chance:
            self.say(*variants)

    def turn(self) -> None:
        """Mark a place where a second paragraph may begin."""
        self._turns.append(len(self._sentences))

    def fill(self, template: str) -> str:
        """Resolve the choices, then the slots, of one template."""
        while _CHOICE.search(template):
            template = _CHOICE.sub(lambda match: self.rng.choice(match[1].split("|")), template)
        return template.format(**self._slots)

    def text(self) -> str:
        """The finished story: one paragraph, or two when the tale has a turn and chance says so."""
        parts = [" ".join(self._sentences)]
        if self._turns and self.rng.random() < 0.4:
            cut = self.rng.choice(self._turns)
            parts = [" ".join(self._sentences[:cut]), " ".join(self._sentences[cut:])]
        return "\n\n".join(part for part in parts if part)
