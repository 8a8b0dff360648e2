"""Observability of the server: Prometheus metrics, the request log and OpenTelemetry traces."""

from __future__ import annotations

from aethermind.server.observation.metrics import Metrics
from aethermind.server.observation.observer import Observer
from aethermind.server.observation.records import GenerationRecord, HttpRecord

__all__ = ["GenerationRecord", "HttpRecord", "Metrics", "Observer"]
