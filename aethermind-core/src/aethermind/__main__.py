"""`python -m aethermind` is the `aethermind` command."""

from aethermind.cli import main

main()
