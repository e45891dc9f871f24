"""The rules that a study goes by now: its settings may change while processes work for it."""

from dataclasses import dataclass, replace
from typing import final

from phyla.controller.configuration import differences, taken_over
from phyla.machine import Rules
from phyla.records import JsonObject


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What this process knows of a study's settings.

    Attributes:
        made: the rules that it could make last.
        config: the configuration that these were made from; None until the stored one was seen for the first time.
        seen: the stored configuration, as it was seen last.
        outdated: why the rules cannot be made from `seen`, and what to do; None if they are.
    """

    made: Rules
    config: JsonObject | None = None
    seen: JsonObject | None = None
    outdated: str | None = None

    @property
    def rules(self) -> Rules:
        """What decisions go by; with outdated ones nothing is decided, and work is only handed in."""
        return self.made if self.outdated is None else replace(self.made, stopping=())

    def knows(self, stored: JsonObject) -> bool:
        """Return whether a stored configuration is the one that was seen last; mostly it is the same object."""
        return stored is self.seen or stored == self.seen

    def follow(self, stored: JsonObject) -> "Current":
        """Return what there is to know once a stored configuration was seen.

        Args:
            stored: the configuration, as a transaction read it.
        """
        if self.config is None:
            return Current(made=self.made, config=stored, seen=stored)
        changed = differences(self.config, stored)
        if not changed:
            return Current(made=self.made, config=self.config, seen=stored)
        try:
            made = taken_over(self.made, stored)
        except Exception as error:  # noqa: BLE001  # a stored configuration may be anything
            why = (
                f"the settings of the study were changed ({', '.join(changed)}), and this process cannot take "
                f"them over: {type(error).__name__}: {error}. It has handed in its work and takes no more; start "
                "it again with the changed study file"
            )
            return Current(made=self.made, config=self.config, seen=stored, outdated=why)
        return Current(made=made, config=stored, seen=stored)
