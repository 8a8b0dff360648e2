"""Executors: where the steps of a model run. `--executor` chooses one by the name under which it is registered."""

from aethermind.cache.kv_cache import KVCache
from aethermind.engine.executors.executor import Executor, ExecutorFactory, InlineExecutor
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.model_runner import ModelRunner, StepObserver
from aethermind.plugins.compatibility import deprecated_names

__getattr__ = deprecated_names(__name__, {"PlannedModel": ("CompiledModel", CompiledModel)})

__all__ = [
    "CompiledModel",
    "Executor",
    "ExecutorFactory",
    "InlineExecutor",
    "KVCache",
    "ModelRunner",
    "ScheduleDecision",
    "StepObserver",
]
