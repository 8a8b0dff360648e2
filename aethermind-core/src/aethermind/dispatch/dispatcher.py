"""Choosing a kernel, and saying why the others were not chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from aethermind.dispatch.kernel import REPAIR, Kernel, Signature
from aethermind.errors import AetherMindError, PluginError, in_words

__all__ = ["Dispatcher", "Fallback", "Resolution"]


class Fallback(Enum):
    """What happens where a device has no kernel and no decomposition leads on, but the host may look into its memory.

    ERROR refuses; WARN runs the NumPy reference and the engine says so; ALLOW runs it and `explain` alone says so.
    """

    ERROR = "error"
    WARN = "warn"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The kernel chosen for a signature (or None), and each one that was rejected with the reason."""

    signature: Signature
    chosen: Kernel | None
    rejected: tuple[tuple[Kernel, str], ...]
    is_fallback: bool = False

    def explain(self) -> str:
        """One line: the chosen kernel, then the rejected ones with their reasons."""
        chosen = self.chosen.name if self.chosen else "no kernel"
        if self.is_fallback:
            chosen += " (fallback)"
        reasons = "; ".join(f"{kernel.name}: {reason}" for kernel, reason in self.rejected)
        return f"{self.signature.operator} → {chosen}" + (f" (rejected {reasons})" if reasons else "")


class Dispatcher:
    """Resolves signatures against the kernels of one device. Used when a graph is compiled, never while it runs.

    Of kernels with the same priority the one given first is chosen. With `is_deterministic`, none is chosen whose
    result for a row depends on the others.
    """

    def __init__(
        self, kernels: Sequence[Kernel], fallback_kernels: Sequence[Kernel] = (), *, is_deterministic: bool = False
    ) -> None:
        self._is_deterministic = is_deterministic
        self._by_operator = _group(kernels)
        self._fallbacks = _group(fallback_kernels)

    def with_kernels(self, kernels: Sequence[Kernel]) -> Dispatcher:
        """The same with more kernels, behind those of the same priority."""
        ours = [kernel for group in self._by_operator.values() for kernel in group]
        fallbacks = [kernel for group in self._fallbacks.values() for kernel in group]
        return Dispatcher([*ours, *kernels], fallbacks, is_deterministic=self._is_deterministic)

    def with_fallbacks(self, kernels: Sequence[Kernel]) -> Dispatcher:
        """The same with other kernels to fall back to."""
        ours = [kernel for group in self._by_operator.values() for kernel in group]
        return Dispatcher(ours, kernels, is_deterministic=self._is_deterministic)

    def has_format(self, name: str) -> bool:
        """Whether one of the device's own kernels computes with weights in a format."""
        kernels = (kernel for group in self._by_operator.values() for kernel in group)
        return any(kernel.weight_formats is None or name in kernel.weight_formats for kernel in kernels)

    def resolve(self, signature: Signature) -> Resolution:
        """The supporting kernel of highest priority among the device's own."""
        return self._choose(signature, self._by_operator.get(signature.operator, []))

    def resolve_fallback(self, signature: Signature) -> Resolution:
        """The NumPy reference, where the fallback policy provided it."""
        return self._choose(signature, self._fallbacks.get(signature.operator, []), is_fallback=True)

    def _choose(self, signature: Signature, candidates: Sequence[Kernel], *, is_fallback: bool = False) -> Resolution:
        chosen = None
        rejected = []
        for kernel in candidates:
            reason = self._reason_against(kernel, signature) if chosen is None else _reason_behind(chosen, kernel)
            if reason is None:
                chosen = kernel
            else:
                rejected.append((kernel, reason))
        return Resolution(signature, chosen, tuple(rejected), is_fallback and chosen is not None)

    def _reason_against(self, kernel: Kernel, signature: Signature) -> str | None:
        if self._is_deterministic and not kernel.is_batch_invariant:
            return "it does not promise results that do not depend on the batch (is_batch_invariant)"
        return _reason_against(kernel, signature)


def _group(kernels: Sequence[Kernel]) -> dict[str, list[Kernel]]:
    grouped: dict[str, list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda kernel: -kernel.priority):
        grouped.setdefault(kernel.operator, []).append(kernel)
    return grouped


def _reason_behind(chosen: Kernel, kernel: Kernel) -> str:
    if kernel.priority == chosen.priority:
        return f"of the same priority {kernel.priority}, registered later"
    return f"priority {kernel.priority} < {chosen.priority}"


def _reason_against(kernel: Kernel, signature: Signature) -> str | None:
    if signature.dtype not in kernel.dtypes:
        return f"computes {', '.join(sorted(map(str, kernel.dtypes)))}, not {signature.dtype}"
    if kernel.weight_formats is not None and signature.weight_format not in kernel.weight_formats:
        return f"reads {', '.join(sorted(kernel.weight_formats))} weights, not {signature.weight_format}"
    return _answer_of(kernel, signature)


def _answer_of(kernel: Kernel, signature: Signature) -> str | None:
    """What a kernel's `supports` says; PluginError where it raises, or says neither why not nor None."""
    try:
        reason: object = kernel.supports(signature)
    except AetherMindError:
        raise
    except Exception as error:
        raise PluginError(f"`supports` of kernel {kernel.title} raised {in_words(error)} {REPAIR}") from error
    if reason is not None and not isinstance(reason, str):
        raise PluginError(
            f"`supports` of kernel {kernel.title} returned {reason!r:.80}; it should return None, or in words why the "
            f"kernel does not take a call. {REPAIR}"
        )
    return reason
