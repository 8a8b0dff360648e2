"""Plans the GGUF file of a model. For a Hugging Face directory, a package's `GgufFamily` maps names and metadata.

What is written is read again before any values are: the graph of the file's model has to be that of the directory's,
and the tokenizer has to split texts as that of the directory does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.gguf_tensors import ROPE_FACTORS, GgufNames, gguf_name, inverse_order
from aethermind.checkpoint.quantized_tensors import dequantized
from aethermind.checkpoint.remapped import pair_order
from aethermind.engine.quantize.gguf_model import GgufModel, GgufTensor, MetadataEntry, requantised_file
from aethermind.engine.quantize.gguf_vocabulary import vocabulary_metadata
from aethermind.engine.quantize.matrices import dense_values, find_matrices
from aethermind.errors import InvalidArgumentError
from aethermind.first_party import pip_install_command
from aethermind.graph.ir import ValueKind
from aethermind.model.gguf_source import EXPERT_KEYS, GgufSource, field_keys
from aethermind.model.rope import RopeConfig, inverse_frequencies

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.loading.model_graph import StepGraphs
    from aethermind.engine.quantize.gguf_model import GgufFormat
    from aethermind.graph.ir import Node
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.plugins.registry import Registry
    from aethermind.runtime import Runtime

__all__ = ["plan_gguf"]

Array = npt.NDArray[Any]

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_GATE = "ffn_gate_inp_shexp.weight"
"""A matrix of one row, which is a vector in files."""
_NORM = "norm"
_NORM_OFFSET, _OFFSET = "norm_weight_offset", "weight_offset"
"""The field of a configuration and the attribute of operators."""
_WINDOWED = "sliding_attention"
_LAYER_TYPES = {_WINDOWED, "full_attention"}


def plan_gguf(compiled: CompiledModel, runtime: Runtime, format: GgufFormat) -> GgufModel:
    """Plan the quantisation of a compiled model to a GGUF file, without reading weights.

    InvalidArgumentError without the gguf library, and for a model that cannot be written.
    """
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise InvalidArgumentError(
            f"GGUF is written with the gguf library. Install it with `{pip_install_command('aethermind-core[gguf]')}`."
        ) from None
    if isinstance(compiled.source, GgufSource):
        return requantised_file(compiled, compiled.source, format)
    return _convert_directory(compiled, runtime, format)


def _convert_directory(compiled: CompiledModel, runtime: Runtime, format: GgufFormat) -> GgufModel:
    """Plan the file of a model directory; InvalidArgumentError says why there can be none."""
    name, family = _family_of(compiled, runtime.gguf_families)
    config = compiled.model.config
    tensors = list(_tensors(compiled, family, format))
    if config.rope.kind == "llama3":
        factors = _rope_factors(config.rope)
        tensors.insert(0, GgufTensor(ROPE_FACTORS, factors.shape, "F32", lambda: factors))
    tokenizer = compiled.source.tokenizer()
    metadata = [*_configuration(name, family, compiled), *vocabulary_metadata(tokenizer, family, config.vocab_size)]

    def check(path: Path) -> None:
        raw = GgufSource(path, runtime.gguf_families).config()
        found = runtime.architectures.create_model(runtime.architectures.resolve_name(raw, path), raw)
        graphs = replace(compiled.graphs, model=found)
        settings = [(one.sliding_windows, one.max_position_embeddings) for one in (config, found.config)]
        if settings[0] != settings[1] or not _are_alike(compiled.graphs, graphs, _norm_offset(family)):
            raise InvalidArgumentError(
                "The configuration of this model has settings that a GGUF file would not have, such as windows or "
                "scaled positions. Choose a format of compressed-tensors."
            )

    return GgufModel(name, metadata, tensors, format, check, num_settings=int(config.rope.kind == "llama3"))


def _family_of(compiled: CompiledModel, families: Registry[GgufFamily]) -> tuple[str, GgufFamily]:
    """The name and the family of a model's files; InvalidArgumentError if files cannot be written for it."""
    found = [(name, family) for name in families.names() if (family := families.get(name)).is_writable]
    writable = {family.architecture: (name, family) for name, family in found}
    writable |= {family.mixture: (name, family) for name, family in found if family.mixture is not None}
    if compiled.architecture not in writable:
        raise InvalidArgumentError(
            f"Directories of {compiled.architecture} are not written as GGUF; those of {', '.join(sorted(writable))} "
            "are. Take a .gguf file of the model in F16 or BF16, or choose a format of compressed-tensors."
        )
    return writable[compiled.architecture]


def _tensors(compiled: CompiledModel, family: GgufFamily, format: GgufFormat) -> Iterator[GgufTensor]:
    """The tensors of a model, those of a layer's experts as one; InvalidArgumentError where GGUF has no name."""
    stored, config = compiled.source.weights(), compiled.model.config
    matrices = find_matrices(compiled, stored)
    names = GgufNames({**family.modules, **family.stored_modules}, family.outside, family.layers)
    parts: dict[str, dict[int, str]] = {}
    for own_name in stored.names:
        if own_name.endswith(".rotary_emb.inv_freq") or (own_name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        expert = _EXPERT.search(own_name)
        gguf_own = gguf_name(own_name if expert is None else own_name.replace(expert[0], ".experts."), names)
        if gguf_own is None:
            raise InvalidArgumentError(f"{own_name} has no name in GGUF: this model cannot be written as .gguf.")
        parts.setdefault(gguf_own, {})[-1 if expert is None else int(expert[1])] = own_name
    for gguf_own, by_expert in parts.items():
        own_names = [by_expert[expert] for expert in sorted(by_expert)]
        first, shape = own_names[0], stored.info(own_names[0]).shape
        is_table = first in matrices.tables
        is_output = first in matrices.heads or (is_table and not matrices.heads)
        parameter = {**matrices.linear, **matrices.heads}.get(first, first if is_table else None)
        type_name = "F32"
        if parameter is not None:
            type_name = format.type_of(gguf_own, shape[-1], config.num_hidden_layers, is_output=is_output)
        change = _Change(
            _row_order(gguf_own, family, shape[0], config.head_dim),
            _norm_offset(family) if _NORM in gguf_own and gguf_own.endswith(".weight") else 0.0,
        )
        shape = (len(own_names), *shape) if -1 not in by_expert else shape[1:] if gguf_own.endswith(_GATE) else shape
        yield GgufTensor(gguf_own, shape, type_name, partial(_values, stored, own_names, change), parameter)


class _Change(NamedTuple):
    """What the converter changes of a tensor: the order of its rows, and a number that is added to its values."""

    order: tuple[int, ...] | None
    offset: float


def _values(stored: StoredTensors, names: Sequence[str], change: _Change) -> Any:
    view = dequantized(stored, np.float32)
    found = [dense_values(view.array(name)) for name in names]
    values = found[0] if len(found) == 1 else np.concatenate(found)
    values = values if change.order is None else values[np.asarray(change.order, np.int64)]
    return values if not change.offset else values.astype(np.float32) + np.float32(change.offset)


def _norm_offset(family: GgufFamily) -> float:
    """The number that the converter adds to weights of norms, of which a family's files therefore say that none is."""
    return 1.0 - float(family.fields.get(_NORM_OFFSET, 1.0))


def _are_alike(own: StepGraphs, other: StepGraphs, norm_offset: float) -> bool:
    """Whether two models have one graph, up to what is added to the weights of norms in `other`'s checkpoint."""
    builders = own.build(), other.build()
    left, right = (builder.finish() for builder in builders)
    constants = [builder.constants for builder in builders]
    if left.parameters != right.parameters or len(left.nodes) != len(right.nodes):
        return False
    if not all(np.allclose(values, constants[1][name], rtol=1e-5) for name, values in constants[0].items()):
        return False
    return all(
        (one.operator, one.inputs, one.outputs) == (two.operator, two.inputs, two.outputs)
        and all(
            _is_same_number(value, two.attributes[name] + (norm_offset if name == _OFFSET and _has_norm(one) else 0))
            for name, value in one.attributes.items()
        )
        for one, two in zip(left.nodes, right.nodes, strict=True)
    )


def _has_norm(node: Node) -> bool:
    """Whether an operator reads the weight of a norm."""
    return any(value is not None and value.kind is ValueKind.PARAMETER and _NORM in value.name for value in node.inputs)


def _is_same_number(one: Any, other: Any) -> bool:
    """Whether attributes are equal; files hold float32 numbers."""
    return one == other or (isinstance(one, float) and bool(np.isclose(one, other, rtol=1e-6, atol=0)))


def _row_order(name: str, family: GgufFamily, num_rows: int, head_dim: int) -> tuple[int, ...] | None:
    """Return the order of a projection's rows in the file, with rotated pairs adjacent; None if it is the same."""
    module = name.rsplit(".", 2)[-2]
    if module not in family.interleaved:
        return None
    return inverse_order(pair_order(num_rows // head_dim, head_dim))


def _rope_factors(rope: RopeConfig) -> Array:
    """Return the factors by which llama3 scaling divides the rotary frequencies, float32 [head_dim / 2]."""
    plain, _ = inverse_frequencies(replace(rope, kind="default"), 0)
    scaled, _ = inverse_frequencies(rope, 0)
    divisors: Array = (plain / scaled).astype(np.float32)
    return divisors


def _configuration(name: str, family: GgufFamily, compiled: CompiledModel) -> Iterator[MetadataEntry]:
    """The keys under the architecture, by the table with which they are read; what is read from them is checked."""
    from gguf import GGUFValueType as Type

    config, fields = compiled.model.config, _fields(compiled)
    values = {key: fields.get(field) for field, key in field_keys(family).items()}
    values |= {"vocab_size": config.vocab_size, "attention.value_length": config.head_dim}
    if num_experts := fields.get("num_experts") or fields.get("num_local_experts"):
        values |= {"expert_count": num_experts, **{key: fields.get(field) for field, key in EXPERT_KEYS.items()}}
    rope = config.rope
    if rope.kind in ("linear", "yarn"):
        values |= {"rope.scaling.type": rope.kind, "rope.scaling.factor": float(rope.factor)}
        if rope.kind == "yarn":
            values["rope.scaling.original_context_length"] = rope.original_max_position_embeddings
    elif rope.kind not in ("default", "llama3"):
        raise InvalidArgumentError(f"Rotary scaling of the kind {rope.kind} is not written as GGUF.")
    yield MetadataEntry("general.name", compiled.source.path.resolve().name, Type.STRING)
    types = {bool: Type.BOOL, int: Type.UINT32, float: Type.FLOAT32, str: Type.STRING}
    for key, value in values.items():
        if type(value) in types:
            yield MetadataEntry(f"{name}.{key}", value, types[type(value)])
        elif isinstance(value, list) and set(value) <= _LAYER_TYPES:
            yield MetadataEntry(f"{name}.{key}", [kind == _WINDOWED for kind in value], Type.ARRAY, Type.BOOL)


def _fields(compiled: CompiledModel) -> dict[str, Any]:
    """The fields of config.json with those that all decoders have, whatever the directory calls them."""
    config = compiled.model.config
    local = [rope.theta for rope in config.layer_ropes or () if rope is not None and rope.theta != config.rope.theta]
    return {
        **compiled.source.config(),
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": float(config.rms_norm_eps),
        "rope_theta": float(config.rope.theta),
        "rotary_dim": config.rope.head_dim,
        **(dict.fromkeys(("rope_theta_local", "rope_local_base_freq"), float(local[0])) if local else {}),
    }
