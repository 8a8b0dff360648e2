"""The HTTP server: OpenAI's and Ollama's API for one or several models. It needs the extra `serve` of `aethermind`."""

from __future__ import annotations

from aethermind.server.access import Quota, Tenants, read_tenants
from aethermind.server.admission import Limits
from aethermind.server.app import create_app
from aethermind.server.model_pool import ModelPool
from aethermind.server.observation.tracing import open_tracing
from aethermind.server.pool_entry import ModelSource
from aethermind.server.run import bind, running, serve
from aethermind.server.served_model import ServedModel

__all__ = [
    "Limits",
    "ModelPool",
    "ModelSource",
    "Quota",
    "ServedModel",
    "Tenants",
    "bind",
    "create_app",
    "open_tracing",
    "read_tenants",
    "running",
    "serve",
]
