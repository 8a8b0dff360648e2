"""The check that a set of weights is exactly what a model needs: every name, every shape, nothing besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from aethermind.checkpoint.source import TensorInfo, TensorSource
from aethermind.errors import CheckpointError

__all__ = ["match_names"]

_MAX_LISTED = 5
_PACKED = ".qweight"


def match_names(
    expected: Mapping[str, tuple[int, ...]],
    checkpoint: TensorSource,
    *,
    ignore: Sequence[str] = (),
) -> dict[str, TensorInfo]:
    """Return each expected tensor's description, in the order of `expected`.

    Args:
        expected: the model's parameters, name to shape.
        checkpoint: the weights.
        ignore: shell patterns of names that the checkpoint may have although the model does not want them:
            `"lm_head.weight"` of a model with tied embeddings, `"*.rotary_emb.inv_freq"`.

    Raises:
        CheckpointError: names are missing or unexpected, or shapes differ; lists up to five of each kind.
    """
    found = {name: checkpoint.info(name) for name in checkpoint.names}
    missing = [f"{name} {_shape(shape)}" for name, shape in expected.items() if name not in found]
    unexpected = [
        f"{name} {_shape(info.shape)}"
        for name, info in found.items()
        if name not in expected and not any(fnmatchcase(name, pattern) for pattern in ignore)
    ]
    misshapen = [
        f"{name} {_shape(found[name].shape)} instead of {_shape(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != tuple(shape)
    ]
    problems = [
        f"{len(items)} {kind} ({_listing(items)})"
        for kind, items in (("missing", missing), ("misshapen", misshapen), ("unexpected", unexpected))
        if items
    ]
    if problems:
        advice = "Check that config.json and the weights belong to the same model."
        if any(name.endswith(_PACKED) for name in found if name not in expected):
            advice = (
                f"Tensors *{_PACKED} are of GPTQ or AWQ: quantization_config in config.json, quantize_config.json or "
                "quant_config.json has to say how they are packed. Fetch that file, too."
            )
        raise CheckpointError(
            f"The checkpoint does not fit the model: of {len(expected)} expected tensors and {len(found)} found, "
            f"{'; '.join(problems)}. {advice}"
        )
    return {name: found[name] for name in expected}


def _listing(items: Sequence[str]) -> str:
    rest = len(items) - _MAX_LISTED
    return ", ".join(items[:_MAX_LISTED]) + (f", and {rest} more" if rest > 0 else "")


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
