"""`aethermind run-batch`: answer a file of requests offline, in the format of OpenAI's batches."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from aethermind import env
from aethermind.cli import console, options
from aethermind.cli.flags import with_settings
from aethermind.cli.output_files import writing
from aethermind.cli.served_models import named_models
from aethermind.cli.settings import ExecutionOptions, ModelOptions, ServedEngineOptions
from aethermind.errors import InvalidArgumentError, SettingsError
from aethermind.first_party import pip_install_command

if TYPE_CHECKING:
    from aethermind.llm import LLM
    from aethermind.server.batch import BatchRequest, BatchResult
    from aethermind.text.chat_templates import ChosenTemplate

__all__ = ["EXAMPLES", "run_batch"]

EXAMPLES = console.examples(
    "aethermind run-batch -i requests.jsonl -o results.jsonl",
    "aethermind run-batch requests.jsonl results.jsonl --resume",
    "cat requests.jsonl | aethermind run-batch - - --max-num-seqs 128",
)

_STANDARD = "-"


@with_settings
def run_batch(
    requests: Annotated[str | None, typer.Argument(metavar="IN", help="The same as --input-file.")] = None,
    results: Annotated[str | None, typer.Argument(metavar="OUT", help="The same as --output-file.")] = None,
    *,
    input_file: Annotated[
        str | None, typer.Option("--input-file", "-i", metavar="IN", help="Requests in JSON lines; - is stdin.")
    ] = None,
    output_file: Annotated[
        str | None, typer.Option("--output-file", "-o", metavar="OUT", help="Results in JSON lines; - is stdout.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue OUT: leave out requests whose custom_id has a result there.")
    ] = False,
    model: options.Model = None,
    served_model_name: options.ServedName,
    chat_template: options.ChatTemplate,
    model_options: ModelOptions,
    served: ServedEngineOptions,
    execution: ExecutionOptions,
    as_json: options.AsJson = False,
) -> None:
    """Answer a file of requests offline, in the format of OpenAI's batches.

    A line of IN is {"custom_id": …, "method": "POST", "url": …, "body": …}, where url is /v1/chat/completions,
    /v1/completions, /v1/embeddings or /v1/responses, and body is what the server's endpoint takes; the model may be
    left out. A line of OUT is {"id", "custom_id", "response", "error"}. Requests are batched continuously, and
    each result is written when it is finished.

    Ctrl-C keeps the results so far, with exit code 130. The exit code is 1 if a request failed, 2 if IN cannot be read.
    """
    try:
        from aethermind.server.batch import read_requests
    except ImportError as error:
        raise SettingsError(
            f"`run-batch` needs {error.name}. Run `{pip_install_command('aethermind[serve]')}`."
        ) from None
    from aethermind.cli.progress import open_llm
    from aethermind.text.chat_templates import ChosenTemplate

    source = _chosen(requests, input_file, "IN", "--input-file")
    target = _chosen(results, output_file, "OUT", "--output-file")
    if target == _STANDARD and (resume or as_json):
        flag = "--resume continues a file" if resume else "--json prints a summary where the results go"
        raise InvalidArgumentError(f"{flag}, and OUT is standard output. Write the results to a file.")
    [(name, path)] = named_models([options.chosen_model(model)], served_model_name).items()
    template = None if chat_template is None else ChosenTemplate.read(chat_template)
    lines = list(read_requests(_read(source), name))
    if not lines:
        raise InvalidArgumentError(f"{_described(source, 'input')} has no requests; give it one in each line.")
    with _opened(source, target, resume) as (file, finished):
        remaining = [line for line in lines if _key(line) not in finished]
        run = _Run(file, len(remaining), num_skipped=len(lines) - len(remaining))
        is_interrupted = False
        if remaining:
            with (
                closing(open_llm(path, model_options, served, execution)) as llm,
                nullcontext() if target == _STANDARD else writing(Path(target), "OUT"),
                _progress_bar(run, is_shown=target != _STANDARD or not console.is_terminal(sys.stdout)),
            ):
                try:
                    asyncio.run(_answer_all(llm, name, template, remaining, run, max_in_flight=2 * served.max_num_seqs))
                except KeyboardInterrupt:
                    is_interrupted = True
        run.end()
    if as_json:
        console.print_json({**run.summary(), "output_file": target})
    else:
        stream = sys.stderr if target == _STANDARD else sys.stdout
        print(run.describe(), file=stream)
        if is_interrupted and target != _STANDARD:
            print("Interrupted. Run the command again with --resume for the others.", file=stream)
    if is_interrupted or run.num_failed:
        raise typer.Exit(130 if is_interrupted else 1)


def _chosen(positional: str | None, option: str | None, noun: str, flag: str) -> str:
    """Return the path that is given as an argument or by its flag, with `~` expanded."""
    if (positional is None) == (option is None):
        problem = "is missing" if option is None else "is given twice"
        raise InvalidArgumentError(f"{noun} {problem}; say `aethermind run-batch IN OUT`, or use {flag}.")
    given = option or positional
    if not given:
        raise InvalidArgumentError(f"{flag} is empty; give it a path, or - for the standard stream.")
    return given if given == _STANDARD else str(env.expand_home(given))


def _described(path: str, direction: str) -> str:
    return f"Standard {direction}" if path == _STANDARD else path


def _read(source: str) -> bytes:
    if source != _STANDARD:
        return Path(source).read_bytes()
    return b"" if sys.stdin is None else sys.stdin.buffer.read()


def _key(line: BatchRequest | BatchResult) -> tuple[str | None, str | None]:
    from aethermind.server.batch import BatchRequest

    return (line.custom_id, None) if isinstance(line, BatchRequest) else line.key


@contextmanager
def _opened(source: str, target: str, resume: bool) -> Iterator[tuple[IO[bytes], set[tuple[str | None, str | None]]]]:
    """Yield the file of results, opened for appending, and the keys of the lines whose results it has.

    InvalidArgumentError if it has content, unless it is resumed.
    """
    if target == _STANDARD:
        yield sys.stdout.buffer, set()
        return
    path = Path(target)
    with writing(path, "OUT"):
        file = path.open("ab")
    with file:
        if not path.is_file():  # a pipe or a device
            yield file, set()
            return
        if source != _STANDARD and path.samefile(source):
            raise InvalidArgumentError(f"IN and OUT are the same file {target}; write the results to another one.")
        finished = set()
        if path.stat().st_size:
            if not resume:
                raise InvalidArgumentError(
                    f"OUT {target} has content. Continue it with --resume, delete it, or pass another path."
                )
            finished = _finished(path, file)
        yield file, finished


def _finished(path: Path, file: IO[bytes]) -> set[tuple[str | None, str | None]]:
    """Return the keys of the results in a file, and repair its last line, which a killed process may have cut off."""
    from aethermind.server.batch import BatchResult

    content = path.read_bytes()
    *lines, last = content.split(b"\n")
    keys = set()
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                keys.add(BatchResult.read(line).key)
        except (ValueError, AttributeError, TypeError):
            raise InvalidArgumentError(
                f"Line {number} of OUT {path} is no result of a batch. Pass another path, or delete the line."
            ) from None
    if last:
        try:
            keys.add(BatchResult.read(last).key)
            file.write(b"\n")
        except (ValueError, AttributeError, TypeError):
            file.truncate(len(content) - len(last))
    return keys


async def _answer_all(
    llm: LLM,
    name: str,
    template: ChosenTemplate | None,
    lines: Sequence[BatchRequest | BatchResult],
    run: _Run,
    *,
    max_in_flight: int,
) -> None:
    """Answer requests through the server's application, with the model under a name, and write all results.

    `max_in_flight` may exceed the engine's `max_num_seqs`, so that its scheduler always has requests to choose from.
    """
    from aethermind.engine.serving.async_engine import AsyncEngine
    from aethermind.server.app import create_app
    from aethermind.server.batch import BATCH_LIMITS, BatchRequest, answer_requests
    from aethermind.server.served_model import ServedModel

    for line in lines:
        if not isinstance(line, BatchRequest):
            run.write(line)
    async with AsyncEngine(llm.engine) as engine:
        model = ServedModel.of(name, llm, engine)
        if template is not None:
            model = model.with_chat_template(template)
        app = create_app([model], limits=BATCH_LIMITS)
        requests = [line for line in lines if isinstance(line, BatchRequest)]
        await answer_requests(app, requests, run.write, max_in_flight=min(max_in_flight, len(requests)))


class _Run:
    """Writes results and counts them, their tokens and the time. Mutable."""

    def __init__(self, file: IO[bytes], num_requests: int, *, num_skipped: int) -> None:
        self.num_requests = num_requests
        self.num_skipped = num_skipped
        self.num_done = self.num_failed = self.num_prompt_tokens = self.num_output_tokens = 0
        self.on_result: Callable[[], None] = lambda: None
        self._file = file
        self._start_s = time.perf_counter()
        self._end_s: float | None = None

    def write(self, result: BatchResult) -> None:
        """Write a result. It is in the file when this returns, so a process that is killed later does not lose it."""
        self._file.write(result.line())
        self._file.flush()
        num_prompt, num_output = result.num_tokens
        self.num_prompt_tokens += num_prompt
        self.num_output_tokens += num_output
        self.num_done += 1
        self.num_failed += result.error is not None
        self.on_result()

    def start(self) -> None:
        """Measure from now on, because the model is loaded."""
        self._start_s = time.perf_counter()

    def end(self) -> None:
        """Stop the time."""
        self._end_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start to the end, or until now."""
        return (time.perf_counter() if self._end_s is None else self._end_s) - self._start_s

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of finished requests per second."""
        return self.num_output_tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def summary(self) -> dict[str, Any]:
        """The numbers of the run for `--json`."""
        return {
            "num_requests": self.num_requests + self.num_skipped,
            "num_completed": self.num_done - self.num_failed,
            "num_failed": self.num_failed,
            "num_skipped": self.num_skipped,
            "num_unfinished": self.num_requests - self.num_done,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_output_tokens": self.num_output_tokens,
            "elapsed_s": self.elapsed_s,
            "output_tokens_per_s": self.output_tokens_per_s,
        }

    def describe(self) -> str:
        """The numbers of the run as one line."""
        parts = [f"{self.num_done - self.num_failed} answered", f"{self.num_failed} failed"]
        if self.num_skipped:
            parts.append(f"{self.num_skipped} finished before")
        if self.num_requests > self.num_done:
            parts.append(f"{self.num_requests - self.num_done} not finished")
        return (
            f"{self.num_requests + self.num_skipped} requests: {', '.join(parts)}; {self.num_prompt_tokens:,} prompt "
            f"and {self.num_output_tokens:,} output tokens in {self.elapsed_s:.1f} s "
            f"({self.output_tokens_per_s:,.0f} output tokens/s)"
        )


@contextmanager
def _progress_bar(run: _Run, *, is_shown: bool) -> Iterator[None]:
    """Start a run's time, and draw finished requests, output tokens per second and the remaining time on a terminal."""
    run.start()
    if not (is_shown and console.can_redraw(sys.stderr)):
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        MofNCompleteColumn(),
        TextColumn("requests"),
        BarColumn(),
        TextColumn("{task.fields[rate]:,.0f} output tokens/s, left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task("", total=run.num_requests, rate=0.0)
        run.on_result = lambda: bar.update(task, completed=run.num_done, rate=run.output_tokens_per_s)
        yield
