"""An example of a KV store for AetherMind: a SQLite database."""
