"""The plugin at fault for an unexpected exception: the owner of the innermost frame that is not a library's."""

from __future__ import annotations

import pytest
import typer.testing
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind.cli.app import app

PROPOSER = """
    import numpy
    from aethermind.engine.speculative.prompt_lookup import PromptLookup

    def make(compiled):
        {body}

    @hookimpl
    def register_proposers(registry):
        registry.register("rash", __name__ + ":make", provider="fake-rash")
"""


def generate(fakes: FakeDistributions, body: str) -> list[str]:
    """The last two lines that a command says of a proposer that is made like this."""
    fakes.install("rash", PROPOSER.format(body=body))
    arguments = ["generate", "hi", "--device", "numpy", "--max-tokens", "2", "--speculative-method", "rash"]
    result = typer.testing.CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    return result.stderr.splitlines()[-2:]


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ("raise LookupError('no such lane')", "LookupError: no such lane"),
        ("return numpy.zeros(3)[7]", "IndexError: index 7 is out of bounds"),  # raised by a library that it uses
        ("return numpy.linalg.inv(numpy.zeros((2, 3)))", "LinAlgError: "),  # in a frame of that library
    ],
)
def test_a_plugin_that_raises_is_named_with_the_place(fakes: FakeDistributions, body: str, title: str) -> None:
    first, second = generate(fakes, body)
    assert first.startswith(f"Error: {title}")
    place = fakes.folder / "plugin_of_fake_rash_rash.py"
    assert second.startswith(f"It was raised in plugin rash (fake-rash 9.9), {place}:")
    assert second.endswith("and report it to the authors of that package.")


def test_an_error_of_the_core_is_a_bug_even_if_a_plugin_called_it(fakes: FakeDistributions) -> None:
    assert generate(fakes, "return PromptLookup(None)")[-1].startswith("This is a bug.")
