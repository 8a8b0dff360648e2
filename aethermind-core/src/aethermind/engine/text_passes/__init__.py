"""Passes of whole texts through the model: logits, embeddings, and log probabilities of all tokens."""

__all__: list[str] = []
