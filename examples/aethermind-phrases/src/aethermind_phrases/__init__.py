"""An example of small plugins for AetherMind that share a book of phrases."""
