"""`aethermind explain --diff A B`: the first intermediate tensor on which two devices disagree."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from aethermind.cli import console

if TYPE_CHECKING:
    from aethermind.engine.observation.comparison import Comparison, Difference
    from aethermind.llm import LLM

__all__ = ["DEFAULT_PROMPT", "diff", "print_diff"]

DEFAULT_PROMPT = "Once upon a time there was a"


def diff(
    model: str,
    devices: tuple[str, str],
    prompt: str,
    num_tokens: int,
    *,
    fuse: bool,
    rtol: float | None,
    atol: float | None,
    dtype: str,
    **options: Any,
) -> dict[str, Any]:
    """Run a prompt on both devices and return the differences, for JSON. Both compute in the dtype of the first.

    The first device is the reference. InvalidArgumentError when the second does not compute in that dtype.
    """
    from aethermind.cli.progress import open_llm
    from aethermind.engine.observation.comparison import ComparisonTolerance, compare

    with (
        closing(open_llm(model, device=devices[0], dtype=dtype, **options)) as reference,
        closing(open_llm(model, device=devices[1], dtype=reference.info.dtype, **options)) as tested,
    ):
        tolerance = ComparisonTolerance.of(reference.engine.compiled.dtype, rtol, atol)
        prompt_token_ids = reference.tokenizer.encode(prompt)
        comparison = compare(reference.engine, tested.engine, prompt_token_ids, num_tokens, tolerance, fuse=fuse)
        return {
            "model": reference.info.model,
            "devices": [reference.info.device, tested.info.device],
            "dtype": reference.info.dtype,
            "fuse": fuse,
            "prompt_tokens": len(prompt_token_ids),
            "rtol": tolerance.rtol,
            "atol": tolerance.atol,
            **_as_record(comparison, tested),
        }


def _as_record(comparison: Comparison, tested: LLM) -> dict[str, Any]:
    operators = {operator.name for operator in tested.engine.compiled.operators}
    first = comparison.first_divergence
    names = list(dict.fromkeys(difference.name for difference in comparison.differences))
    return {
        "num_steps": comparison.num_steps,
        "num_values": len(comparison.differences),
        "num_diverging": sum(difference.is_diverging for difference in comparison.differences),
        "compared": names,
        "only_in_first": list(comparison.only_in_reference),
        "only_in_second": list(comparison.only_in_tested),
        "first_divergence": None if first is None else _difference_record(first, operators),
        "worst_by_layer": [_difference_record(worst, operators) for worst in comparison.worst_by_layer().values()],
    }


def _difference_record(difference: Difference, operators: set[str]) -> dict[str, Any]:
    """Return a difference for JSON, with its scope: the parts of the value's name before the first operator."""
    parts = difference.name.partition("/")[0].split(".")
    first = next((position for position, part in enumerate(parts) if part in operators), len(parts))
    record = {name: _number(value) for name, value in asdict(difference).items()}
    return {**record, "scope": ".".join(parts[:first]), "is_diverging": difference.is_diverging}


def _number(value: Any) -> Any:
    """Convert infinities and NaN, which JSON lacks, to text."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def print_diff(report: dict[str, Any]) -> None:
    """Print the report as text."""
    first_device, second_device = report["devices"]
    only_on_one = [
        f"{len(report[key])} only on {device}"
        for key, device in (("only_in_first", first_device), ("only_in_second", second_device))
        if report[key]
    ]
    print(
        f"{report['model']} ({report['dtype']}), {second_device} against {first_device}: {report['num_steps']} steps, "
        f"{len(report['compared'])} values of each compared" + (f" ({', '.join(only_on_one)})" if only_on_one else "")
    )
    first = report["first_divergence"]
    if first is None:
        print(f"Nothing diverges beyond {report['rtol']:g} of a row's largest magnitude + {report['atol']:g}.")
    else:
        print(f"\nFirst divergence: {console.style(first['name'], 'bold', sys.stdout)}")
        rows = [
            ("operator", f"{first['operator']} ({first['kernel']})"),
            ("scope", first["scope"] or "-"),
            ("step", f"{first['step']} ({first['phase']})"),
            ("value", f"{first['dtype']}{list(first['shape'])}"),
            ("largest error", _text(first["max_abs_error"])),
            ("worst element", f"{list(first['index'])}, {_text(first['excess'])} × what is allowed"),
            (first_device, _text(first["expected"])),
            (second_device, _text(first["actual"])),
        ]
        print(console.columns(rows))
        print(f"{report['num_diverging']} of {report['num_values']} values diverge, those computed from it among them.")
    print("\nWorst value of each layer")
    header = ("layer", "value", "step", "largest error", "of the allowed")
    print(console.columns([header, *map(_row, report["worst_by_layer"])]))


def _row(worst: dict[str, Any]) -> tuple[str, ...]:
    layer = "outside" if worst["layer"] is None else str(worst["layer"])
    excess = f"{_text(worst['excess'])} ×"
    return (layer, worst["name"], str(worst["step"]), _text(worst["max_abs_error"]), excess)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
