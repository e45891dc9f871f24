"""Checks of a strategy's settings."""

from typing import Literal

from phyla.errors import ConfigurationError

MOST_MEMBERS = 1_000_000
MOST_SECONDS = 1_000_000_000
MOST_STEPS = 2**53
"""Up to here every integer is a float as well, in JSON and in other languages."""


def check_integer(strategy: str, name: str, value: object, least: int) -> None:
    """Refuse what is no integer, too small, or larger than any study could use.

    Raises:
        ConfigurationError: names the strategy, the setting and the value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{strategy}({name}={value!r}): must be an integer of at least {least}")
    most = MOST_MEMBERS if name in ("population_size", "members") else MOST_STEPS
    if value > most:
        raise ConfigurationError(f"{strategy}({name}={value!r}): must be at most {most:,}")


def check_boolean(strategy: str, name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ConfigurationError: names the strategy, the setting and the value.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{strategy}({name}={value!r}): must be True or False")


def check_quorum(strategy: str, value: object) -> None:
    """Refuse a quorum that is not a share of the population.

    Raises:
        ConfigurationError: names the strategy and the value.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigurationError(
            f"{strategy}(quorum={value!r}): must be a share of the population from 0 (nobody waits) to 1 "
            "(everybody waits for the slowest)"
        )


def check_steps(strategy: str, steps_per_trial: object, total_steps: object) -> None:
    """Refuse trials longer than the whole training of a member, and lengths that are none.

    Raises:
        ConfigurationError: names the strategy, the setting and the value.
    """
    check_integer(strategy, "total_steps", total_steps, 1)
    if steps_per_trial is None:
        return
    check_integer(strategy, "steps_per_trial", steps_per_trial, 1)
    assert isinstance(steps_per_trial, int)
    assert isinstance(total_steps, int)
    if steps_per_trial > total_steps:
        raise ConfigurationError(
            f"{strategy}(steps_per_trial={steps_per_trial}, total_steps={total_steps}): a trial may not be "
            "longer than the whole training of a member; lower steps_per_trial or raise total_steps"
        )


def check_rule(plugin: str, name: str, rule: object, method: Literal["choose", "propose"]) -> None:
    """Refuse what is no exploit rule, or no explore rule.

    Raises:
        ConfigurationError: names the plug-in, the setting, the value, and what to give.
    """
    if not callable(getattr(rule, method, None)):
        example = "Truncation()" if method == "choose" else "Perturb() or ExploreWith(function)"
        raise ConfigurationError(
            f"{plugin}({name}={rule!r}): this is no rule, it has no {method}; give one, such as {example}"
        )
