"""What every area of the tests shares: the devices that must compute, and one boot of what is installed."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from tests.composition.environments import Environments
from tests.redis_server import REDIS_SERVER, RedisServer
from tests.scale import is_extended, scaled

# Before anything imports NumPy: these models are so small that waking threads costs more than it saves.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No test uses a network: a name of the Hugging Face Hub that is in no cache is an error at once.
os.environ["HF_HUB_OFFLINE"] = "1"

from aethermind import Runtime

if TYPE_CHECKING:
    from tests.hub_server import HubServer

# A shell that runs this in the background has interrupts ignored, and some tests are about them.
signal.signal(signal.SIGINT, signal.default_int_handler)


# What passed once passes again, at any speed. `make nightly` tries other examples each time, a hundred times as many.
for profile, is_same in (("same", True), ("random", False)):
    settings.register_profile(
        profile,
        derandomize=is_same,
        max_examples=scaled(10_000),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile("random" if is_extended() else "same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first: where files are shared out to processes, none should begin with it last."""
    items.sort(key=lambda item: "tests/documentation" not in item.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time went: the seconds of each folder of tests, those of all processes together."""
    seconds: Counter[str] = Counter()
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            seconds["/".join(Path(report.nodeid.partition("::")[0]).parts[:-1][:3])] += report.duration
    if len(seconds) > 1:
        terminalreporter.section("seconds")
        for folder, total in seconds.most_common():
            terminalreporter.line(f"{total:8.1f}  {folder}")


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    """A command that runs in this process sets the log's level and handlers; the next test finds them as they were."""
    loggers = [logging.getLogger(name) for name in ("aethermind", "uvicorn", "asyncio")]
    before = [(logger, logger.level, logger.handlers[:], logger.propagate) for logger in loggers]
    yield
    for logger, level, handlers, propagate in before:
        if logger.level != level:
            logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


@pytest.fixture(scope="session", params=["numpy", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device on which models must run on any machine; one that is not installed is a failure, not a skip."""
    return str(request.param)


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """Everything installed, found once."""
    return Runtime.boot()


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    """A folder with the wheel of every distribution, built from this tree; what has not changed is not built again.

    CUDA's kernels are in it where they were compiled before: `make cuda-kernels` takes minutes, and no test needs them.
    """
    from release.wheels import WHEELHOUSE, build_all

    wheelhouse = WHEELHOUSE.with_name("wheelhouse-of-tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AETHERMIND_CUDA_TARGETS", "none")
        build_all(wheelhouse, say=lambda line: None)
    return wheelhouse


@pytest.fixture(scope="session")
def environments(wheelhouse: Path) -> Iterator[Environments]:
    """Makes clean environments, to install wheels into as a user would."""
    made = Environments(wheelhouse.parent / "environments", wheelhouse)
    yield made
    made.remove()


@pytest.fixture(scope="session")
def started_redis() -> Iterator[RedisServer]:
    """Debian's Redis, for whoever stops and starts it."""
    if REDIS_SERVER is None:
        pytest.skip("The store in Redis needs a server to be tried with: run 'make redis-tools' (as root, on Debian).")
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def redis_server(started_redis: RedisServer) -> RedisServer:
    """A running Redis with nothing in it."""
    started_redis.client.flushall()
    return started_redis


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A stand-in for the Hugging Face Hub, with an empty cache and no token; the client tries again without a pause."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session
    from tests.hub_server import HubServer

    with HubServer() as started:
        monkeypatch.setattr(constants, "ENDPOINT", started.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", started.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 2**16)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
        monkeypatch.chdir(tmp_path)
        close_session()
        yield started
        close_session()
