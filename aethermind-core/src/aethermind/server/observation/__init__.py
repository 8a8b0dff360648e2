"""Observability of the server: Prometheus metrics, the request log and OpenTelemetry traces."""

from __future__ import annotations

from aethermind.server.observation.metrics import Metrics
from aethermind.server.observation.observer import GenerationRecord, HttpRecord, Observer

__all__ = ["GenerationRecord", "HttpRecord", "Metrics", "Observer"]
