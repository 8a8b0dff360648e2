"""Plots in which something is made: a meal with a missing ingredient, a gift, a plant, a home to repair."""

from __future__ import annotations

from random import Random

from cast import Cast
from frame import bind_helper, close_story, open_story
from tale import Tale
from world import KINDS, Place

_DISHES = (
    ("an apple pie", "apples", "flour"),
    ("an apple pie", "butter", "flour"),
    ("a honey cake", "honey", "eggs"),
    ("a honey cake", "eggs", "flour"),
    ("pancakes", "milk", "eggs"),
    ("pancakes", "eggs", "flour"),
    ("carrot soup", "carrots", "salt"),
    ("mushroom soup", "mushrooms", "butter"),
    ("a berry tart", "berries", "flour"),
    ("plum jam", "plums", "sugar"),
    ("fresh bread", "flour", "salt"),
    ("a nut cake", "nuts", "milk"),
    ("potato soup", "potatoes", "salt"),
    ("a cherry cake", "cherries", "eggs"),
    ("berry jam", "berries", "sugar"),
)
_VESSELS = {
    "honey": ("jar", "big pot"),
    "milk": ("jug", "big bottle"),
    "butter": ("plate", "box"),
    "flour": ("bag", "sack"),
    "sugar": ("bag", "sack"),
    "salt": ("bag", "box"),
}
_OCCASIONS = (
    ("because it was the birthday of {c}", "for the birthday of {c}"),
    ("because {c} was sick in bed", "for {c}, who was sick in bed"),
    ("because {c} was coming to visit", "for the visit of {c}"),
    ("because {c} had been sad all week", "to cheer up {c}"),
)
_CHORES = (
    ("wash the windows", "washed the windows until they shone"),
    ("sweep the yard", "swept the whole yard"),
    ("carry the wood into the shed", "carried all the wood into the shed"),
    ("find my glasses", "looked everywhere and found the glasses under a chair"),
    ("mend the fence", "mended the fence with new boards"),
    ("fetch water from the well", "fetched three buckets of water from the well"),
    ("paint my door", "painted the door a bright blue"),
    ("clean the kitchen", "cleaned the kitchen from top to bottom"),
)


def cook(rng: Random, place: Place) -> Tale:
    """The hero wants to make a dish for somebody; one ingredient is missing and is earned with a chore."""
    dish, missing, have = rng.choice(_DISHES)
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero())
    guest = cast.friend(tale.hero)
    reason, purpose = rng.choice(_OCCASIONS)
    chore, done = rng.choice(_CHORES)
    kinds = [kind for kind in place.kinds if kind not in cast.kinds]
    owner = cast.animal(rng.choice(kinds), named=rng.random() < 0.6)
    tale.bind(
        dish=dish,
        missing=missing,
        have=have,
        chore=chore,
        done=done,
        c=guest,
        vessel=rng.choice(_VESSELS.get(missing, ("big bag", "basket"))),
    )
    open_story(tale)
    bind_helper(tale, owner)
    tale.say(
        f"{{his}} best friend was a {guest.kind} named {{c}}.", f"{{he}} had a good friend, a {guest.kind} named {{c}}."
    )
    tale.say(
        f"one [day|morning], {{h}} wanted to make {{dish}} {reason}.",
        f"one [day|morning], {{h}} decided to make {{dish}} {purpose}.",
        f'"[Today|This morning] I will make {{dish}} {purpose}," said {{h}} one [day|morning].',
    )
    none_left = "[were no|were no more]" if missing.endswith("s") else "was no"
    tale.say(
        "{he} had {have}, but there " + none_left + " {missing} in the kitchen.",
        "but when {he} looked in the kitchen, {he} found no {missing}.",
        '"Oh no," {he} said, "I have {have}, but I have no {missing}."',
    )
    tale.maybe("without {missing}, {h} could not make {dish}.", "what could {he} do?", chance=0.5)
    tale.turn()
    tale.say(
        f"{{h}} went to {owner.intro}, who had [a lot of|plenty of] {{missing}}.",
        f"not far away lived {owner.intro}. {{f}} had [a lot of|plenty of] {{missing}}, so {{h}} went there.",
    )
    tale.say(
        '"Will you give me some {missing}?" {h} asked.',
        '"Please, may I have some {missing}?" asked {h}.',
        '"I need some {missing} for {dish}," said {h}.',
    )
    tale.say(
        '"Yes, if you {chore}," said {f}.',
        '"First help me and {chore}," said {f}.',
        '"I am too tired to {chore}," said {f}. "If you do it for me, you may have some {missing}."',
    )
    tale.say("{h} worked hard and {done}.", "so {h} {done}.", '"I will," said {h}, and {he} {done}.')
    tale.turn()
    tale.say(
        "{f} was pleased and gave {him} a {vessel} of {missing}.", '"Well done," said {f}, and {h} got the {missing}.'
    )
    tale.say(
        "then {h} ran home and made {dish}.",
        "back at home, {h} made {dish}, and [it smelled wonderful|the whole house smelled good].",
    )
    tale.say(
        '"This is the best thing I have ever tasted," said {c}.',
        "{c} was so happy and ate [two plates|every bit] of it.",
        "when {c} tasted it, {c.he} smiled [for the first time that day|from ear to ear].",
        '"You made this for me?" asked {c}. {c.he} hugged {h}.',
    )
    tale.maybe("{h} had invited {f} too, and they all ate together.", "{h} took a piece to {f} as well.", chance=0.4)
    close_story(tale, "happy")
    return tale


_STONY = "stones pebbles glass"
_LEAFY = "leaves daisies feathers reeds straws flowers petals lilies"
_NUTTY = "cones acorns chestnuts shells"
_GIFTS = (
    ("a necklace", "put them on a string, one after another", "a beautiful necklace", _LEAFY + " " + _NUTTY),
    (
        "a picture",
        "glued them on a piece of wood in the shape of a heart",
        "a picture like no other",
        f"{_STONY} {_LEAFY} {_NUTTY}",
    ),
    ("a crown", "tied them together into a ring", "a crown fit for a queen", _LEAFY),
    ("a little box", "covered an old box with them", "a little box for treasures", _STONY + " " + _NUTTY),
    ("a wind chime", "hung them on thin threads, so that they moved in the wind", "a pretty wind chime", _NUTTY),
)


def gift(rng: Random, place: Place) -> Tale:
    """The hero wants to give a present but cannot buy one, and makes it from what the place offers."""
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero())
    receiver = cast.friend(tale.hero) if rng.random() < 0.5 else cast.elder(tale.hero)
    finds = rng.choice(place.finds)
    shop, making, result, _ = rng.choice([each for each in _GIFTS if finds.split()[-1] in each[3]])
    call = str(receiver).split()[-1]
    tale.bind(
        present=shop,
        making=making,
        result=result,
        finds=finds,
        c=receiver,
        c_call=call.capitalize(),
        himself=f"{tale.hero.him}self",
    )
    open_story(tale)
    if " " not in str(receiver):
        tale.say(
            f"{{he}} had a friend, a {receiver.kind} named {{c}}.",
            f"{{his}} best friend was a {receiver.kind} named {{c}}.",
        )
    tale.say(
        "tomorrow was the birthday of {c}, and {h} wanted to give {c.him} [a present|something special].",
        "soon it would be the birthday of {c}. {h} wanted to find the best present for {c.him}.",
        '"What can I give {c_call} for {c.his} birthday?" {h} asked {himself}.',
    )
    tale.say(
        "in the shop {he} saw {present}, but it cost [ten|five|seven] coins, and {he} had only [one|two].",
        "there was {present} in the shop, but {h} had no money.",
        "{h} had no money to buy {present} in the shop.",
    )
    tale.maybe("{h} walked home slowly, looking at the ground.", "{h} was sad and did not know what to do.", chance=0.5)
    tale.turn()
    tale.say(
        "then {he} saw some {finds} [on the ground|beside the path].",
        "on the way {he} found {finds}, and they gave {him} an idea.",
        "but then {h} looked down and saw {finds}. They were lovely!",
    )
    tale.maybe(
        '"I do not need any money," said {h}. "I can make a present."', '"I know what to do!" {he} said.', chance=0.6
    )
    tale.say(
        "{he} gathered [a bag full|the best ones], took them home and {making}.",
        "{h} picked the prettiest ones. At home {he} {making}.",
    )
    tale.say("when the work was done, it was {result}.", "{he} worked all evening, and it became {result}.")
    tale.turn()
    tale.say("the next day {h} gave it to {c}.", "in the morning {he} ran to {c} with the present behind {his} back.")
    tale.say(
        '"You made this with the {finds}?" asked {c}. "It is the best present of all!"',
        '"It is beautiful, and you made it for me," said {c}.',
        "{c} had never seen such a lovely present and gave {h} a [big|warm] hug.",
    )
    tale.maybe(
        "{h} learned that the best gifts do not cost money.",
        "now {h} knew that a present made with love is worth more than gold.",
        chance=0.5,
    )
    close_story(tale, "happy")
    return tale


_PLANTS = (
    "a sunflower",
    "a pumpkin",
    "a rose",
    "a strawberry plant",
    "a little apple tree",
    "a bean plant",
    "a tomato plant",
    "a tulip",
)
_TROUBLES = (
    (
        "it did not rain for many days, and the ground was [dry|as hard as stone]",
        "it needs water",
        "every morning {he} carried water [from the well|in a little can]",
        "the leaves became green again",
    ),
    (
        "the birds came and picked at the small green leaves",
        "you must keep the birds away",
        "{he} made a scarecrow with an old coat and a hat",
        "the birds stayed away",
    ),
    (
        "the nights grew cold, and the leaves turned brown",
        "it is too cold",
        "every evening {he} covered it with warm straw",
        "the leaves were green again in the morning",
    ),
    (
        "a big bush stood beside it and took all the light",
        "it needs the sun",
        "{he} cut the branches of the bush, so that the sun could shine on it",
        "it grew taller every day",
    ),
    (
        "hungry snails came at night and ate the leaves",
        "the snails must not reach it",
        "{he} put a ring of sharp sand around it",
        "the snails turned back and went away",
    ),
)


def plant(rng: Random, place: Place) -> Tale:
    """The hero plants a seed; something stops it from growing until the hero does the fitting thing."""
    cast = Cast.at(rng, place)
    tale = Tale(rng, place, cast, cast.hero())
    trouble, advice, care, better = rng.choice(_TROUBLES)
    noun = rng.choice(_PLANTS)
    tale.bind(
        plant=noun,
        short=noun.split()[-1] if noun.split()[-1] not in ("plant", "tree") else "plant",
        trouble=trouble,
        advice=advice,
        better=better,
    )
    kinds = [kind for kind in place.kinds if kind not in cast.kinds]
    adviser = cast.animal(rng.choice(kinds), named=rng.random() < 0.6) if rng.random() < 0.6 else cast.elder(tale.hero)
    bind_helper(tale, adviser)
    open_story(tale)
    tale.say(
        "{h} had [a tiny seed|a small seed] and wanted to grow {plant}.",
        "one spring, {h} found a seed. {He} wanted to grow {plant}.",
        "{h} wished for {plant} more than anything, so in spring {he} got a seed.",
    )
    tale.say(
        "{he} put the seed in the ground and waited.",
        "{he} made a hole in the ground, put the seed in and covered it with earth.",
    )
    tale.maybe(
        "soon a small green leaf came out.", "after a week, the first leaf looked out of the ground.", chance=0.55
    )
    tale.say(f"but then {trouble}.", f"then {trouble}.")
    tale.say(
        "{h} was afraid that {his} {short} would die.",
        '"My poor {short}!" said {h}.',
        '"Will it ever grow?" {h} asked.',
    )
    tale.turn()
    intro = adviser.intro
    tale.say(
        f'{{h}} asked {intro} for advice. "{{advice}}," said {{f}}.',
        f'"Look, {{advice}}," said {intro}.',
        f'{{h}} told {intro} about it. "I think {{advice}},' + '" said {f}.',
    )
    tale.say(f"so {care}.", f"that was good advice. {care}.")
    tale.say("and {better}.", "it was a lot of work, but {better}.", "soon {better}.")
    tale.turn()
    tale.maybe("{h} was patient and waited all summer.", "days went by, and weeks went by.", chance=0.6)
    tale.say(
        "at the end of the summer, {h} had {plant}, the [finest|most beautiful] far and wide.",
        "and one morning, there it was: {plant}, [big and strong|bright and beautiful]!",
        "at last {h} had {plant} of {his} own.",
    )
    tale.say(
        "{he} showed it to {f} [first|with pride].",
        '"I knew you could do it," said {f}.',
        '"We did it," {h} said to {f}.',
    )
    close_story(tale, "happy", "thanks")
    return tale


_DAMAGES = (
    ("the rain came through a hole in the roof", "wet", "a new roof", ("straw", "boards", "big leaves")),
    ("the cold wind came through a crack in the wall", "cold", "a new wall", ("clay", "stones", "boards")),
    ("the storm broke the door", "cold", "a new door", ("strong boards", "thick branches")),
    ("the wind blew the window away", "cold", "a new window", ("old glass", "thin boards")),
    ("the snow pressed down the roof", "wet and cold", "a stronger roof", ("strong boards", "thick branches")),
)


def repair(rng: Random, place: Place) -> Tale:
    """A storm damages the hero's home; with the right material and friends it becomes warm and dry again."""
    cast = Cast.at(rng, place)
    hero = cast.animal(rng.choice(place.kinds))
    tale = Tale(rng, place, cast, hero)
    damage, state, part, materials = rng.choice(_DAMAGES)
    kinds = [kind for kind in place.kinds if kind not in cast.kinds]
    strong = [kind for kind in kinds if KINDS[kind].skills & {"strong", "build", "dig"}] or kinds
    helper = cast.animal(rng.choice(strong), named=rng.random() < 0.7)
    bind_helper(tale, helper)
    tale.bind(damage=damage, state=state, part=part, material=rng.choice(materials))
    open_story(tale)
    tale.say(
        "{h} had a [small|cosy|tiny] house that {he} loved.",
        "{his} house was [small|old], but {he} [loved it|was happy there].",
    )
    tale.say(
        "one night there was a [great|terrible] storm, and {damage}.",
        "one [night|evening] in [autumn|winter], {damage}.",
        '"What is that?" cried {h} one stormy night. {damage}.',
    )
    tale.say(
        "now {his} bed was {state}, and {h} could not sleep.",
        "soon everything in the house was {state}.",
        "{h} sat in a corner all night. It was {state}.",
    )
    tale.say(
        "{h} wanted a warm, dry house again. {He} needed {part}, but {he} [had no {material}|did not "
        "know how to make it alone].",
        '"I need {part}," said {h}, "but I cannot do it alone."',
        "all {he} wanted was {part}, but it was too much work for one.",
    )
    tale.turn()
    tale.say(
        f"in the morning, {helper.intro} came by and saw [the damage|what had happened].",
        f"{{h}} went to {helper.intro} and told {{f.him}} everything.",
        f"the next day, {{he}} asked {helper.intro} for help.",
    )
    tale.say(
        '"I have {material} at home," said {f}. "Let us build {part}."',
        '"If we get some {material}, we can build {part}," said {f}.',
        '"Two can do more than one," said {f}. "I will bring {material}."',
    )
    tale.say(
        "they worked [all day|side by side] until the work was done.",
        "{f} brought the {material}, and {h} held the hammer. By evening they had {part}.",
        "together they carried the {material} and built {part}.",
    )
    many = tale.fill("{material}") not in ("straw", "clay", "old glass")
    tale.maybe(
        "the {material} were heavy, but they laughed and sang."
        if many
        else "it was hard work, but they laughed and sang.",
        chance=0.5,
    )
    tale.turn()
    tale.say(
        "that night the storm came back, but {h} was warm and dry in {his} bed.",
        "now the house was warm and dry again.",
        "let the storm come! The house of {h} was warm and dry.",
        "when the next storm came, {h} slept well.",
    )
    tale.maybe(
        "{h} cooked a big pot of soup, and {f} stayed for dinner.", "{f} and {h} drank hot tea by the fire.", chance=0.6
    )
    close_story(tale, "thanks")
    return tale
