"""The backend's calls match the names and parameters of the real wheel in `signatures.txt`.

The stand-in defines torch_npu's operators by these schemas, so torch checks every call made by a test, including
documented dtypes and shapes; here the source is parsed, which covers calls that no test makes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cann.read_signatures import BACKEND, used_names

LINES = Path(__file__).with_name("signatures.txt").read_text(encoding="utf-8").splitlines()


def signatures() -> dict[str, inspect.Signature]:
    """The wheel's functions as Python signatures; parameters without a schema default are required."""
    found = {}
    for line in LINES:
        kind, _, text = line.partition(" ")
        if kind in ("npu", "py"):
            name, _, rest = text.partition("(")
            parameters = rest.rpartition(" -> ")[0][:-1] if kind == "npu" else rest[:-1]
            if kind == "npu":
                parameters = ", ".join(_parameter(one) for one in parameters.split(", "))
            space: dict[str, object] = {}
            exec(f"def f({parameters}): ...", space)
            found[name] = inspect.signature(space["f"])  # type: ignore[arg-type]
    return found


def _parameter(text: str) -> str:
    """`Tensor? atten_mask=None` as `atten_mask=None`."""
    return text if text == "*" else text.split(" ", 1)[1]


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    """Calls of torch_npu and torch.npu in the backend's source, with their locations."""
    for path in BACKEND.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name.startswith(("torch_npu.", "torch.npu.")):
                    short = name.removeprefix("torch_npu.").replace("torch.npu.", "npu.")
                    yield short, node, f"{path.name}:{node.lineno}"


def test_every_name_is_in_the_wheel() -> None:
    assert used_names() - signatures().keys() == set()


@pytest.mark.parametrize(("name", "call"), [pytest.param(name, call, id=where) for name, call, where in calls()])
def test_calls_bind_to_the_wheels_parameters(name: str, call: ast.Call) -> None:
    signature = signatures()[name]
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
    assert not any(isinstance(argument, ast.Starred) for argument in call.args)
    signature.bind(*call.args, **keywords)


def test_operators_with_and_without_defaults_are_distinguished() -> None:
    """The check detects an unknown keyword and a missing parameter."""
    norm = signatures()["npu_rms_norm"]
    with pytest.raises(TypeError, match="missing a required argument: 'gamma'"):
        norm.bind(None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'eps'"):
        norm.bind(None, None, eps=1e-6)
