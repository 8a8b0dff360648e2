"""Linear recurrences over chunks of tokens, by matrix products.

Within a chunk, let Γ[i, j] be the decay from token j to token i, g the decays since the beginning of the chunk, and S
the state before it. Mamba 2 (Dao and Gu 2024, arXiv:2405.21060, section 6) is then

    out = (q kᵀ ∘ Γ) v + g ∘ (q S)        S' = g_last · S + (Γ_last ∘ k)ᵀ v

and its states follow by one product over all chunks. In the gated delta rule (Yang, Kautz and Hatamizadeh 2024,
arXiv:2412.06464, section 3.3), a token's update depends on those before it. They solve a triangular system,

    (I + A) u = β ∘ (v - g ∘ (k S))       A = β ∘ (k kᵀ ∘ Γ) below the diagonal

whose inverse does not depend on S (the WY representation); u then takes the place of v, chunk by chunk.

Everything is computed in float32. A decay is the exponential of the sum of the log decays between two tokens, not of a
difference of cumulative sums, which would lose precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Recurrence", "chunked_scan", "expand_groups"]

_CHUNK = 64
"""Tokens of a chunk, a power of two."""
_MAX_TOKENS_PER_CALL = 32 * _CHUNK
"""Bounds the memory of intermediate results."""


class Recurrence(NamedTuple):
    """Tokens of B sequences: q and k [B, L, G, D] of groups of heads, v [B, L, H, E], log_decay [B, L, H], at most 0.

    With beta [B, L, H], a delta rule: the update of a token is beta · (v - Sᵀ k), else v.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    log_decay: torch.Tensor
    beta: torch.Tensor | None

    def tokens(self, begin: int, end: int) -> Recurrence:
        """Return the tokens from `begin` to `end` of all sequences."""
        q, k, v, log_decay = (x[:, begin:end] for x in self[:4])
        return Recurrence(q, k, v, log_decay, None if self.beta is None else self.beta[:, begin:end])


def expand_groups(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Repeat values that groups of heads share, [B, G, …], for each head: [B, H, …]."""
    return x.repeat_interleave(num_heads // x.shape[1], 1)


def chunked_scan(recurrence: Recurrence, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence over L tokens of B sequences, from their states [B, H, D, E].

    Returns the results [B, L, H, E] and the new states.
    """
    num_tokens = recurrence.v.shape[1]
    results = []
    for begin in range(0, num_tokens, _MAX_TOKENS_PER_CALL):
        result, state = _scan_chunks(recurrence.tokens(begin, begin + _MAX_TOKENS_PER_CALL), state)
        results.append(result)
    return results[0] if len(results) == 1 else torch.cat(results, 1), state


class _Chunks(NamedTuple):
    """Tokens in n chunks of C: q and k [B, H, n, C, D], v [B, H, n, C, E].

    `scores` [B, H, n, C, C] are q kᵀ ∘ Γ. `since_begin` [B, H, n, C, 1] are the decays from the beginning of the chunk
    to each token, `until_end` [B, H, n, C, 1] those from each token to its end, and `log_whole` [B, H, n] the log
    decays of whole chunks.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    since_begin: torch.Tensor
    until_end: torch.Tensor
    log_whole: torch.Tensor


def _scan_chunks(recurrence: Recurrence, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, num_heads = recurrence.v.shape[1:3]
    size = min(_CHUNK, 1 << (num_tokens - 1).bit_length())
    q, k, v = (_split(x, size) for x in recurrence[:3])
    log_decay = _split(recurrence.log_decay, size)
    gamma = _decays(log_decay)
    chunks = _Chunks(
        expand_groups(q, num_heads),
        expand_groups(k, num_heads),
        v,
        expand_groups(q @ k.transpose(-2, -1), num_heads) * gamma,
        torch.exp(log_decay.cumsum(-1))[..., None],
        gamma[..., -1, :, None],
        log_decay.sum(-1),
    )
    if recurrence.beta is None:
        results, state = _ssd(chunks, state)
    else:
        beta = _split(recurrence.beta, size)[..., None]
        system = beta * expand_groups(k @ k.transpose(-2, -1), num_heads) * gamma
        results, state = _delta_rule(chunks, beta, _inverse(system), state)
    return results.flatten(2, 3)[:, :, :num_tokens].transpose(1, 2), state


def _split(x: torch.Tensor, size: int) -> torch.Tensor:
    """Split tokens [B, L, H, …] into chunks [B, H, n, C, …]. The last one is padded by zeros, which change no state."""
    missing = -x.shape[1] % size
    padded = torch.nn.functional.pad(x, (*(0, 0) * (x.dim() - 2), 0, missing)) if missing else x
    return torch.unflatten(padded, 1, (-1, size)).movedim(3, 1)


def _decays(log_decay: torch.Tensor) -> torch.Tensor:
    """Γ [..., C, C] of log decays [..., C]: exp of their sum from j + 1 to i, zero above the diagonal."""
    size = log_decay.shape[-1]
    later = log_decay[..., None].expand(*log_decay.shape, size).tril(-1)  # [k, j]: of token k, if k > j
    return torch.exp(later.cumsum(-2)).tril()


def _ssd(chunks: _Chunks, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute Mamba 2's recurrence: results [B, H, n, C, E] and the new state."""
    gained = chunks.k.transpose(-2, -1) @ (chunks.until_end * chunks.v)  # [B, H, n, D, E]
    terms = torch.cat([state[:, :, None], gained], 2)
    decays = _decays(torch.nn.functional.pad(chunks.log_whole, (1, 0)))
    states = (decays @ terms.flatten(-2)).view(terms.shape)
    results = chunks.scores @ chunks.v + chunks.since_begin * (chunks.q @ states[:, :, :-1])
    return results, states[:, :, -1]


def _delta_rule(
    chunks: _Chunks, beta: torch.Tensor, inverse: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gated delta rule chunk by chunk: results [B, H, n, C, E] and the new state."""
    values = inverse @ (beta * chunks.v)
    predictors = inverse @ (beta * chunks.since_begin * chunks.k)
    queries = chunks.since_begin * chunks.q
    keys = (chunks.until_end * chunks.k).transpose(-2, -1)
    whole = torch.exp(chunks.log_whole)[..., None, None]
    results = []
    for number in range(chunks.v.shape[2]):
        update = values[:, :, number] - predictors[:, :, number] @ state
        results.append(queries[:, :, number] @ state + chunks.scores[:, :, number] @ update)
        state = whole[:, :, number] * state + keys[:, :, number] @ update
    return torch.stack(results, 2), state


def _inverse(system: torch.Tensor) -> torch.Tensor:
    """Return the inverse of I + A, for the part A below the diagonal of `system` [..., C, C]; C is a power of two.

    Blocks on the diagonal are merged in pairs: blocks of size 1, then 2, 4, …. If X and Y are the inverses of two
    adjacent blocks, the inverse of the merged block has X and Y on its diagonal and -Y B X below it, where B is the
    block of A to the left of the second one.
    """
    number = torch.arange(system.shape[-1], device=system.device)
    inverse = (number[:, None] == number).to(system.dtype).expand(system.shape)
    size = 1
    while size < len(number):
        block = torch.div(number, size, rounding_mode="floor")
        is_left = (block % 2 == 1)[:, None] & (block == block[:, None] - 1)
        inverse = inverse - inverse @ torch.where(is_left, system, 0.0) @ inverse
        size *= 2
    return inverse
