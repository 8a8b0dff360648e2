"""Plots about courage and company: learning something hard, a shy neighbour, a noise at night."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from cast import Cast
from frame import bind_helper, close_story, favourite_food, open_story
from tale import Tale
from world import Place


@dataclass(frozen=True, slots=True)
class Skill:
    """Something to learn: how it fails, the tip that helps, and how success looks."""

    verb: str
    fails: str
    tip: str
    works: str
    show: str
    places: tuple[str, ...] = ()
    only: str = ""
    teachers: tuple[str, ...] = ()


_SKILLS = (
    Skill(
        "swim",
        "{he} was afraid and sank like a stone",
        "Breathe slowly and move your legs like a frog",
        "{he} moved {his} legs and did not sink",
        "{h} swam all the way to the other side",
        ("river", "lake", "beach"),
        "dry",
        ("otter", "duck", "frog", "turtle", "beaver"),
    ),
    Skill(
        "whistle",
        "only air came out of {his} mouth",
        "Make your mouth round and blow very softly",
        "a clear, bright sound came out",
        "{h} whistled a whole song, and the birds answered",
    ),
    Skill(
        "climb trees",
        "{he} slipped and fell into the grass",
        "Look up, not down, and hold the strong branches",
        "{he} reached the first branch, then the next",
        "{h} sat at the top of the tree and could see far and wide",
        ("forest", "meadow", "garden", "village"),
        "foot",
        ("squirrel", "cat"),
    ),
    Skill(
        "dance",
        "{he} fell over {his} own feet",
        "Listen to the music and count to three",
        "{his} feet found the steps all by themselves",
        "{h} danced at the summer party until midnight",
    ),
    Skill(
        "sing",
        "{his} voice was too quiet to hear",
        "Stand up tall and think of something you love",
        "{his} voice became strong and warm",
        "{h} sang for everybody at the summer party",
    ),
    Skill(
        "read",
        "the letters looked like little black ants",
        "Begin with one letter and say its sound",
        "the letters turned into a word, and then another",
        "{h} read a whole book to {his} friends",
    ),
    Skill(
        "ride a bicycle",
        "{he} fell off after two turns of the wheels",
        "Look ahead and do not stop moving your feet",
        "the wheels turned, and {he} did not fall",
        "{h} rode around the whole {place}",
        ("village", "farm", "beach"),
        "child",
    ),
    Skill(
        "skate",
        "{he} slipped and sat down on the ice",
        "Bend your knees and make small steps",
        "{he} glided a little way, then a little more",
        "{h} made a great circle on the ice, and everybody clapped",
        ("lake", "river", "farm", "mountain"),
    ),
    Skill(
        "juggle",
        "the balls fell on {his} head",
        "Begin with one ball, then take two",
        "two balls stayed in the air, and then three",
        "{h} juggled at the market, and everybody clapped",
    ),
    Skill(
        "play the flute",
        "the flute made a noise like an angry goose",
        "Blow softly and move one finger at a time",
        "a sweet note came out, and then a second one",
        "{h} played a song under the stars",
    ),
    Skill(
        "count to a hundred",
        "{he} always got lost after twenty",
        "Count in tens and use your fingers",
        "{he} got to thirty, and then to fifty",
        "{h} counted to a hundred without one mistake",
    ),
    Skill(
        "jump over the stream",
        "{he} landed in the water with a splash",
        "Take a long run and jump from one foot",
        "{he} flew through the air and landed in the soft grass",
        "{h} jumped over the stream to visit {his} friends",
        ("meadow", "river", "mountain"),
        "walker",
    ),
)


def learn(rng: Random, place: Place) -> Tale:
    """The hero cannot do something, gets a tip, practises, and can do it when it matters."""
    skill = rng.choice([skill for skill in _SKILLS if not skill.places or place.name in skill.places])
    without = {
        "dry": {"swim", "fly"},
        "foot": {"climb", "fly", "swim", "rock", "small"},
        "walker": {"fly", "swim", "jump", "run"},
    }.get(skill.only, set())
    cast = Cast.at(rng, place)
    by_child = skill.only == "child" or (place.children and rng.random() < 0.5)
    hero = cast.child() if by_child else cast.hero(frozenset(without))
    tale = Tale(rng, place, cast, hero)
    fitting = [
        kind for kind in place.kinds if kind not in cast.kinds and (not skill.teachers or kind in skill.teachers)
    ]
    if skill.only == "child" or not fitting:
        teacher = cast.elder(hero)
    else:
        teacher = cast.animal(rng.choice(fitting), named=rng.random() < 0.65)
    bind_helper(tale, teacher)
    tale.bind(verb=skill.verb, tip=skill.tip, tip_low=skill.tip[0].lower() + skill.tip[1:])
    open_story(tale)
    tale.say(
        "{h} wanted to [learn to|be able to] {verb}.",
        "more than anything, {he} wanted to {verb}.",
        "all the others could {verb}, but {h} could not. {He} wanted to learn it too.",
        '"I want to learn to {verb}," {h} said every day.',
    )
    tale.say(
        f"but each time {{he}} tried, {skill.fails}.",
        f"{{he}} tried [and tried|again and again], but {skill.fails}.",
        f"one [day|morning], {{h}} tried it, but {skill.fails}.",
    )
    tale.maybe(
        '"I will never learn it," said {h}.',
        "{h} was so sad that {he} wanted to give up.",
        "some of the others laughed, and {h} ran away.",
        chance=0.6,
    )
    tale.turn()
    tale.say(
        f'{teacher.intro} had seen [it|everything]. "Do not give up," said {{f}}.',
        f'then {teacher.intro} came and sat down beside {{him}}. "I will show you how," said {{f}}.',
        f'{{h}} asked {teacher.intro} for help. "I could not do it at first either," said {{f}}.',
    )
    tale.say('"{tip}," {f} told {him}.', '"{tip}," said {f}.', '"The secret is this: {tip_low}," said {f}.')
    tale.say(
        f"{{h}} tried it again. This time, {skill.works}.",
        f"{{h}} did what {{f}} had said, and {skill.works}.",
        f"the first time it did not work, nor the second time. But the third time, {skill.works}!",
    )
    tale.maybe(
        "after that, {h} practised every [day|morning].", "{h} practised [for a whole week|all week].", chance=0.6
    )
    tale.turn()
    tale.say('"I can do it! I can {verb}!" cried {h}.', "now {h} could {verb}.", '"Look, I can {verb}!" {he} called.')
    tale.say(f"[at the end of the summer|a week later|soon after], {skill.show}.")
    tale.maybe("{f} was very proud of {him}.", '"I knew you could do it," said {f}.', chance=0.5)
    close_story(tale, "happy", "thanks")
    return tale


_HIDING = ("behind a tree", "behind a big stone", "in a dark corner", "under a bush", "behind a door")
_GAMES = ("hide and seek", "tag", "with a ball", "pirates", "king and queen", "catch")


def shy_friend(rng: Random, place: Place) -> Tale:
    """The hero is lonely, a shy newcomer hides; the right present and some patience make them friends."""
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero())
    kinds = [kind for kind in place.kinds if kind not in cast.kinds]
    other = cast.animal(rng.choice(kinds))
    bind_helper(tale, other)
    food = favourite_food(other.kind)
    them = "them" if food.endswith("s") and food != "fresh grass" else "it"
    tale.bind(hiding=rng.choice(_HIDING), food=food, them=them, game=rng.choice(_GAMES), okind=other.kind)
    open_story(tale)
    tale.say(
        "{h} was often lonely, because there was nobody to play with. {He} wanted to have a friend.",
        "but {h} had no friend to play with, and {he} wished for one.",
        "{h} wanted a friend more than anything else.",
    )
    tale.say(
        "one [day|morning], a {okind} named {f} came to live nearby.", "then a new neighbour came, a {okind} named {f}."
    )
    tale.say(
        "but {f} was very shy and hid {hiding}.",
        "{h} went to say hello, but {f} was shy and hid {hiding}.",
        '"Hello!" called {h}. But {f} was afraid and ran to hide {hiding}.',
    )
    tale.maybe("{h} was sad and went home alone.", '"{f.he} does not like me," said {h}.', chance=0.6)
    tale.turn()
    tale.say(
        "then {h} had an idea. {He} had heard that {f} loved {food}.",
        '"I must be patient," thought {h}. "What does a {okind} like? Of course, {food}!"',
        "{h} remembered that every {okind} likes {food}.",
    )
    tale.say(
        "{he} put some {food} [on the ground|on a plate], sat down not too near and waited.",
        "the next day {he} brought some {food}, put {them} down and [waited quietly|sang a quiet song].",
    )
    tale.say(
        "after a while, {f} [came a little closer|looked out].",
        "first {h} saw two bright eyes. Then {f} came out slowly.",
        "{f} did not come on the first day. But on the second day, {f.he} came out.",
    )
    tale.turn()
    tale.say(
        '"Is that for me?" asked {f}. "Yes," said {h}. "Would you like to play with me?"',
        '"Thank you," said {f} in a small voice. "I was afraid, because I did not know anybody."',
        "they shared the {food}, and soon they were both laughing.",
    )
    tale.say(
        "then they played {game} [all afternoon|until it was dark].",
        "that day they played {game}, and {f} was not shy any more.",
    )
    tale.say(
        "now {h} had a friend.",
        "{h} was not lonely any more.",
        "at last {h} had found a friend.",
        "{h} had wished for a friend, and now {he} had one.",
    )
    close_story(tale, "happy", "thanks")
    return tale


_NOISES = (
    ("tap, tap, tap", "a branch that knocked on the window in the wind", "{he} tied the branch back with a string"),
    ("hoo, hoo", "a baby owl that had fallen out of its nest", "{he} put the baby owl back into its nest"),
    ("crunch, crunch", "a hungry hedgehog that was eating apples", "{he} gave the hedgehog one more apple"),
    ("drip, drip, drip", "a tap that was not closed", "{he} turned the tap, and it was still"),
    ("squeak, squeak", "an old gate that moved in the wind", "{he} closed the gate"),
    ("meow", "a small wet kitten that wanted to come in", "{he} dried the kitten and gave it warm milk"),
    ("scratch, scratch", "a mouse that was looking for crumbs", "{he} gave the mouse a piece of bread"),
    ("clang, clang", "a bucket that rolled around in the wind", "{he} put the bucket in the shed"),
)


def night_noise(rng: Random, place: Place) -> Tale:
    """A noise keeps the hero awake; looking at it with a light shows that it is harmless."""
    cast = Cast.at(rng, place)
    noise, cause, remedy = rng.choice(_NOISES)
    hero = cast.hero(frozenset({"small", "prickly", "night", "climb"}))
    tale = Tale(rng, place, cast, hero)
    tale.bind(noise=noise, noise_up=noise[0].upper() + noise[1:], cause=cause)
    open_story(tale)
    tale.say(
        "{h} was afraid of the dark.",
        "{h} was brave by day, but at night {he} was often afraid.",
        "{he} liked everything but the night, because the night was dark.",
    )
    tale.say(
        'one night {he} wanted to sleep, but there was a noise outside. "{noise_up}!"',
        "one [windy|dark] night, {h} could not sleep. {noise}, it went outside.",
        '"{noise_up}!" it went one night, when {h} was already in bed.',
    )
    tale.say(
        "[was it a monster|was it a ghost|was it a wolf]? {h} pulled the blanket over {his} head.",
        '"Who is there?" {he} [asked|called]. Nobody answered.',
        "{his} heart beat fast. [It must be a monster|It must be a ghost], {he} thought.",
    )
    tale.maybe("{h} wanted to sleep, but the noise came again.", "{noise}, it went again.", chance=0.6)
    tale.turn()
    if rng.random() < 0.4:
        elder = cast.elder(hero)
        bind_helper(tale, elder)
        tale.say(
            '{he} woke {f}. "Let us go and look," said {f} and took [a lamp|a candle].',
            '{h} called {f}. "When you look at a thing, it gets smaller," said {f}, and lit a lamp.',
        )
        tale.say("hand in hand, they went outside.", "together they opened the door.") if hero.child else tale.say(
            "side by side, they went outside.", "together they opened the door."
        )
        tale.say(
            "and what did they find? [Only|It was only] {cause}!", "the light fell on {cause}.", "they saw {cause}."
        )
    else:
        tale.say(
            "but then {he} thought: I will not sleep until I know what it is.",
            '"I must know what it is," {he} said at last.',
            '"I want to be brave," {he} said to {himself}.'.replace("{himself}", f"{hero.him}self"),
        )
        tale.say(
            "{h} took [a lamp|a lantern|a candle] and opened the door [slowly|very quietly].",
            "{he} lit a lamp and went outside on quiet feet.",
        )
        tale.say(
            "and what did {he} find? [Only|It was only] {cause}!", "the light fell on {cause}.", "{he} saw {cause}."
        )
    tale.turn()
    tale.say(
        "{h} [laughed|had to laugh]. " + "{He} had been afraid of that!",
        '"So it was you!" said {h}, and {he} laughed.',
        '"That is all?" said {h} and laughed.',
    )
    tale.say(remedy.replace("{he}", "{h}") + ".", "then " + remedy + ".")
    tale.say(
        "{he} went back to bed and slept until morning.", "soon {h} was fast asleep.", "now {h} could sleep at last."
    )
    tale.maybe(
        "since that night, {h} has not been afraid of the dark.",
        "and when {he} hears a noise at night, {he} takes the lamp and looks.",
        "now {he} knew that most noises are [small|friendly] when you look at them.",
        chance=0.55,
    )
    return tale
