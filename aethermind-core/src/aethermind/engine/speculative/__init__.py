"""Speculative decoding (Leviathan et al., ICML 2023; Chen et al., 2023): cheap draft tokens, verified by the model
several at a time.

A *proposer* drafts tokens that may follow a request's tokens. The step computes a logits row after each draft, and
samples every row as if the drafts before it had been generated: with the same parameters, and with the random number of
its position in the output. A draft is accepted if it equals the token that is sampled at its position. So outputs equal
those without speculation, token by token, at any temperature; drafts affect only how many tokens a step yields.
"""

from aethermind.engine.requests.request import Request
from aethermind.engine.speculative.proposer import Proposer, ProposerFactory
from aethermind.engine.speculative.speculator import Speculator, open_speculator

__all__ = ["Proposer", "ProposerFactory", "Request", "Speculator", "open_speculator"]
