"""An example of small plugins for AetherMind, all of which know one book of phrases."""
