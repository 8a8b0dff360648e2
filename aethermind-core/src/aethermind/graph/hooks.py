"""Hooks: functions that are called with intermediate values whose names match a pattern, while a model runs.

    handle = llm.hooks.on("model.layers.*.mlp.*", lambda name, array, info: print(name, info.layer, abs(array).max()))
    llm.generate("Once upon a time")
    handle.remove()

Without hooks there is no overhead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind.graph.executor import PlanExecutor
from aethermind.graph.plan import Place, Plan

__all__ = ["Hook", "HookHandle", "HookRegistry", "ValueInfo"]

_LAYER_NUMBER = re.compile(r"\.\d+\.")


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """The origin of a value: the operator and the kernel that computed it, and the step of the engine.

    `layer` is None for values outside the decoder layers. `phase` is prefill, decode or mixed, `num_tokens` the number
    of tokens of the step, `step` the number of earlier steps that ran with hooks. With `is_state` the array is a whole
    state to which the kernel has written, such as a KV cache, [blocks, kv heads, block size, head dim].
    """

    operator: str
    kernel: str
    layer: int | None
    phase: str
    step: int
    num_tokens: int
    is_state: bool


Hook = Callable[[str, Any, ValueInfo], None]
"""Called with a value's name, its array, which is read-only and valid during the call only, and its origin."""


@dataclass(frozen=True, slots=True, eq=False)
class _Registration:
    pattern: str
    hook: Hook
    fuse: bool


class HookHandle:
    """A registered hook; `remove` unregisters it, and so does leaving a `with` block."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Unregister the hook; removing twice does nothing."""
        self._remove()


class HookRegistry:
    """The hooks of one model. `value_names(fuse)` returns the names of its values, with fusion or without. Mutable.

    `is_active` says whether any hook is registered, `fuse` whether all hooks accept fused operators.
    """

    def __init__(self, value_names: Callable[[bool], Sequence[str]]) -> None:
        self.is_active = False
        self.fuse = True
        self._value_names = cache(value_names)
        self._registrations: list[_Registration] = []
        self._num_steps = 0

    def on(self, pattern: str, hook: Hook, *, fuse: bool = True) -> HookHandle:
        """Call `hook(name, array, info)` for every value whose name matches a pattern of `fnmatch` (`*`, `?`, `[…]`).

        With `fuse=False` the model runs without fused operators while the hook is registered, so that the values inside
        of them exist. For this, weights are loaded in other layouts as well, which remain in memory. An exception in
        the hook aborts the step and propagates to its caller; the model remains usable. InvalidArgumentError when no
        value has such a name.
        """
        self._check(pattern, hook, fuse)
        registration = _Registration(pattern, hook, fuse)
        self._registrations.append(registration)
        self._update()
        return HookHandle(lambda: self._remove(registration))

    def run(self, executor: PlanExecutor, symbols: tuple[int, ...], phase: str, num_tokens: int) -> None:
        """Run a plan once and call the hooks. `symbols` are the run's sizes, in the order of `plan.symbols`."""
        plan = executor.plan
        hooks_by_name = {
            name: [registration.hook for registration in self._registrations if fnmatchcase(name, registration.pattern)]
            for step in plan.steps
            for name in step.names
        }
        infos = _value_infos(plan, phase, self._num_steps, num_tokens)
        self._num_steps += 1

        def call_hooks(name: str, array: Any) -> None:
            for hook in hooks_by_name[name]:
                hook(name, array, infos[name])

        executor.run_capturing(symbols, call_hooks, {name for name, hooks in hooks_by_name.items() if hooks})

    def _remove(self, registration: _Registration) -> None:
        if registration in self._registrations:
            self._registrations.remove(registration)
            self._update()

    def _update(self) -> None:
        self.is_active = bool(self._registrations)
        self.fuse = all(registration.fuse for registration in self._registrations)

    def _check(self, pattern: str, hook: Hook, fuse: bool) -> None:
        if not isinstance(pattern, str) or not callable(hook):
            raise InvalidArgumentError(f"A hook is a pattern and a function, got {pattern!r:.80} and {hook!r:.80}.")
        names = self._value_names(fuse)
        if any(fnmatchcase(name, pattern) for name in names):
            return
        if fuse and any(fnmatchcase(name, pattern) for name in self._value_names(False)):
            raise InvalidArgumentError(
                f"Values that match {pattern!r} are inside fused operators in this model; pass fuse=False to see them."
            )
        from difflib import get_close_matches

        patterns = list(dict.fromkeys(_LAYER_NUMBER.sub(".*.", name) for name in names))
        close = get_close_matches(_LAYER_NUMBER.sub(".*.", pattern), patterns, n=3, cutoff=0.3) or patterns[:3]
        raise InvalidArgumentError(f"No value matches {pattern!r}. Did you mean {' or '.join(map(repr, close))}?")


def _value_infos(plan: Plan, phase: str, step_number: int, num_tokens: int) -> dict[str, ValueInfo]:
    """Return the origin of each value that a step of the plan computes, by name."""
    return {
        name: ValueInfo(
            step.kernel.operator,
            step.kernel.name,
            layer,
            phase,
            step_number,
            num_tokens,
            operand.place is Place.STATE,
        )
        for step, layer in zip(plan.steps, plan.layers(), strict=True)
        for name, operand in zip(step.names, step.outputs, strict=True)
    }
