"""What is wanted of all tokens of a text and not of an answer: its scores, its logits, its embedding."""

__all__: list[str] = []
