"""`aethermind explain`: which kernel computes which operator of a model, and why."""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.diff import DEFAULT_PROMPT, print_diff
from aethermind.cli.diff import diff as compare_devices
from aethermind.cli.flags import is_on_command_line, with_settings
from aethermind.cli.settings import DeviceOptions, KvCacheOptions, as_arguments
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.dispatch import Resolution
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.graph.compile import Compiled
    from aethermind.runtime import Runtime

__all__ = ["EXAMPLES", "LayerGroup", "StepLine", "explain", "layer_groups"]

EXAMPLES = console.examples(
    "aethermind explain",
    "aethermind explain --model demo --device numpy --dtype float32",
    "aethermind explain --json",
    "aethermind explain --diff numpy cpu",
    'aethermind explain --diff numpy cpu --dtype float32 --prompt "The little fox" --tokens 4',
)

_MAX_NAMES = 4
"""The maximum number of kernels listed with one reason."""


@with_settings
def explain(
    ctx: typer.Context,
    model: options.Model = None,
    *,
    device_options: DeviceOptions,
    cache: KvCacheOptions,
    num_threads: options.NumThreads,
    load_format: options.LoadFormat,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Compare every value that device B computes with device A's, and name the first that differs.",
        ),
    ] = None,
    prompt: Annotated[str, typer.Option(help="The prompt of --diff.")] = DEFAULT_PROMPT,
    tokens: Annotated[int, typer.Option(help="Tokens that --diff generates.", min=1)] = 1,
    no_fuse: Annotated[bool, typer.Option("--no-fuse", help="Run --diff without fused operators.")] = False,
    rtol: Annotated[
        float | None,
        typer.Option(
            help="Relative error that --diff allows, as a fraction of a row's largest magnitude.",
            show_default="by dtype",
        ),
    ] = None,
    atol: Annotated[
        float | None, typer.Option(help="Absolute error that --diff allows in addition.", show_default="1e-05")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show which kernel runs each operator, or where two devices disagree.

    Layers with the same kernels are shown once, and so is each reason for a choice. Weights are not loaded. The exit
    code is 1 if a device lacks kernels that it needs to run the model and the host cannot run in its place.

    With --diff, both devices run the same prompt, and the values with a name in both plans are compared; the exit code
    is 1 if any of them differs. Values inside the fused operators of B exist with --no-fuse only.
    """
    settings = {
        **as_arguments(device_options, cache),
        "num_threads": num_threads,
        "load_format": load_format,
        "fallback": "allow",
    }
    device = settings.pop("device")
    if diff is not None:
        if is_on_command_line(ctx, "device"):
            raise InvalidArgumentError("--diff names both devices itself; leave --device out.")
        comparison = {"fuse": not no_fuse, "rtol": rtol, "atol": atol, **settings}
        _explain_difference(options.chosen_model(model), diff, prompt, tokens, comparison, as_json=as_json)
    if no_fuse or (prompt, tokens, rtol, atol) != (DEFAULT_PROMPT, 1, None, None):
        raise InvalidArgumentError(
            "--prompt, --tokens, --no-fuse, --rtol and --atol say how --diff A B compares; add it."
        )
    _explain_kernels(options.chosen_model(model), {"device": device, **settings}, as_json=as_json)


def _explain_difference(
    model: str, devices: tuple[str, str], prompt: str, num_tokens: int, settings: dict[str, Any], *, as_json: bool
) -> None:
    """Print where two devices disagree, and exit with 1 if they do."""
    report = compare_devices(model, devices, prompt, num_tokens, **settings)
    if as_json:
        console.print_json(report)
    else:
        print_diff(report)
    raise typer.Exit(1 if report["first_divergence"] else 0)


def _explain_kernels(model: str, settings: dict[str, Any], *, as_json: bool) -> None:
    """Print which kernel runs each operator, and exit with 1 if the device lacks one that it needs."""
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.loading.loader import compile_model, open_to_explain
    from aethermind.runtime import Runtime

    runtime = Runtime.boot()
    config = EngineConfig.of(**settings)
    opened = open_to_explain(runtime, config)
    with closing(opened.backend):
        compiled = compile_model(runtime, model, config, opened=opened)
        report = examine(compiled) | {"provenance": _provenance(runtime, compiled)}
    if as_json:
        console.print_json(report)
    else:
        _print_report(report)
    if report["missing"]:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step of the plan in the report.

    `path` is its operator after the composite operators that decomposed into it: `mlp_swiglu/linear`.
    """

    scope: str
    path: str
    kernel: str
    priority: int
    is_native: bool
    is_fallback: bool
    weight_format: str
    rejected: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class LayerGroup:
    """Layers that have the same steps; or, without layers, the steps before or after them. Mutable while collected."""

    name: str
    steps: tuple[StepLine, ...]
    layers: list[int] = field(default_factory=list)

    @property
    def title(self) -> str:
        """`layers 0-22 (×23)`, `layer 23`, or the group's name."""
        if len(self.layers) > 1:
            return f"layers {_ranges(self.layers)} (×{len(self.layers)})"
        return f"layer {self.layers[0]}" if self.layers else self.name


def layer_groups(compiled: Compiled, operators: Container[str]) -> list[LayerGroup]:
    """Group the steps of a plan by layer, in order; layers with the same steps form one group."""
    found: list[LayerGroup] = []
    for layer, steps in _steps_by_layer(compiled, operators):
        equal = next((group for group in found if group.layers and group.steps == steps), None)
        if layer is None:
            found.append(LayerGroup("after the layers" if found else "before the layers", steps))
        elif equal is not None:
            equal.layers.append(layer)
        else:
            found.append(LayerGroup("", steps, [layer]))
    return found


def _steps_by_layer(compiled: Compiled, operators: Container[str]) -> list[tuple[int | None, tuple[StepLine, ...]]]:
    """Return the layers in order, each with its steps; None is the layer of steps outside of layers."""
    from aethermind.graph.plan import LAYER_PREFIX

    runs: list[tuple[int | None, list[StepLine]]] = []
    for layer, step, resolution in zip(compiled.plan.layers(), compiled.plan.steps, compiled.resolutions, strict=True):
        if not runs or runs[-1][0] != layer:
            runs.append((layer, []))
        runs[-1][1].append(_line(LAYER_PREFIX.sub("", step.source), resolution, operators))
    return [(layer, tuple(lines)) for layer, lines in runs]


def _line(source: str, resolution: Resolution, operators: Container[str]) -> StepLine:
    """Describe a step. `source` names scopes, the decomposed operators from the outermost inwards, and outputs."""
    chosen = resolution.chosen
    assert chosen is not None, "a compiled step has a kernel"
    parts = re.split(r"[./]", source)
    path = [part for part in parts if part in operators]
    scope = parts[: parts.index(path[0])] if path else []
    if not path or path[-1] != chosen.operator:
        path.append(chosen.operator)
    return StepLine(
        ".".join(scope),
        "/".join(path),
        chosen.name,
        chosen.priority,
        chosen.native is not None,
        resolution.is_fallback,
        resolution.signature.weight_format,
        tuple((kernel.name, reason) for kernel, reason in resolution.rejected),
    )


def examine(compiled: CompiledModel) -> dict[str, Any]:
    """Return the report of `explain`, for JSON."""
    from aethermind.engine.loading.weight_formats import format_uses

    default_step = compiled.step

    operators = {operator.name for operator in compiled.operators}
    may_fall_back = compiled.open_device.backend.capabilities.is_host_accessible
    return {
        "model": str(compiled.source.path),
        "architecture": compiled.architecture,
        "device": str(compiled.open_device.device),
        "device_reason": compiled.open_device.selection.reason,
        "dtype": str(compiled.dtype),
        "weight_formats": [console.weight_format_record(use) for use in format_uses(compiled)],
        "num_steps": len(default_step.plan.steps),
        "num_native_breaks": sum(step.kernel.native is None for step in default_step.plan.steps),
        "fallbacks": list(default_step.fallbacks) if may_fall_back else [],
        "missing": [] if may_fall_back else list(default_step.fallbacks),
        "without_kernel_in_other_steps": _without_kernel_in_other_steps(compiled),
        "memory": {
            "arena_bytes": default_step.memory.arena_bytes,
            "lower_bound_bytes": default_step.memory.lower_bound_bytes,
            "symbols": dict(default_step.plan.symbols),
        },
        "sections": [
            {
                "title": group.title,
                "layers": group.layers,
                "steps": [_as_record(step, may_fall_back) for step in group.steps],
            }
            for group in layer_groups(default_step, operators)
        ],
    }


def _without_kernel_in_other_steps(compiled: CompiledModel) -> dict[str, list[str]]:
    """Return operators without a kernel that only some features need, by feature."""
    from aethermind.engine.loading.model_graph import GraphKey, GraphKind

    if compiled.is_encoder:
        return {}
    others = {
        "penalties, biases and log probabilities": GraphKey(is_adjusted=True),
        "structured output": GraphKey(has_mask=True),
        "log probabilities of prompts": GraphKey(kind=GraphKind.SCORES),
    }
    found = {what: compiled.compile(key).fallbacks for what, key in others.items()}
    usual = compiled.step.fallbacks
    more = {what: [name for name in names if name not in usual] for what, names in found.items()}
    return {what: names for what, names in more.items() if names}


def _provenance(runtime: Runtime, compiled: CompiledModel) -> dict[str, list[str]]:
    """Return the packages that provide the device, its kernels (fallbacks are the core's) and the architecture."""
    device = compiled.open_device.device.type
    return {
        "device": runtime.providers("devices", device),
        "kernels": runtime.providers("kernels", device),
        "architecture": runtime.providers("architectures", compiled.architecture),
    }


def _as_record(step: StepLine, may_fall_back: bool) -> dict[str, Any]:
    """Return a step for JSON. A fallback counts as missing if the host cannot access the device's memory."""
    is_missing = step.is_fallback and not may_fall_back
    return {
        "scope": step.scope,
        "operator": step.path.rpartition("/")[2],
        "path": step.path,
        "kernel": None if is_missing else step.kernel,
        "priority": step.priority,
        "is_native": step.is_native,
        "is_fallback": step.is_fallback and may_fall_back,
        "is_missing": is_missing,
        "weight_format": step.weight_format,
        "rejected": [{"kernel": kernel, "reason": reason} for kernel, reason in step.rejected],
    }


def _print_report(report: dict[str, Any]) -> None:
    print(f"{report['architecture']} on {report['device']} ({report['dtype']}): {report['device_reason']}")
    if report["weight_formats"]:
        print(f"Weights: {console.describe_weight_formats(report['weight_formats'])}")
    origins = (f"{what} from {', '.join(packages) or 'no package'}" for what, packages in report["provenance"].items())
    print(f"Packages: {'; '.join(origins)}")
    rows: list[tuple[str, ...]] = []
    shown: set[str] = set()
    for section in report["sections"]:
        rows += [(), (section["title"],)]
        for step, equal in groupby(section["steps"]):
            times = len(list(equal))
            path = step["path"] + (f" ×{times}" if times > 1 else "")
            path += "" if step["weight_format"] == "dense" else f" [{step['weight_format']}]"
            why = _choice_reason(step)
            remark = why if step["is_fallback"] or step["is_missing"] or why not in shown else ""
            shown.add(why)
            rows.append(("  " + (step["scope"] or "-"), path, f"→ {step['kernel'] or 'MISSING'}", remark))
    titles = {section["title"] for section in report["sections"]}
    for line in console.columns(rows, indent="").splitlines():
        print(console.style(line, "bold", sys.stdout) if line in titles else line)
    breaks = report["num_native_breaks"]
    native = f"{breaks} of them Python calls that interrupt native code" if breaks else "all native"
    print(f"\n{report['num_steps']} steps, {native}")
    memory = report["memory"]
    if report["missing"]:
        print(f"Missing, and the host cannot reach the device's memory: {', '.join(report['missing'])}")
    else:
        print(f"Fallbacks to the NumPy reference: {', '.join(report['fallbacks']) or 'none'}")
    for what, names in report["without_kernel_in_other_steps"].items():
        print(f"Without a kernel in steps with {what}: {', '.join(names)}")
    sizes = ", ".join(f"{name}={value}" for name, value in memory["symbols"].items())
    arena, bound = (console.quantity(memory[name], "B") for name in ("arena_bytes", "lower_bound_bytes"))
    print(f"Intermediate values: {arena}, at least {bound} are alive at once (largest step: {sizes})")


def _choice_reason(step: dict[str, Any]) -> str:
    if step["is_fallback"] or step["is_missing"]:
        reasons = _by_reason(step, step["rejected"]) or "the device has no kernel for it"
        return f"fallback; {reasons}" if step["is_fallback"] else reasons
    if not step["rejected"]:
        return "the only one"
    reasons = _by_reason(step, [kernel for kernel in step["rejected"] if not _is_outranked(kernel)])
    outranked = dict.fromkeys(_distinct_name(step, kernel) for kernel in step["rejected"] if _is_outranked(kernel))
    parts = [f"not {reasons}"] if reasons else []
    parts += [f"priority {step['priority']} over {_abbreviated(list(outranked))}"] if outranked else []
    return "; ".join(parts)


def _by_reason(step: dict[str, Any], rejected: Iterable[dict[str, str]]) -> str:
    """`a, b: needs head_dim 64; c: computes float32, not bfloat16`: each reason once, with its kernels."""
    names: dict[str, dict[str, None]] = {}
    for kernel in rejected:
        names.setdefault(kernel["reason"], {})[_distinct_name(step, kernel)] = None
    return "; ".join(f"{_abbreviated(list(kernels))}: {reason}" for reason, kernels in names.items())


def _abbreviated(names: list[str]) -> str:
    """List the first names, and the number of the others; `--json` has all."""
    shown = names if len(names) <= _MAX_NAMES else names[: _MAX_NAMES - 1]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _is_outranked(rejected: dict[str, str]) -> bool:
    """Whether a kernel is applicable, but another has a higher priority or was registered earlier."""
    return rejected["reason"].startswith(("priority ", "of the same priority "))


def _distinct_name(step: dict[str, Any], rejected: dict[str, str]) -> str:
    """Return the name of a rejected kernel; `another NAME` if the chosen one has the same name."""
    name = rejected["kernel"]
    return f"another {name}" if name == step["kernel"] else name


def _ranges(numbers: Iterable[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2, 5`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
