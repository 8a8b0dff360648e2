"""The HTTP server: OpenAI's API over models that engines run."""
