"""Speculative decoding (Leviathan et al., ICML 2023; Chen et al., 2023): tokens are drafted cheaply, and the model
checks several in one step.

A *proposer* drafts what may follow a request's tokens, the step computes a row of logits behind each draft, and every
row is sampled as if the drafts before it had been generated: with the same parameters and the random number of its
place in the answer. A draft is kept where it equals the token sampled before it. So answers are those without
speculation, token by token, at any temperature; drafts decide only how many tokens a step yields.
"""

from aethermind.engine.requests.request import Request
from aethermind.engine.speculative.proposer import Proposer, ProposerFactory
from aethermind.engine.speculative.speculator import Speculator, open_speculator

__all__ = ["Proposer", "ProposerFactory", "Request", "Speculator", "open_speculator"]
