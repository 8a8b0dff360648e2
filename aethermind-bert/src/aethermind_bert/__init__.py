"""BERT for AetherMind: text embeddings."""
