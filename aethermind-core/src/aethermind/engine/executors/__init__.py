"""Executors: where the steps of a model run. `--executor` chooses one by the name under which it is registered."""

from aethermind.cache.kv_cache import KVCache
from aethermind.engine.executors.executor import Executor, ExecutorFactory, InlineExecutor
from aethermind.engine.loading.planned_model import PlannedModel
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.model_runner import ModelRunner, StepObserver

__all__ = [
    "Executor",
    "ExecutorFactory",
    "InlineExecutor",
    "KVCache",
    "ModelRunner",
    "PlannedModel",
    "ScheduleDecision",
    "StepObserver",
]
