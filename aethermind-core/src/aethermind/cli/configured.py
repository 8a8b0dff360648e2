"""Commands whose options are settings: an option that is not given gets the value of a variable or of the file.

The modules that merge a file, environment variables and flags are imported only if there is a file, or a variable
other than those of `env.NAMES`.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from aethermind import env, log
from aethermind.cli import options
from aethermind.cli.flags import is_on_command_line, with_current_flags
from aethermind.cli.prompt_text import looks_like_model
from aethermind.cli.settings import SECTIONS, LogLevel
from aethermind.config.section import settings_of
from aethermind.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aethermind.config import Configuration, Setting, SettingValue

__all__ = ["ConfiguredCommand", "ServingCommand"]

_POSITIONAL = "positional_model"
"""The parameter of a model that is given as an argument instead of with `--model`."""


class ConfiguredCommand(TyperCommand):
    """A command whose options are settings. Adds `--config`, `--print-config` and `--log-level`.

    A command that takes a model and has no arguments of its own also takes the model as an argument.
    """

    log_level = "warning"
    """The default log level of the command."""

    def __init__(self, *args: Any, **names: Any) -> None:
        super().__init__(*args, **names)
        self._model = next((parameter for parameter in self.params if parameter.name == "model"), None)
        if any(parameter.param_type_name == "argument" for parameter in self.params):
            self._model = None
        if self._model is not None:
            several = getattr(self._model, "multiple", False)
            self.params.insert(
                0,
                TyperArgument(
                    param_decls=[_POSITIONAL],
                    type=str,
                    nargs=-1 if several else 1,
                    metavar="MODEL",
                    help="The same as --model.",
                ),
            )
        self.params += [
            TyperOption(
                param_decls=["--config", "config_file"],
                type=str,
                metavar="FILE",
                help="Take settings from this TOML, YAML or JSON file.",
            ),
            TyperOption(
                param_decls=["--print-config"],
                is_flag=True,
                default=False,
                help="Print every setting and where it comes from, and exit.",
            ),
            TyperOption(
                param_decls=["--log-level"],
                type=str,
                help=settings_of(LogLevel)["level"].help,
                show_default=f"AETHERMIND_LOG, or {self.log_level}",
            ),
        ]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True  # for the error below, which has a hint
        rest: list[str] = super().parse_args(ctx, with_current_flags(args, self.params))
        if self._model is not None and (positional := ctx.params.pop(_POSITIONAL)):
            if is_on_command_line(ctx, self._model.name):
                ctx.fail("A model is given with --model and one without it; keep one of them.")
            ctx.params[self._model.name] = list(positional) if isinstance(positional, tuple) else positional
            ctx.set_parameter_source(self._model.name, ctx.get_parameter_source(_POSITIONAL))
        if ctx.args and not ctx.resilient_parsing:
            is_text = any(
                parameter.param_type_name == "argument" and parameter.name != _POSITIONAL for parameter in self.params
            )
            hint = " Put a text of several words in quotes." if is_text else ""
            first = next((ctx.params.get(name) for name in ("prompt", "text") if ctx.params.get(name)), None)
            if is_text and first is not None and looks_like_model(first):
                words = shlex.join(["--model", first, " ".join(ctx.args)])
                hint = f" To name a model: {ctx.command_path} {words}"
            ctx.fail(f"Got unexpected extra arguments ({' '.join(ctx.args)}).{hint}")
        return rest

    def invoke(self, ctx: Any) -> Any:
        root = ctx.find_root()
        config_path = ctx.params.pop("config_file") or root.params.get("config_file")
        if ctx.params["log_level"] is None and root.params.get("log_level") is not None:
            ctx.params["log_level"] = root.params["log_level"]
            ctx.set_parameter_source("log_level", root.get_parameter_source("log_level"))
        if ctx.params["log_level"] is not None:
            options.checked_level(ctx.params["log_level"])
        prints_config = ctx.params.pop("print_config")
        has_variables = _check_variables()
        from aethermind.config.file import find_file

        file = find_file(config_path)
        if file or has_variables or prints_config or not log.is_level(env.log_level()):
            self._configure(ctx, file, prints_config)
        log.set_level(ctx.params.pop("log_level") or env.log_level(self.log_level))
        return super().invoke(ctx)

    def _configure(self, ctx: Any, file: Any, prints_config: bool) -> None:
        from aethermind.config import resolve

        settings = {setting.parameter: setting for section in SECTIONS for setting in section.settings.values()}
        flags = _settings_on_command_line(ctx, settings)
        configuration = resolve(SECTIONS, file=file, variables=os.environ, flags=flags)
        if prints_config:
            _print_configuration(configuration, as_json=bool(ctx.params.get("as_json")))
            raise typer.Exit()
        lists = {parameter.name for parameter in ctx.command.params if getattr(parameter, "multiple", False)}
        for name, setting in configuration.settings.items():
            value, origin = configuration.values[name]
            if origin != "default" and name not in flags and setting.parameter in ctx.params:
                ctx.params[setting.parameter] = _option_value(value, is_list=setting.parameter in lists)


class ServingCommand(ConfiguredCommand):
    """A command that runs until it is stopped and logs a line for each request."""

    log_level = "info"


def _option_value(value: Any, *, is_list: bool) -> Any:
    """Convert a setting's value to the type of its command-line option: a list if that may be given several times."""
    if isinstance(value, tuple):
        return list(value)
    return [value] if is_list and value is not None else value


def _check_variables() -> bool:
    """Whether a setting's variable is set, apart from `env.NAMES`. SettingsError for an unknown variable."""
    unknown = [name for name, value in os.environ.items() if name.startswith("AETHERMIND_") and value]
    unknown = [name for name in unknown if name not in env.NAMES]
    if not unknown:
        return False
    from aethermind.errors import did_you_mean
    from aethermind.plugins.discovery import plugin_names

    known = [name for section in SECTIONS for setting in section.settings.values() for name in setting.variables]
    owned = tuple(f"AETHERMIND_{name}_".upper().replace("-", "_") for name in plugin_names())
    for name in unknown:
        if name not in known and not name.startswith(owned):
            raise SettingsError(
                f"The environment variable {name} is unknown{did_you_mean(name, [*known, *env.NAMES])} "
                "Unset or correct it; `aethermind generate --print-config` shows what can be set."
            )
    return any(name in known for name in unknown)


def _settings_on_command_line(ctx: Any, settings: Mapping[str, Setting]) -> dict[str, SettingValue]:
    """Return the settings that are given as options on the command line, by full name."""
    from aethermind.config import SettingValue

    flags = {}
    for parameter in ctx.command.params:
        if parameter.name in settings and is_on_command_line(ctx, parameter.name):
            flags[settings[parameter.name].name] = SettingValue(ctx.params[parameter.name], f"flag {parameter.opts[0]}")
    return flags


def _print_configuration(configuration: Configuration, *, as_json: bool) -> None:
    from aethermind.cli import console

    if as_json:
        console.print_json(configuration.to_record())
    else:
        print(configuration.to_toml())
