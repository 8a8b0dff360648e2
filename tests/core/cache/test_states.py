"""The table of transitions: complete, closed, and stricter for protected content."""

from __future__ import annotations

import itertools

import pytest

from aethermind.cache.sequence import LEGAL_TRANSITIONS, CacheState, is_legal_transition

FREE, ACTIVE, STANDBY, WARM, SWAPPED = CacheState


def test_every_state_has_a_row_and_a_way_back_to_free() -> None:
    assert set(LEGAL_TRANSITIONS) == set(CacheState)
    reached = {FREE}
    while grown := {state for state in CacheState if LEGAL_TRANSITIONS[state] & reached} - reached:
        reached |= grown
    assert reached == set(CacheState)


@pytest.mark.parametrize(
    ("state", "target"),
    [(FREE, STANDBY), (FREE, WARM), (FREE, SWAPPED), (SWAPPED, STANDBY), (SWAPPED, WARM), (WARM, STANDBY)],
)
def test_swapped_content_passes_through_active(state: CacheState, target: CacheState) -> None:
    assert not is_legal_transition(state, target)


def test_no_state_follows_itself() -> None:
    assert not any(is_legal_transition(state, state) for state in CacheState)


def test_protected_content_stays_in_device_memory() -> None:
    allowed = {
        pair for pair in itertools.product(CacheState, repeat=2) if is_legal_transition(*pair, is_protected=True)
    }
    assert {target for _, target in allowed} == {ACTIVE, STANDBY}
    assert {(ACTIVE, STANDBY), (STANDBY, ACTIVE)} <= allowed
