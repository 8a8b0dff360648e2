"""Tools of MCP servers (Model Context Protocol) for a chat, by the official client, the package `mcp`.

A server is a command, which speaks on its standard input and output, or a URL (streamable HTTP). The client is
asynchronous, so its event loop runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from aethermind.errors import InvalidArgumentError, SettingsError, describe_exception
from aethermind.first_party import pip_install_command

if TYPE_CHECKING:
    import mcp

__all__ = ["McpTools"]

_TIMEOUT_S = 60.0


class _Tool(NamedTuple):
    client: mcp.Client
    name: str
    function: dict[str, Any]
    """The tool in the format of the chat completions API."""


class McpTools:
    """The tools of some servers, which are connected while the context is open."""

    def __init__(self, servers: Sequence[str]) -> None:
        """`servers` are commands, or URLs. SettingsError without the package `mcp`."""
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise SettingsError(
                f"`--mcp` needs the package mcp. Run `{pip_install_command('aethermind-core[mcp]')}`."
            ) from None
        self._servers = servers
        self._tools: dict[str, _Tool] = {}
        self._opened: Future[None] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._run()), name="aethermind-mcp", daemon=True)

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools in the format of the chat completions API."""
        return [tool.function for tool in self._tools.values()]

    def __enter__(self) -> Self:
        """Connect; InvalidArgumentError for a server that cannot be reached or started."""
        self._thread.start()
        self._opened.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._is_done.set)
        self._thread.join()

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool; returns its result, or its error, as text for the model."""
        if (tool := self._tools.get(name)) is None:
            return f"Error: there is no tool {name}; there are {', '.join(self._tools)}."
        calling = tool.client.call_tool(tool.name, dict(arguments), _TIMEOUT_S)
        try:
            result = asyncio.run_coroutine_threadsafe(calling, self._loop).result()
        except Exception as error:  # the server's, or the connection's, as a result for the model
            return f"Error: {describe_exception(error)}"
        text = "\n".join(getattr(block, "text", f"[{block.type}]") for block in result.content)
        return f"Error: {text}" if result.is_error else text

    async def _run(self) -> None:
        """Connect, and keep the connections until `_is_done`: a connection is closed by the task that opened it."""
        self._loop, self._is_done = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as stack:
            for server in self._servers:
                try:
                    await self._connect(server, stack)
                except Exception as error:
                    reason = describe_exception(_cause(error))
                    self._opened.set_exception(
                        InvalidArgumentError(f"The MCP server {server!r:.100} cannot be used: {reason} Correct --mcp.")
                    )
                    return
            self._opened.set_result(None)
            await self._is_done.wait()

    async def _connect(self, server: str, stack: AsyncExitStack) -> None:
        import mcp

        target: Any = server
        if not server.startswith(("http://", "https://")):
            command, *arguments = shlex.split(server)
            target = mcp.StdioServerParameters(command=command, args=arguments)
        client = await stack.enter_async_context(mcp.Client(target, read_timeout_seconds=_TIMEOUT_S))
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                self._add(client, tool)
            if (cursor := page.next_cursor) is None:
                return

    def _add(self, client: mcp.Client, tool: mcp.Tool) -> None:
        """Add a tool by its name; a name that another server has gets a number."""
        name = tool.name if tool.name not in self._tools else f"{tool.name}_{len(self._tools)}"
        function = {"name": name, "description": tool.description or "", "parameters": tool.input_schema}
        self._tools[name] = _Tool(client, tool.name, {"type": "function", "function": function})


def _cause(error: BaseException) -> BaseException:
    """The first error within groups of errors, which the client's tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
