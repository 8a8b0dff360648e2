"""Plots about courage and company: learning something hard, a shy neighbour, a noise at night, a party."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from frame import bind_helper, close_story, favourite_food, open_story
from tale import Tale
from world import Cast, Place


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


_WANTED = (
    ("the red swing", "sit on the swing", "the rope broke", "one can sit and the other can push"),
    (
        "the little boat",
        "row the boat",
        "the boat tipped over, and both got wet",
        "one can row and the other can steer",
    ),
    (
        "the last piece of cake",
        "eat the last piece of cake",
        "it fell on the floor",
        "one can cut and the other can choose",
    ),
    ("the big drum", "play the drum", "the drum rolled down the hill", "one can play and the other can sing"),
    ("the blue paint", "use the blue paint", "the paint fell over", "one can paint the sky and the other the grass"),
    ("the wooden sled", "ride on the sled", "the sled slid away without them", "you can ride on it together"),
    ("the big book", "hold the book", "a page tore", "one can read and the other can turn the pages"),
    ("the new kite", "fly the kite", "the string got into a knot", "one can run and the other can hold the string"),
)


def quarrel(rng: Random, place: Place) -> Tale:
    """Two friends want the same thing and quarrel until it goes wrong; sharing lets both have it."""
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero())
    friend = cast.friend(tale.hero)
    thing, wish, mishap, share = rng.choice(_WANTED)
    tale.bind(thing=thing, wish=wish, mishap=mishap, share=share, c=friend)
    open_story(tale)
    tale.say(
        f"{{his}} best friend was a {friend.kind} named {{c}}.",
        f"{{he}} had a friend, a {friend.kind} named {{c}}.",
        f"a {friend.kind} named {{c}} was {{his}} best friend.",
    )
    tale.say(
        "one [day|afternoon], {h} wanted to {wish}, but {c} wanted it too.",
        "one [day|morning], both of them wanted to {wish}.",
        '"I want to {wish}," said {h} one [day|morning]. "No, I want to!" said {c}.',
    )
    tale.say(
        '"I was here first!" cried {h}. "No, I was!" cried {c}.',
        '"It is mine!" said {h}. "It is not!" said {c}.',
        "they shouted at each other."
        if thing in ("the last piece of cake", "the blue paint")
        else "each of them held on to {thing}, and nobody let go.",
    )
    tale.say("they pulled and pushed, and then {mishap}.", "they did not stop, until {mishap}.")
    tale.maybe("now [they were both sad|nobody was happy].", "{h} went one way and {c} went the other way.", chance=0.6)
    tale.turn()
    if rng.random() < 0.65:
        kinds = [kind for kind in place.kinds if kind not in cast.kinds]
        wise = cast.animal(rng.choice(kinds), named=rng.random() < 0.5)
        bind_helper(tale, wise)
        tale.say(
            f"{wise.intro} had heard the noise and came to them.",
            f"{wise.intro} shook {wise.his} head.",
            f"then {wise.intro} came by.",
        )
        tale.say(
            '"Why do you fight?" asked {f}. "If you share, {share}."',
            '"You are friends," said {f}. "If you share, {share}."',
        )
        tale.say(
            "the two friends looked at each other.",
            '"That is true," said {h}.',
            '"We did not think of that," said {c}.',
        )
    else:
        tale.say(
            'after a while, {h} came back. "I am sorry," {he} said.',
            '"I am sorry," said {c}. "I am sorry too," said {h}.',
            'it was too quiet without {c}. So {h} went to {c.him} and said, "I am sorry."',
        )
        tale.bind(share=share.replace("you", "we"))
        tale.say('"Let us share," said {h}. "Then {share}."', '"If we share, {share}," said {c}.')
    tale.turn()
    repaired = {
        "the rope broke": "they tied the rope with a strong knot.",
        "it fell on the floor": "they made a new cake together.",
        "a page tore": "they glued the page.",
        "the paint fell over": "luckily, there was some paint left.",
        "the string got into a knot": "together they untied the knot.",
        "the drum rolled down the hill": "they ran down the hill and brought back the drum.",
        "the sled slid away without them": "they ran after the sled and caught it.",
    }
    tale.say(repaired.get(mishap, "they turned the boat around and climbed in again."))
    tale.say(
        "so they shared {thing}, and it was much more fun.",
        "then they shared {thing}, and both were happy.",
        "now both of them had {thing}, and nobody was angry.",
    )
    tale.maybe(
        "{h} learned that a friend is worth more than {thing}.",
        "since then, {h} and {c} have always shared.",
        '"It is better together," said {c}.',
        '"Sharing is more fun," said {h}.',
        chance=0.55,
    )
    return tale


_PARTIES = (
    ("a picnic", "dark clouds came and it began to rain", "shelter", "ate and told stories"),
    ("a dance", "the music box broke", "music", "danced until the stars came out"),
    ("a play", "the curtain tore from top to bottom", "curtain", "clapped and clapped"),
    ("a lantern walk", "the wind blew out all the candles", "light", "walked through the night and sang"),
    ("a race", "the path was full of mud", "path", "ran and laughed"),
)
_SOLUTIONS = {
    "shelter": (
        ("We can go into the old barn", "they carried everything into the old barn"),
        ("We can hang a big cloth between the trees", "they hung a big cloth between the trees, and under it was dry"),
    ),
    "music": (
        ("We can sing and beat on pots", "some sang, and the others beat on pots and spoons"),
        ("I have a flute at home", "{f} ran home and came back with a flute"),
    ),
    "curtain": (
        ("We can use my blanket", "they hung up the blanket, and it was a fine curtain"),
        ("We can sew it", "they sewed it with red thread, and it looked better than before"),
    ),
    "light": (
        (
            "We can put the candles into jars",
            "they put every candle into a glass jar, where the wind could not reach it",
        ),
        ("We can ask the fireflies", "a hundred fireflies came and sat on the lanterns"),
    ),
    "path": (
        ("We can put straw on the mud", "they put straw on the mud until the path was dry"),
        ("We can race in little boats made of bark", "everybody made a little boat, and the boats raced in the stream"),
    ),
}


def party(rng: Random, place: Place) -> Tale:
    """The hero has planned a feast; something spoils it, and an idea saves it."""
    what, trouble, need, ending = rng.choice(_PARTIES)
    idea, done = rng.choice(_SOLUTIONS[need])
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero())
    friend = cast.friend(tale.hero)
    bind_helper(tale, friend)
    tale.bind(what=what, trouble=trouble, ending=ending, idea=idea, bare=what.split(maxsplit=1)[1])
    open_story(tale)
    tale.say(
        "{h} wanted to have {what} for all {his} friends.",
        "for weeks, {h} had looked forward to one thing: {what} with all {his} friends.",
        '"I want to have {what} with all my friends," said {h} one day.',
    )
    tale.say(
        "{he} made everything ready, and a {f.kind} named {f} helped {him}.",
        "together with a {f.kind} named {f}, {he} made everything ready.",
    )
    tale.maybe("everybody was invited.", "they invited all their friends.", chance=0.5)
    tale.say(
        "but on the day of the {bare}, {trouble}.",
        "the great day came. But then {trouble}.",
        "the guests were already there when {trouble}.",
    )
    tale.say(
        '"Now there will be no {bare}," said {h} [sadly|with tears in {his} eyes].',
        '"Everything is spoiled!" cried {h}.',
        "{h} was so sad that {he} wanted to send everybody home.",
    )
    tale.turn()
    tale.say(
        '"Wait," said {f}. "{idea}."',
        'but {f} did not give up. "{idea}," {f.he} said.',
        '{f} thought for a moment. "I know! {idea}."',
    )
    tale.say(f"[so|and so|everybody helped, and] {done}.")
    tale.turn()
    tale.say(
        "the {bare} could begin. The friends {ending}.",
        "then the {bare} began, and they all {ending}.",
        "so {h} had {his} {bare} after all, and everybody {ending}.",
    )
    tale.maybe(
        '"This is the best {bare} of all," said {h}.',
        '"It is even better than we planned," said {f}.',
        '"Thank you, {f}," said {h}. "You saved the {bare}."',
        chance=0.6,
    )
    close_story(tale, "happy", "thanks")
    return tale
