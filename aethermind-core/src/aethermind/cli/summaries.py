"""Groups of commands whose help lists each of them with its whole summary."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["SummaryGroup"]


class SummaryGroup(TyperGroup):
    """A group that shows the first sentences of its commands uncut: they are wrapped where a line is too short."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in commands if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
