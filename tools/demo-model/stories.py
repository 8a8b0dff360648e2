"""The story generator: seed in, story out; every story is a plot played by fitting characters in one place.

python stories.py --seed 7 --count 3
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from plots_heart import learn, night_noise, shy_friend
from plots_journey import journey
from plots_making import cook, gift, plant, repair
from plots_search import lost_toy, lost_young
from plots_together import party, quarrel
from tale import Tale
from world import PLACES, Place

END = "<|endoftext|>"
"""What separates stories in the training text, and the token at which a model stops."""

INVENTED_NAMES = 0.02
"""The share of characters with a name that the reader has hardly ever seen."""

PLOTS: tuple[Callable[[Random, Place], Tale], ...] = (
    lost_toy,
    lost_young,
    journey,
    cook,
    gift,
    plant,
    repair,
    learn,
    shy_friend,
    night_noise,
    quarrel,
    party,
)


def story(seed: int, invented_names: float = INVENTED_NAMES) -> str:
    """The story of this seed, without the end token; the same text for the same seed on every machine."""
    rng = Random(seed)
    plot, place = rng.choice(PLOTS), rng.choice(PLACES)
    return plot(rng, replace(place, invented_names=invented_names)).text()


def stories(first_seed: int, count: int, invented_names: float = INVENTED_NAMES) -> Iterator[str]:
    """`count` stories of consecutive seeds."""
    for seed in range(first_seed, first_seed + count):
        yield story(seed, invented_names)


def main() -> None:
    """Print stories."""
    parser = argparse.ArgumentParser(description="Print generated stories.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    options = parser.parse_args()
    for text in stories(options.seed, options.count):
        print(text + END + "\n")


if __name__ == "__main__":
    main()
