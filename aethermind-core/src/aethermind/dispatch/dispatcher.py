"""The dispatcher: chooses a kernel for a signature and records why the others were rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from aethermind.dispatch.kernel import REPAIR_ADVICE, Kernel, Signature
from aethermind.errors import AetherMindError, PluginError, describe_exception

__all__ = ["Dispatcher", "Fallback", "Resolution"]


class Fallback(Enum):
    """The policy for operators that have neither a kernel nor a decomposition, if the host can access the device's
    memory.

    ERROR refuses the plan; WARN runs the NumPy reference, and the engine logs a warning; ALLOW runs it without one.
    """

    ERROR = "error"
    WARN = "warn"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The kernel chosen for a signature, or None, and every rejected kernel with the reason."""

    signature: Signature
    chosen: Kernel | None
    rejected: tuple[tuple[Kernel, str], ...]
    is_fallback: bool = False

    def explain(self) -> str:
        """Return one line: the chosen kernel, then the rejected ones with their reasons."""
        chosen = self.chosen.name if self.chosen else "no kernel"
        if self.is_fallback:
            chosen += " (fallback)"
        reasons = "; ".join(f"{kernel.name}: {reason}" for kernel, reason in self.rejected)
        return f"{self.signature.operator} → {chosen}" + (f" (rejected {reasons})" if reasons else "")


class Dispatcher:
    """Chooses kernels of one device for signatures, when a graph is compiled.

    Of the kernels that support a signature it chooses the one of highest priority; of equal ones, the first in
    `kernels`. With `is_deterministic` it chooses batch-invariant kernels only.
    """

    def __init__(
        self, kernels: Sequence[Kernel], fallback_kernels: Sequence[Kernel] = (), *, is_deterministic: bool = False
    ) -> None:
        self._is_deterministic = is_deterministic
        self._by_operator = _by_operator_and_priority(kernels)
        self._fallbacks = _by_operator_and_priority(fallback_kernels)

    def with_kernels(self, kernels: Sequence[Kernel]) -> Dispatcher:
        """Return a dispatcher with more kernels, which come after present ones of the same priority."""
        existing = [kernel for group in self._by_operator.values() for kernel in group]
        fallbacks = [kernel for group in self._fallbacks.values() for kernel in group]
        return Dispatcher([*existing, *kernels], fallbacks, is_deterministic=self._is_deterministic)

    def with_fallbacks(self, kernels: Sequence[Kernel]) -> Dispatcher:
        """Return a dispatcher with other fallback kernels."""
        existing = [kernel for group in self._by_operator.values() for kernel in group]
        return Dispatcher(existing, kernels, is_deterministic=self._is_deterministic)

    def has_format(self, name: str) -> bool:
        """Whether a kernel of the device, fallbacks excluded, computes with weights in the format `name`."""
        kernels = (kernel for group in self._by_operator.values() for kernel in group)
        return any(kernel.weight_formats is None or name in kernel.weight_formats for kernel in kernels)

    def resolve(self, signature: Signature) -> Resolution:
        """Choose one of the device's kernels, fallbacks excluded."""
        return self._choose(signature, self._by_operator.get(signature.operator, []))

    def resolve_fallback(self, signature: Signature) -> Resolution:
        """Choose one of the fallback kernels: NumPy references, if the fallback policy allows them."""
        return self._choose(signature, self._fallbacks.get(signature.operator, []), is_fallback=True)

    def _choose(self, signature: Signature, candidates: Sequence[Kernel], *, is_fallback: bool = False) -> Resolution:
        chosen = None
        rejected = []
        for kernel in candidates:
            reason = self._reason_against(kernel, signature) if chosen is None else _outranked_reason(chosen, kernel)
            if reason is None:
                chosen = kernel
            else:
                rejected.append((kernel, reason))
        return Resolution(signature, chosen, tuple(rejected), is_fallback and chosen is not None)

    def _reason_against(self, kernel: Kernel, signature: Signature) -> str | None:
        if self._is_deterministic and not kernel.is_batch_invariant:
            return "it is not batch invariant (is_batch_invariant)"
        return _reason_against(kernel, signature)


def _by_operator_and_priority(kernels: Sequence[Kernel]) -> dict[str, list[Kernel]]:
    """Return the kernels of each operator, in descending order of priority."""
    grouped: dict[str, list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda kernel: -kernel.priority):
        grouped.setdefault(kernel.operator, []).append(kernel)
    return grouped


def _outranked_reason(chosen: Kernel, kernel: Kernel) -> str:
    if kernel.priority == chosen.priority:
        return f"of the same priority {kernel.priority}, registered later"
    return f"priority {kernel.priority} < {chosen.priority}"


def _reason_against(kernel: Kernel, signature: Signature) -> str | None:
    if signature.dtype not in kernel.dtypes:
        return f"computes {', '.join(sorted(map(str, kernel.dtypes)))}, not {signature.dtype}"
    if kernel.weight_formats is not None and signature.weight_format not in kernel.weight_formats:
        return f"reads {', '.join(sorted(kernel.weight_formats))} weights, not {signature.weight_format}"
    return _supports(kernel, signature)


def _supports(kernel: Kernel, signature: Signature) -> str | None:
    """Return `kernel.reason_against(signature)`; PluginError if the kernel's `supports` raises, or returns no text."""
    try:
        reason: object = kernel.reason_against(signature)
    except AetherMindError:
        raise
    except Exception as error:
        raise PluginError(
            f"`supports` of kernel {kernel.title} raised {describe_exception(error)} {REPAIR_ADVICE}"
        ) from error
    if reason is not None and not isinstance(reason, str):
        raise PluginError(
            f"`supports` of kernel {kernel.title} returned {reason!r:.80}; it should return None, or a sentence why "
            f"the kernel does not take a call. {REPAIR_ADVICE}"
        )
    return reason
