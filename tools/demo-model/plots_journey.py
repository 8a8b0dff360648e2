"""The plot of a journey: a wish to see a place, a way that is blocked, and somebody who knows how to go on."""

from __future__ import annotations

from random import Random

from cast import Cast
from frame import bind_helper, close_story, open_story
from tale import Tale
from world import Place

_GOALS = {
    "forest": (("the waterfall", "see the rainbow in the water"), ("the blueberry hill", "pick sweet blueberries")),
    "meadow": (
        ("the wild strawberry hill", "taste the first strawberries"),
        ("the old mill", "see the big wheel turn"),
    ),
    "river": (("the sea", "see the great waves"), ("the old mill", "see the big wheel turn")),
    "lake": (("the little island", "see the swans"), ("the waterfall", "see the rainbow in the water")),
    "farm": (("the top of the hill", "see the sun go down"), ("the market", "see the dancers")),
    "village": (("the old castle", "see the king's garden"), ("the top of the hill", "watch the stars")),
    "beach": (("the lighthouse", "see the ships from above"), ("the shell bay", "find a golden shell")),
    "mountain": (("the top of the mountain", "see the sun come up"), ("the ice cave", "see the blue ice shine")),
    "garden": (("the hill behind the garden", "fly a kite"), ("the big park", "ride on the swings")),
}
_OBSTACLES = {
    "river": (
        "a wide river, and there was no bridge",
        ("swim", "build"),
        "{f} pulled a log across the water, and {h} walked over it as if it were a bridge.",
        "{h} built a raft from old branches and crossed the water slowly",
    ),
    "fog": (
        "a thick white fog, and nobody could see the path",
        ("fly", "smell", "night"),
        "{f} knew the path well, even in the fog, and {h} followed close behind.",
        "{h} tied a bell to a tree and listened to it, so that {he} did not walk in a circle, until the fog was gone",
    ),
    "log": (
        "a great tree that had fallen across the path",
        ("strong",),
        "{f} pushed with all {f.his} might, and the tree rolled out of the way.",
        "{h} saw a gap under the tree and crept through it slowly",
    ),
    "rocks": (
        "a steep wall of rocks",
        ("rock", "climb", "fly"),
        "{f} showed {him} a hidden path between the rocks, and {h} climbed up step by step.",
        "{h} did not give up. {He} found a small step, then another, and climbed up to the top of the wall",
    ),
    "hedge": (
        "a thick hedge full of thorns",
        ("dig", "small"),
        "{f} dug a little tunnel under the hedge, and {h} crept through it.",
        "{h} walked along the hedge until {he} found a little gate",
    ),
}


def journey(rng: Random, place: Place) -> Tale:
    """The hero wants to reach a place and see something there; an obstacle bars the way."""
    goal, sight = rng.choice(_GOALS[place.name])
    barrier, skills, helped, alone = _OBSTACLES[rng.choice(sorted(_OBSTACLES))]
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero(frozenset(skills) | {"fly"}))
    companion = cast.friend(tale.hero) if rng.random() < 0.25 else None
    tale.bind(goal=goal, sight=sight, barrier=barrier, c=companion)
    open_story(tale)
    tale.say(
        "{he} had never been to {goal}. [More than anything|Most of all], {he} wanted to go there and {sight}.",
        "{h} had one great wish: {he} wanted to go to {goal} and {sight}.",
        '"One day I will go to {goal} and {sight}," {h} often said.',
        "{his} grandmother had told {him} about {goal}. Now {h} wanted to go there and {sight}.",
    )
    if companion:
        tale.say(
            f"one [morning|day], {{he}} set out with {{his}} friend {companion}, "
            f"[a {companion.kind}|who was a {companion.kind}].",
            f'"Come with me," {{he}} said to {{his}} friend {companion} the {companion.kind}, and they set out.',
        )
    else:
        tale.say(
            "one [morning|sunny morning|day in spring], {h} put some [bread|cheese|apples] in a bag and set out.",
            "so one [morning|bright day], {he} started to walk.",
        )
    tale.say(
        "{h} walked for a long time. But then {he} came to {barrier}.",
        "after an hour, {h} came to {barrier}.",
        "but halfway there was {barrier}.",
    )
    tale.maybe(
        "{h} [did not know what to do|could not go on].",
        '"How will I get to {goal} now?" {he} asked.',
        "{h} almost turned back.",
    )
    tale.turn()
    helper = cast.helper(*skills) if rng.random() < 0.7 else None
    if helper:
        bind_helper(tale, helper)
        tale.say(
            f"then {helper.intro} came along.",
            f"{helper.intro} was sitting there in the sun.",
            f"luckily, {{he}} met {helper.intro}.",
        )
        tale.say(
            '"Where are you going?" asked {f}. "To {goal}," said {h}. "But I cannot get past."',
            '"I want to {sight}, but I cannot go on," said {h}.',
            '"Please help me," said {h}. "I want to go to {goal}."',
        )
        tale.say('"That is easy," said {f}.', '"I can help you," said {f}.', '"Come with me," said {f}.')
        tale.say(helped)
    else:
        tale.say(
            "{h} [sat down and thought|thought hard|looked around]. Then {he} had an idea.",
            '"I will not give up," {he} said.',
        )
        tale.say(alone + ".")
    if companion:
        tale.maybe("{c} came [right|close] behind {him}.", chance=0.55)
    tale.turn()
    tale.say("at last {he} came to {goal}.", "soon {he} was there.", "and before [noon|evening], {he} reached {goal}.")
    tale.say(
        "there {h} could {sight}, [just as {he} had dreamed|and it was even better than {he} had hoped].",
        '"It is wonderful!" said {h}. {His} wish to {sight} had come true.',
        "{h} could {sight} at last.",
    )
    if companion:
        tale.maybe('"I am glad you took me with you," said {c}.', "{c} was just as happy.", chance=0.6)
    close_story(tale, "happy", *(("thanks",) if helper else ()))
    return tale
