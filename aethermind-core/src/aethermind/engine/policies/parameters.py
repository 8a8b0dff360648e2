"""Scheduling policies by name and parameters in one text: NAME, or NAME:PARAMETER=VALUE:PARAMETER=VALUE.

The text is the value of `--scheduling-policy`: `priority:aging_s=10:vip_share=0.25` is `PriorityWithAging(aging_s=10.0,
vip_share=0.25)`. `aethermind simulate` can thus compare several parameters of one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from aethermind.errors import InvalidArgumentError, did_you_mean

if TYPE_CHECKING:
    from aethermind.engine.policies.base import SchedulingPolicy
    from aethermind.plugins.registry import Registry

__all__ = ["create_policy", "policy_parameters"]


def create_policy(policies: Registry[Callable[..., SchedulingPolicy]], text: str) -> SchedulingPolicy:
    """Create the policy that `text` names, with its parameters.

    ConfigError for an unknown policy. InvalidArgumentError for an unknown or repeated parameter, and for a value that
    is not of the parameter's type or out of its range.
    """
    name, *assignments = text.split(":")
    create = policies.get(name)
    if not assignments:
        return create()
    known, values = policy_parameters(create), dict[str, Any]()
    for assignment in assignments:
        parameter, equals, value = assignment.partition("=")
        if parameter not in known:
            if not known:
                raise InvalidArgumentError(
                    f"The scheduling policy {name} has no parameters. Write {name} alone.", param="scheduling_policy"
                )
            raise InvalidArgumentError(
                f"The scheduling policy {name} has no parameter {parameter!r:.80}"
                f"{did_you_mean(parameter, known)} Write {name}:PARAMETER=VALUE; it has {', '.join(known)}.",
                param="scheduling_policy",
            )
        if parameter in values or not equals:
            problem = "is given twice; give it once" if parameter in values else f"needs a value: {parameter}=VALUE"
            raise InvalidArgumentError(
                f"{parameter} of the scheduling policy {name} {problem}.", param="scheduling_policy"
            )
        values[parameter] = _read(name, known[parameter], value)
    return create(**values)


def policy_parameters(create: Callable[..., SchedulingPolicy]) -> Mapping[str, Parameter]:
    """Return the named parameters of a policy's constructor, in their order."""
    parameters = signature(create, eval_str=True).parameters.values()
    return {
        each.name: each for each in parameters if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }


def _read(policy: str, parameter: Parameter, text: str) -> Any:
    """Parse the value of a parameter, in the type of its annotation or else of its default."""
    from pydantic import TypeAdapter, ValidationError

    annotation = type(parameter.default) if parameter.annotation is Parameter.empty else parameter.annotation
    try:
        return TypeAdapter(annotation).validate_python(text)
    except ValidationError as error:
        expected = error.errors(include_url=False)[0]["msg"].partition(",")[0].replace("Input ", "")
        raise InvalidArgumentError(
            f"{parameter.name} of the scheduling policy {policy} is {text!r:.80}: it {expected}.",
            param="scheduling_policy",
        ) from None
