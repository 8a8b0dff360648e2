"""A model compiled for a device: its source, graphs, plan, weight formats, and the layout of its KV cache.

Terms: a *plan* is the list of kernel calls to which a graph is lowered. The *plain step* is the graph that most steps
run (see `model_graph`). The *output projection* (lm_head) turns hidden states into logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aethermind.cache.spec import KVCacheSpec
from aethermind.dispatch import Fallback
from aethermind.engine.config import EngineConfig
from aethermind.engine.loading.adapters import NO_ADAPTER, AdapterChoice, Adapters
from aethermind.engine.loading.model_graph import GraphKey, GraphKind, StepGraphs
from aethermind.engine.loading.tensor_parallel import TensorParallel
from aethermind.errors import InvalidArgumentError
from aethermind.graph.compile import Compiled, compile_graph
from aethermind.graph.ir import Graph, without_unused_nodes
from aethermind.hal.dtype import DType
from aethermind.log import get_logger
from aethermind.model.architecture import CausalLM, TextEncoder
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import WeightFormat
from aethermind.runtime import OpenDevice

if TYPE_CHECKING:
    from aethermind.model.source import ModelSource
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["CompiledModel", "compile_for"]

logger = get_logger(__name__)

_MAX_TEXT_ROWS = {GraphKind.SCORES: 64, GraphKind.HIDDEN_STATES: 1 << 30}
"""Maximum number of output rows of a graph for whole texts: few if each takes a logits row, else one for each token."""


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A model compiled for a device; its weights are not read yet.

    Attributes:
        ignored_names: patterns of checkpoint tensors that the graph does not use.
        model: the implementation of the architecture, which writes the graphs.
        config: the engine's options; those of an encoder are adapted (see `for_whole_texts`).
        generation: the contents of generation_config.json.
        step: the graph of the plain step and its plan.
        computed: parameters by name that come from the configuration and not from the checkpoint.
        weight_formats: the formats of parameters that are not stored dense, by name.
        row_formats: those of `weight_formats` from which rows are also looked up, as from a tied embedding table.
        draft: the draft model of speculative decoding, or the MTP module, compiled for the same open device.
        outputs_hidden_states: whether the graphs of steps have the output `hidden_states`, the input of the output
            projection: F[T, hidden_size], of all tokens; for an MTP module F[R, hidden_size], of the logits rows.
        shared_parameters: parameters of an MTP module for which it uses the constants of its model.
        parallel: the tensor-parallel rank for which it is compiled; graphs and `parameter_types` are those of the rank.
        adapters: the LoRA adapters that requests can name; their parameters are not among `parameter_types`.
        embedding_dtype, lm_head_dtype: in which embeddings are looked up and logits computed; None for `dtype`.
        is_headless: whether the checkpoint has no output matrix, so that the graphs' logits are meaningless.
        is_encoder: whether the model computes embeddings of texts and generates nothing.
    """

    source: ModelSource
    architecture: str
    ignored_names: tuple[str, ...]
    model: CausalLM | TextEncoder
    config: EngineConfig
    open_device: OpenDevice
    operators: OperatorRegistry
    dtype: DType
    cache_spec: KVCacheSpec
    num_kv_blocks: int
    num_swap_blocks: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    generation: Mapping[str, Any]
    step: Compiled
    computed: Mapping[str, Any]
    weight_formats: Mapping[str, WeightFormat]
    row_formats: Mapping[str, WeightFormat]
    draft: CompiledModel | None = None
    outputs_hidden_states: bool = False
    shared_parameters: frozenset[str] = frozenset()
    parallel: TensorParallel | None = None
    adapters: Adapters | None = None
    embedding_dtype: DType | None = None
    lm_head_dtype: DType | None = None
    is_headless: bool = False
    is_encoder: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "is_encoder", isinstance(self.model, TextEncoder)
        )  # isinstance of a Protocol is slow, and every request needs it

    @property
    def max_draft_tokens(self) -> int:
        """How many draft tokens a step can verify: the rows that its memory holds beyond one for each sequence."""
        return self.step.plan.symbols["R"] - self.step.plan.symbols["S"]

    @property
    def key(self) -> GraphKey:
        """The key of the graph that `step` holds."""
        return GraphKey(kind=GraphKind.HIDDEN_STATES) if self.is_encoder else GraphKey()

    @property
    def generates(self) -> bool:
        """Whether the model generates text; otherwise it only computes embeddings of texts."""
        return not (self.is_encoder or self.is_headless)

    @property
    def pooling(self) -> str:
        """The default pooling of embeddings: last, mean or cls."""
        return self.source.pooling() or (self.model.pooling if isinstance(self.model, TextEncoder) else "last")

    @property
    def parameter_types(self) -> dict[str, TensorType]:
        """The dtype and shape of every parameter of the plain step, computed ones included."""
        return {value.name: value.type for value in self.step.graph.parameters}

    @property
    def graphs(self) -> StepGraphs:
        """The writer of the model's graphs."""
        return StepGraphs(
            self.model,
            self.operators,
            self.cache_spec,
            self.num_kv_blocks,
            self.max_model_len,
            self.dtype,
            self.outputs_hidden_states,
            self.embedding_dtype,
            self.lm_head_dtype,
        )

    def with_end_tokens_of(self, tokenizer: Tokenizer) -> CompiledModel:
        """Add this tokenizer's end tokens to those that end an output.

        Fine-tuning often changes the tokenizer's files only, so end tokens are collected from all files.
        """
        token_ids = (token_id for token_id in tokenizer.end_token_ids if token_id < self.model.config.vocab_size)
        return replace(self, eos_token_ids=self.eos_token_ids.union(token_ids))

    def choose_adapter(self, name: str) -> AdapterChoice:
        """Return the adapter of that name, `NO_ADAPTER` for an empty name.

        InvalidArgumentError for an unknown one lists the adapters.
        """
        if not name:
            return NO_ADAPTER
        if self.adapters is None:
            raise InvalidArgumentError(
                f"There is no adapter {name!r:.100}: the model was loaded without any. Pass its directory as adapters."
            )
        return self.adapters.choose(name)

    def compile(
        self,
        key: GraphKey = GraphKey(),  # noqa: B008 - a constant
        *,
        fuse: bool = True,
    ) -> Compiled:
        """Compile a variant of the step's graph (see `model_graph`)."""
        graph = without_unused_nodes(self.graphs.build(key).finish())
        if key.has_adapters:
            assert self.adapters is not None, "graphs with adapters are compiled for models that have some"
            graph = self.adapters.add_to(graph, self.operators)
        if self.parallel is not None:
            graph = self.parallel.divide(graph)
        symbols = dict(self.step.plan.symbols)
        if key.kind in _MAX_TEXT_ROWS:
            symbols["R"] = max(symbols["R"], min(symbols["T"], _MAX_TEXT_ROWS[key.kind]))
        return compile_for(
            self.open_device,
            graph,
            self.operators,
            symbols,
            self.config.fallback,
            self.weight_formats,
            self.row_formats,
            fuse=fuse,
            packed={
                constant.parameter: constant.pack
                for constant in self.step.plan.constants.values()
                if constant.pack is not None
            },
        )


def compile_for(
    opened: OpenDevice,
    graph: Graph,
    operators: OperatorRegistry,
    symbols: Mapping[str, int],
    fallback: str,
    weight_formats: Mapping[str, WeightFormat],
    row_formats: Mapping[str, WeightFormat],
    *,
    fuse: bool = True,
    packed: Mapping[str, str] | None = None,
) -> Compiled:
    """Compile a graph for a device (see `compile_graph`); log the operators that fall back to the reference."""
    compiled = compile_graph(
        graph,
        operators,
        opened.dispatcher,
        opened.backend.name,
        symbols,
        fallback=Fallback(fallback),
        fuse=fuse,
        weight_formats=weight_formats,
        row_formats=row_formats,
        packed=packed,
    )
    if compiled.fallbacks and fallback == "warn":
        logger.warning(
            "%s has no kernel for %s; the NumPy reference computes them, slowly. Run `aethermind explain`.",
            opened.device,
            ", ".join(compiled.fallbacks),
        )
    return compiled
