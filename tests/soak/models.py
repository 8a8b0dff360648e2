"""More models than may be loaded: clients ask for any of them, and each answer has to be that of the model alone."""

from __future__ import annotations

import asyncio
import atexit
import random
import shutil
import tempfile
import time
from contextlib import closing
from functools import cache
from pathlib import Path

import httpx
from tests.end_to_end.models import copy_demo
from tests.soak.client import ask
from tests.soak.report import Figure, percentile
from tests.soak.server import Server

from aethermind import LLM, SamplingParams

__all__ = ["flags", "models"]

NUM_MODELS = 12
NUM_LOADED = 3
_NUM_CLIENTS = 8
_MAX_MODEL_LEN = 256
_NUM_TOKENS = 12
_TEXTS = ("Once upon a time", "The fox said", "A hen and a dog", "There was a house")
_SETTLED = 0.25
"""The share of the time after which every model was loaded, and the server should have found its size."""


@cache
def _folder() -> Path:
    """Models that answer differently: one checkpoint with other rotary frequencies. Deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="aethermind-soak-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number in range(NUM_MODELS):
        copy_demo(folder / f"m{number:02}", {"rope_theta": 10_000 / 2.5**number})
    return folder


def flags() -> tuple[str, ...]:
    """The server's: a directory of models, of which a quarter may be loaded."""
    sizes = ("--max-model-len", str(_MAX_MODEL_LEN), "--dtype", "float32", "--threads", "1", "--device", "cpu")
    return ("--models-dir", str(_folder()), "--models-max", str(NUM_LOADED), *sizes)


@cache
def _lone_answers() -> dict[tuple[str, str], str]:
    """The answer of each model to each text, in an engine of its own."""
    params = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.0)
    found = {}
    for path in sorted(_folder().iterdir()):
        with closing(LLM(path, device="cpu", dtype="float32", num_threads=1, max_model_len=_MAX_MODEL_LEN)) as llm:
            for text, output in zip(_TEXTS, llm.generate(list(_TEXTS), params), strict=True):
                found[path.name, text] = output.outputs[0].text
    return found


async def models(server: Server, num_seconds: float) -> list[Figure]:
    """Requests for random models, whole and streamed, each beside others for other models."""
    expected = _lone_answers()
    start_s = time.perf_counter()
    end_s = start_s + num_seconds
    failures: list[str] = []
    seconds: list[float] = []
    num_wrong = 0

    async def client(index: int) -> None:
        nonlocal num_wrong
        chance = random.Random(index)
        while time.perf_counter() < end_s:
            name, text = chance.choice(list(expected))
            body = {"model": name, "prompt": text, "max_tokens": _NUM_TOKENS, "temperature": 0}
            answer = await ask(server, {**body, "stream": chance.random() < 0.5})
            seconds.append(answer.seconds)
            if answer.failure is not None:
                failures.append(f"{name}: {answer.failure}")
            elif answer.text != expected[name, text]:
                num_wrong += 1

    async def watch() -> list[int]:
        await asyncio.sleep(num_seconds * _SETTLED)
        sizes = [server.own_resident_bytes()]
        while time.perf_counter() < end_s:
            await asyncio.sleep(min(1.0, num_seconds / 20))
            sizes.append(server.own_resident_bytes())
        return sizes

    sizes, *_ = await asyncio.gather(watch(), *(client(index) for index in range(_NUM_CLIENTS)))
    for failure in failures[:5]:
        print(failure)
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http:
        statuses = [model["status"] for model in (await http.get("/v1/models")).json()["data"]]
    return [
        Figure("seconds", num_seconds),
        Figure("requests", len(seconds)),
        Figure("loads", sum(status["num_loads"] for status in statuses)),
        Figure("failures", len(failures), 0),
        Figure("answers that differ from the lone model's", num_wrong, 0),
        Figure("models loaded at the end", sum(status["value"] == "loaded" for status in statuses), NUM_LOADED),
        Figure("requests left at the end", sum(status["num_requests"] for status in statuses), 0),
        Figure("median seconds of an answer", percentile(seconds, 0.5)),
        Figure("longest seconds of an answer", max(seconds)),
        Figure("engine processes at the end", len(server.engine_pids()), NUM_LOADED + 1),
        Figure("megabytes of the server's process at the end", sizes[-1] / 1e6),
        Figure("megabytes that it gained", (max(sizes) - sizes[0]) / 1e6, 30),
    ]
