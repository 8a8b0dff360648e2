"""Resolution: the kernel of highest priority that supports a call, and a reason for every other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aethermind.dispatch import Dispatcher, Kernel, Resolution, Signature
from aethermind.errors import PluginError
from aethermind.hal import DType

F32, BF16 = DType.FLOAT32, DType.BFLOAT16


def kernel(name: str, priority: int = 0, dtypes: tuple[DType, ...] = (F32,), **options: Any) -> Kernel:
    return Kernel("add", "fake", name, frozenset(dtypes), priority, function=lambda *_: None, **options)


def resolve(*kernels: Kernel, dtype: DType = F32, weight_format: str = "dense") -> Resolution:
    return Dispatcher(kernels).resolve(Signature("add", "fake", dtype, (), {}, weight_format))


def test_the_highest_priority_is_chosen_and_the_others_say_why() -> None:
    resolution = resolve(kernel("slow", 1), kernel("fast", 9), kernel("middle", 5))
    assert resolution.chosen is not None
    assert resolution.chosen.name == "fast"
    assert [(other.name, reason) for other, reason in resolution.rejected] == [
        ("middle", "priority 5 < 9"),
        ("slow", "priority 1 < 9"),
    ]
    assert resolution.explain() == "add → fast (rejected middle: priority 5 < 9; slow: priority 1 < 9)"


def test_of_equal_priorities_the_first_is_chosen() -> None:
    resolution = resolve(kernel("first", 3), kernel("second", 3))
    assert resolution.explain() == "add → first (rejected second: of the same priority 3, registered later)"


def unsupported(reason: str) -> Callable[[Signature], str | None]:
    return lambda _: reason


@pytest.mark.parametrize(
    ("better", "signature", "reason"),
    [
        (kernel("better", 9, (BF16, DType.FLOAT16)), {}, "computes bfloat16, float16, not float32"),
        (kernel("better", 9, supports=unsupported("needs head_dim 64")), {}, "needs head_dim 64"),
        (kernel("better", 9, weight_formats=frozenset({"int4", "int8"})), {}, "reads int4, int8 weights, not dense"),
    ],
)
def test_a_kernel_that_cannot_is_passed_over(better: Kernel, signature: dict[str, Any], reason: str) -> None:
    resolution = resolve(better, kernel("plain"), **signature)
    assert resolution.explain() == f"add → plain (rejected better: {reason})"


def test_supports_sees_the_whole_signature() -> None:
    seen: list[Signature] = []
    resolve(kernel("curious", supports=lambda signature: seen.append(signature)), dtype=F32)  # type: ignore[func-returns-value]
    assert seen == [Signature("add", "fake", F32, (), {})]


def test_no_kernel() -> None:
    nothing = resolve()
    assert (nothing.chosen, nothing.rejected, nothing.explain()) == (None, (), "add → no kernel")
    wrong = resolve(kernel("k"), dtype=BF16)
    assert wrong.explain() == "add → no kernel (rejected k: computes float32, not bfloat16)"


def test_fallback_kernels_are_apart_and_say_so() -> None:
    dispatcher = Dispatcher([], [kernel("reference")])
    signature = Signature("add", "fake", F32, (), {})
    assert dispatcher.resolve(signature).chosen is None
    fallback = dispatcher.resolve_fallback(signature)
    assert fallback.is_fallback
    assert fallback.explain() == "add → reference (fallback)"
    assert not Dispatcher([]).resolve_fallback(signature).is_fallback


def test_a_kernel_without_formats_reads_any() -> None:
    resolution = resolve(kernel("dense", 9), kernel("any", 1, weight_formats=None), weight_format="int4+int8")
    assert resolution.chosen is not None
    assert resolution.chosen.name == "any"
    assert [reason for _, reason in resolution.rejected] == ["reads dense weights, not int4+int8"]


def test_a_deterministic_one_refuses_what_depends_on_the_batch() -> None:
    kernels = [kernel("fast", 9), kernel("plain", is_batch_invariant=True)]
    signature = Signature("add", "fake", F32, (), {}, "dense")
    dispatcher = Dispatcher(kernels, [kernels[0]], is_deterministic=True)
    reason = "it is not batch invariant (is_batch_invariant)"
    assert dispatcher.resolve(signature).explain() == f"add → plain (rejected fast: {reason})"
    assert dispatcher.resolve_fallback(signature).chosen is None
    assert Dispatcher(kernels).resolve(signature).chosen is kernels[0]


@pytest.mark.parametrize(
    ("supports", "problem"),
    [
        (lambda _: True, "returned True; it should return None, or a sentence why"),
        (lambda _: False, "returned False; it should return None, or a sentence why"),
        (lambda signature: signature.inputs[7], "raised IndexError: tuple index out of range."),
    ],
)
def test_a_supports_that_breaks_its_contract_names_the_kernel_and_its_package(
    supports: Callable[[Signature], Any], problem: str
) -> None:
    with pytest.raises(PluginError) as caught:
        resolve(kernel("odd", supports=supports, provider="a-package"))
    assert str(caught.value).startswith(f"`supports` of kernel 'odd' for add of a-package {problem}")
