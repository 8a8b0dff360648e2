"""Flags of the command line, derived from settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from aethermind import log
from aethermind.cli.settings import SECTIONS, ExecutionOptions, ModelOptions, OfflineEngineOptions, SamplingOptions
from aethermind.config.section import Setting, settings_of
from aethermind.errors import InvalidArgumentError

__all__ = [
    "completer_of",
    "flag_of",
    "is_on_command_line",
    "model_names",
    "with_current_flags",
    "with_flags",
    "with_settings",
]

_log = log.get_logger(__name__)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: give it an option for each setting among its parameters.

    A parameter annotated with a dataclass of settings is replaced by one option per field, and the command gets an
    instance of the dataclass. A parameter annotated with `Annotated[type, Setting]` becomes that setting's option; its
    default takes precedence over the setting's.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name in groups:
            parameters += map(_parameter, settings_of(groups[parameter.name]).values())
        else:
            parameters.append(_with_typer_annotation(parameter, hints[parameter.name]))

    def call_command(**given: Any) -> None:
        instances = {name: _group_instance(kind, given) for name, kind in groups.items()}
        command(**given, **instances)

    call_command.__name__, call_command.__doc__ = command.__name__, command.__doc__
    call_command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call_command


def _group_instance(kind: Any, given: dict[str, Any]) -> Any:
    """Construct a settings dataclass from options of the command line, which are removed from `given`."""
    settings = settings_of(kind)
    values = {key: given.pop(setting.parameter) for key, setting in settings.items()}
    try:
        return kind(**{key: _value(value) for key, value in values.items()})
    except InvalidArgumentError as error:
        key, should_be, words = str(error).partition(" should be ")
        if key not in settings:
            raise
        raise InvalidArgumentError(f"{flag_of(settings[key])}{should_be}{words}") from None


def _value(given: Any) -> Any:
    return tuple(given) or None if isinstance(given, list) else given


def _parameter(setting: Setting) -> Parameter:
    annotation = Annotated[_option_type(setting.type), _option(setting)]  # type: ignore[valid-type]
    return Parameter(setting.parameter, Parameter.KEYWORD_ONLY, default=setting.default, annotation=annotation)


def _with_typer_annotation(parameter: Parameter, hint: Any) -> Parameter:
    """Replace a parameter's annotation by one that typer understands."""
    declared = next((metadata for metadata in getattr(hint, "__metadata__", ()) if isinstance(metadata, Setting)), None)
    if declared is None:
        return parameter.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY)
    default = declared.default if parameter.default is Parameter.empty else parameter.default
    annotation = Annotated[_option_type(get_args(hint)[0]), _option(declared, default)]  # type: ignore[valid-type]
    return Parameter(parameter.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option_type(kind: Any) -> Any:
    """Return the type of a setting's option: a list if the setting has several values."""
    return list[str] | None if any(get_origin(part) is tuple for part in (kind, *get_args(kind))) else kind


def _option(setting: Setting, default: Any = ...) -> Any:
    """Return typer's option for a setting."""
    default = setting.default if default is ... else default
    shown = setting.unset if default is None and setting.unset not in ("", "none", "the command's") else ""
    if setting.variable is not None:
        shown = f"{setting.variable}, or {shown or default}"
    is_list = _option_type(setting.type) is not setting.type
    check = setting.check
    return typer.Option(
        *_spellings(setting, default),
        help=with_flags(f"{setting.help} May be given several times." if is_list else setting.help),
        metavar=setting.metavar,
        min=None if check is None else check.minimum,
        max=None if check is None else check.maximum,
        autocompletion=_COMPLETERS.get(setting.parameter)
        or (completer_of(*check.choices) if check and check.choices else None),
        show_default=with_flags(shown) or True,
    )


def _spellings(setting: Setting, default: Any) -> Sequence[str]:
    if setting.flags:
        return setting.flags
    long = flag_of(setting)
    is_switch = setting.type in (bool, bool | None)
    return (f"{long}/--no-{long[2:]}",) if is_switch and default is not False else (long,)


def flag_of(setting: Setting) -> str:
    """Return the long flag of a setting."""
    return setting.flags[0] if setting.flags else f"--{setting.parameter.replace('_', '-')}"


def is_on_command_line(ctx: typer.Context, name: str | None) -> bool:
    """Whether a parameter was given on the command line, and not by a file, a variable or the default."""
    source = None if name is None else ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def with_current_flags(args: Sequence[str], params: Sequence[Any]) -> list[str]:
    """Replace deprecated flags in the arguments of a command with these parameters by the current ones.

    A replaced flag is logged as a warning.
    """
    names = {param.name for param in params}
    settings = (setting for section in SECTIONS for setting in section.settings.values() if setting.parameter in names)
    renamed = {f"--{old.replace('_', '-')}": flag_of(setting) for setting in settings for old in setting.old_names}
    end = args.index("--") if "--" in args else len(args)
    found = []
    for word in args[:end]:
        flag, equals, value = word.partition("=")
        if flag in renamed:
            _log.warning("%s is deprecated; use %s", flag, renamed[flag])
        found.append(f"{renamed.get(flag, flag)}{equals}{value}")
    return [*found, *args[end:]]


def with_flags(message: str) -> str:
    """Replace Python arguments in a message by flags.

    `num_kv_blocks`, `dtype='float32'` and `as dtype` become `--num-kv-blocks`,
    `--dtype float32` and `as --dtype`.

    Single words, which may mean something else in prose, are replaced only after `as` or before an equals sign.
    """
    flags = _flags_by_argument()
    names = "|".join(sorted(flags, key=len, reverse=True))
    long_names = "|".join(name for name in flags if "_" in name)
    message = re.sub(rf"(?<![\w.'-])({names})='([\w.]+)'", lambda found: f"{flags[found[1]]} {found[2]}", message)
    message = re.sub(rf"(?<=\bas )({names})\b(?![\w=])", lambda found: flags[found[1]], message)
    return re.sub(rf"(?<![\w./'\"-])({long_names})(?![\w='\"/]|\.\w)", lambda found: flags[found[1]], message)


@cache
def _flags_by_argument() -> Mapping[str, str]:
    """Return the flags of options that set an argument of `LLM` or `SamplingParams`, by argument."""
    groups: tuple[Any, ...] = (ModelOptions, OfflineEngineOptions, ExecutionOptions, SamplingOptions)
    return {name: flag_of(setting) for group in groups for name, setting in settings_of(group).items()}


def completer_of(*values: str) -> Callable[[str], list[str]]:
    """Return the `autocompletion` function of an option that takes one of these values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """Installed and downloaded models; if none begins like that, the shell completes paths."""
    from aethermind.model.hub import cached_models
    from aethermind.runtime import Runtime

    downloaded = (model.name for model in cached_models())
    return completer_of(*Runtime.boot().models.names(), *downloaded)(incomplete)


def _device_names(incomplete: str) -> list[str]:
    """`auto` and the devices of installed packages."""
    from aethermind.runtime import Runtime

    return completer_of("auto", *(entry.name for entry in Runtime.boot().devices))(incomplete)


_COMPLETERS: Mapping[str, Callable[[str], list[str]]] = {
    "model": model_names,
    "device": _device_names,
    "dtype": completer_of("auto", "float32", "bfloat16", "float16"),
}
"""Completion of values by parameter, for settings whose values are not a fixed set."""
