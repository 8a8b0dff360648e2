"""The story generator behind the demo model: the same story for a seed, no two alike, and each one hangs together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

TRAINING = Path(__file__).parents[2] / "tools" / "demo-model"
sys.path.append(str(TRAINING))

from cast import Cast  # noqa: E402
from names import ALL_NAMES  # noqa: E402
from plots_heart import night_noise  # noqa: E402
from plots_search import lost_toy  # noqa: E402
from stories import PLOTS, stories, story  # noqa: E402
from world import KINDS, PLACES  # noqa: E402

COUNT = 3000


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(stories(0, COUNT))


def test_a_seed_gives_the_same_story_in_another_process_with_another_hash_seed() -> None:
    command = [sys.executable, str(TRAINING / "stories.py"), "--seed", "11", "--count", "20"]
    outputs = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, check=True, text=True
        ).stdout
        for salt in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop().split("<|endoftext|>")[0] == story(11)


def test_stories_are_distinct(texts: list[str]) -> None:
    assert len(set(texts)) == COUNT


def test_most_stories_begin_with_once_upon_a_time(texts: list[str]) -> None:
    share = sum(text.startswith("Once upon a time") for text in texts) / COUNT
    assert 0.5 < share < 0.85


def test_there_are_one_and_two_paragraph_stories_of_a_readable_length(texts: list[str]) -> None:
    assert {text.count("\n\n") for text in texts} == {0, 1}
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) > 50
    assert max(lengths) < 190


@pytest.mark.parametrize(
    "flaw",
    [
        r"[{}\[\]|_]",
        r"  ",
        r" $",
        r"\b[Aa] [aeio]",
        r"\b[Aa]n (?!hour)[^aeiou]",
        r"\b(\w+) \1\b",
        r"[.!?] [a-z]",
        r'(^|[.!?] )"[a-z]',
        r"\bNone\b",
        r" [.,!?]",
        r"[^.!?\"]$",
        r"\n\n[a-z]",
        r"\.\.",
    ],
)
def test_no_story_has_the_flaw(flaw: str, texts: list[str]) -> None:
    found = [text for text in texts if re.search(flaw, text)]
    assert not found, found[0]


def test_quotes_open_and_close_within_a_paragraph(texts: list[str]) -> None:
    assert all(paragraph.count('"') % 2 == 0 for text in texts for paragraph in text.split("\n\n"))


def test_every_name_is_introduced_before_it_is_used(texts: list[str]) -> None:
    for text in texts:
        for name in ALL_NAMES & set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text)):
            introduced = re.search(rf"(named|(?<!\" )called|friend|story of) {name}\b|\b{name} (was an?|the) ", text)
            assert introduced, (name, text)
            first = re.search(rf"(?<=[a-z,] ){name}\b", text)
            assert first is not None
            assert introduced.start() <= first.start(), (name, text)


def test_pronouns_match_the_hero() -> None:
    relatives = re.compile(r"mother|father|aunt|uncle")
    other = {"he": r"\b(she|her)\b", "she": r"\b(he|him|his)\b"}
    checked = 0
    for seed in range(400):
        tale = night_noise(Random(seed), PLACES[seed % len(PLACES)])
        text = tale.text()
        if not relatives.search(text):
            assert not re.search(other[tale.hero.he], text, re.IGNORECASE), text
            checked += 1
    assert checked > 100


@pytest.mark.parametrize(
    ("deed", "skill"),
    [
        ("jumped into the water, swam", "swim"),
        ("climbed up to the", "climb"),
        ("flew up, took", "fly"),
        ("dug and dug", "dig"),
        ("had prickles", "prickly"),
    ],
)
def test_only_a_helper_with_the_skill_does_the_deed(deed: str, skill: str) -> None:
    checked = 0
    for seed in range(1500):
        text = lost_toy(Random(seed), PLACES[seed % len(PLACES)]).text()
        found = re.search(rf"(the |The )?(\w+) {deed}", text)
        if found:
            named = re.search(rf"(\w+) (?:named|called) {found[2]}\b", text)
            kind = found[2] if found[1] else (named[1] if named else "")
            assert skill in KINDS[kind].skills, text
            checked += 1
    assert checked > 5


def test_the_lost_toy_is_found_at_the_end() -> None:
    for seed in range(500):
        text = lost_toy(Random(seed), PLACES[seed % len(PLACES)]).text()
        toy = re.search(
            r"(?:had|him|his|her) (?:an? )?(?:red|blue|yellow|green|striped|white|purple|orange) "
            r"((?:(?:paper|wooden|spinning|glass) )?\w+)",
            text,
        )
        assert toy is not None, text
        assert toy[1].split()[-1] in " ".join(text.split()[-65:]), text


def test_characters_of_a_story_share_neither_name_nor_kind() -> None:
    for seed, place in enumerate(PLACES * 20):
        cast = Cast.at(Random(seed), place)
        hero = cast.hero()
        friend, helper = cast.friend(hero), cast.helper("fly", "swim", "climb", "dig")
        assert hero.name != friend.name
        assert helper is None or (helper.kind not in (hero.kind, friend.kind) and helper.kind in place.kinds)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_every_plot_can_happen_in_every_place(plot, place) -> None:
    assert all(plot(Random(seed), place).text() for seed in range(20))
