"""Compilation of a model's MTP module, which drafts tokens for it (see `model.mtp`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aethermind.engine.loading.compiled_model import CompiledModel, compile_for
from aethermind.engine.loading.kv_plan import plan_kv
from aethermind.engine.loading.model_graph import StepGraphs
from aethermind.engine.loading.model_weights import stored_formats
from aethermind.engine.loading.weight_formats import WeightFormats, held_formats
from aethermind.errors import InvalidArgumentError
from aethermind.model.mtp import MTP_PROJECTION, SHARED_WITH_MTP, MTPModule

if TYPE_CHECKING:
    from aethermind.runtime import Runtime

__all__ = ["MTP_METHOD", "compile_mtp"]

MTP_METHOD = "mtp"
"""The speculative method that drafts with a model's MTP module."""


def compile_mtp(runtime: Runtime, compiled: CompiledModel, num_blocks: int) -> CompiledModel:
    """Compile the MTP module of a model for its device, with a KV cache of `num_blocks` blocks.

    The embeddings and the output matrix are the model's own constants, unless ranks share that. InvalidArgumentError if
    the model or its checkpoint has no such module.
    """
    module = _find_module(runtime, compiled)
    config = replace(compiled.config.of_draft(num_blocks), max_model_len=compiled.max_model_len, weight_cache=0.0)
    opened, operators, plan = compiled.open_device, compiled.operators, compiled.step.plan
    kv = plan_kv(config, compiled.dtype, module, opened)
    graphs = StepGraphs(
        module, operators, kv.spec, kv.num_blocks, kv.max_model_len, compiled.dtype, outputs_hidden_states=True
    )
    builder = graphs.build()
    graph = builder.finish()
    is_dummy = config.load_format == "dummy"
    stored = {} if is_dummy else held_formats(stored_formats(compiled.source, module), opened.dispatcher)
    formats = WeightFormats.choose(runtime.weight_formats, config.quantization, config.lm_head_quantization)
    weight_formats = formats.of_parameters(graph, operators, stored)
    row_formats = formats.of_rows(weight_formats, stored)
    shared = frozenset(SHARED_WITH_MTP) if compiled.parallel is None else frozenset[str]()
    packed = {
        constant.parameter: constant.pack
        for constant in plan.constants.values()
        if constant.pack is not None and constant.parameter in shared
    }
    symbols = {**plan.symbols, "R": plan.symbols["S"], "B": kv.spec.table_width(kv.max_model_len)}
    step = compile_for(opened, graph, operators, symbols, config.fallback, weight_formats, row_formats, packed=packed)
    return replace(
        compiled,
        ignored_names=("*",),
        model=module,
        config=config,
        cache_spec=kv.spec,
        num_kv_blocks=kv.num_blocks,
        num_swap_blocks=0,
        max_model_len=kv.max_model_len,
        step=step,
        computed=builder.constants,
        weight_formats=weight_formats,
        row_formats=row_formats,
        draft=None,
        outputs_hidden_states=True,
        shared_parameters=shared,
        parallel=None,
        adapters=None,
    )


def _find_module(runtime: Runtime, compiled: CompiledModel) -> MTPModule:
    module = runtime.architectures.create_mtp(compiled.architecture, compiled.source.config())
    if module is None:
        raise _refusal(f"{compiled.architecture} of this config.json has no module for multi-token prediction (MTP)")
    if compiled.config.load_format != "dummy" and MTP_PROJECTION not in module.adapt(compiled.source.weights()).names:
        raise _refusal(f"{compiled.source.path} has no weights of a module for multi-token prediction (MTP)")
    return module


def _refusal(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{reason}. Choose another speculative_method, or take a checkpoint with one.", param="speculative_method"
    )
