"""How stories begin and end, whatever happens between."""

from __future__ import annotations

from tale import Tale
from world import ADJECTIVES, KINDS

_ONCE = (
    "once upon a time, {at}, there lived {a_hero} [named|called] {h}.",
    "once upon a time there was {a_hero} [named|called] {h} who lived {at}.",
    "once upon a time, there was {a_hero} [named|called] {h}. {He} lived {at}.",
    "once upon a time, {a_hero} named {h} lived {at}.",
    "once upon a time there lived {a_hero} named {h}. {h} lived {at}.",
)
_OTHER = (
    "{h} was {a_hero} who lived {at}.",
    "there was once {a_hero} [named|called] {h} who lived {at}.",
    "a long time ago, {a_hero} named {h} lived {at}.",
    "{at} lived {a_hero} [named|called] {h}.",
    "there once lived {a_hero} named {h}. {His} home was {at}.",
    "the {adj} {kind} [named|called] {h} lived {at}.",
    "{a_hero} named {h} lived {at}.",
    "this is the story of {h}, {a_hero} who lived {at}.",
    "do you know the story of {h}, {a_hero} who lived {at}?",
    "not so long ago, {at}, there was {a_hero} [named|called] {h}.",
)
_HABITS = (
    "every day {he} liked to {pastime}.",
    "{he} loved to {pastime}.",
    "{he} loved to {pastime} and to {pastime2}.",
    "in the [morning|afternoon|evening] {he} liked to {pastime}.",
    "when the sun was shining, {h} liked to {pastime}.",
)
_CODAS = {
    "happy": (
        "and from that day on, {h} was [never sad for long|a little braver|a little wiser].",
        "it was the best day of the [whole year|whole summer].",
        "that night, {h} fell asleep with a smile.",
        "{h} was very happy.",
        "{h} smiled all the way home.",
        "and they all lived happily ever after.",
        "that evening, {h} was tired and happy.",
    ),
    "thanks": (
        "{h} never forgot how {f} had helped {him}.",
        "from that day on, {h} and {f} were [good|best] friends.",
        "after that, {h} and {f} [met|played together] every day.",
        '"[Thank you|Thank you so much|You are a true friend], {f_call}," said {h}.',
        "{h} thanked {f} and gave {f.him} a big hug.",
        "since that day, {h} has always been ready to help others too.",
    ),
    "family": (
        '"Thank you, {f_call}," said {h}.',
        "{h} thanked {f} and gave {f.him} a big hug.",
        "{f} and {h} [laughed together|smiled at each other].",
        "{h} never forgot how {f} had helped {him}.",
    ),
}


def open_story(tale: Tale) -> None:
    """Introduce the hero and the place; binds `at`, `a_hero`, `kind`, `adj`, `His`."""
    rng, hero, place = tale.rng, tale.hero, tale.place
    adjective = rng.choice(ADJECTIVES)
    pastime, other = rng.sample(place.pastimes, 2)
    tale.bind(
        at=rng.choice(place.at),
        a_hero=f"a {adjective} {hero.kind}",
        kind=hero.kind,
        adj=adjective,
        His=hero.his.capitalize(),
        pastime=pastime,
        pastime2=other,
        hand=hero.hand,
    )
    other = _OTHER if hero.child else (*_OTHER, "{h} the {kind} lived {at}.")
    tale.say(*(_ONCE if rng.random() < 0.68 else other))
    tale.maybe(*_HABITS, chance=0.35)


def close_story(tale: Tale, *moods: str) -> None:
    """Often add a last sentence in one of `moods`: "happy", or "thanks" when a helper is bound."""
    mood = tale.rng.choice(moods)
    if mood == "thanks" and tale.fill("{f}").startswith(tale.hero.his + " "):
        mood = "family"
    tale.maybe(*_CODAS[mood], chance=0.6)


def bind_helper(tale: Tale, helper: object) -> None:
    """Bind the helper as `f`, with `f_call`, the way the hero addresses them."""
    name = str(helper)
    tale.bind(f=helper, f_call=name.split()[-1].capitalize() if " " in name else name)


def favourite_food(kind: str) -> str:
    """What an animal likes to eat, or what a child likes."""
    return KINDS[kind].food if kind in KINDS else "cookies"
