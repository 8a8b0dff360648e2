"""BERT for AetherMind: vectors of texts."""
