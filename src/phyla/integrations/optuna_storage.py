"""What Optuna sees for one suggestion: an Optuna storage that does not copy every trial."""

from collections.abc import Container, Sequence
from copy import deepcopy as copied
from typing import Any, final

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState


@final
class Shown(BaseStorage):
    """One study in memory, for one suggestion; Optuna's own storage in memory copies deeply what it is given.

    Ids of trials are their numbers. Used by one thread.

    Args:
        trials: what the sampler is shown; they become this storage's own.
    """

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        self._trials = list(trials)
        for number, trial in enumerate(self._trials):
            trial.number = trial._trial_id = number
        self._directions: list[StudyDirection] = []
        self._attributes: dict[str, Any] = {}

    # Its only study

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """Say what is better."""
        self._directions = list(directions)
        return 0

    def delete_study(self, study_id: int) -> None:
        """Forget everything."""
        self._trials.clear()

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the id of the only study."""
        return 0

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return a name."""
        return "shown"

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return what is better."""
        return self._directions

    def get_all_studies(self) -> list[Any]:
        """Return nothing; there are no other studies to choose from."""
        return []

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Note nothing; there is no user."""

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return nothing; there is no user."""
        return {}

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Note something of a sampler."""
        self._attributes[key] = value

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return what samplers noted."""
        return dict(self._attributes)

    # Trials

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Add a trial that runs, or the one that is given."""
        number = len(self._trials)
        trial = template_trial or FrozenTrial(
            number=number,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=None,
            datetime_complete=None,
            params={},
            distributions={},
            user_attrs={},
            system_attrs={},
            intermediate_values={},
            trial_id=number,
        )
        trial.number = trial._trial_id = number
        self._trials.append(trial)
        return number

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Give a trial a value of a parameter."""
        trial = self._trials[trial_id]
        trial.params[param_name] = distribution.to_external_repr(param_value_internal)
        trial.distributions[param_name] = distribution

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """End a trial."""
        trial = self._trials[trial_id]
        self.check_trial_is_updatable(trial_id, trial.state)
        trial.state = state
        if values is not None:
            trial.values = list(values)
        return True

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Note a report."""
        self._trials[trial_id].intermediate_values[step] = intermediate_value

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Note something of the user's."""
        self._trials[trial_id].user_attrs[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Note something of a sampler."""
        self._trials[trial_id].system_attrs[key] = value

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial, not copied."""
        return self._trials[trial_id]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials by number."""
        if states == (TrialState.WAITING,):
            # Asked before each suggestion; there never are any.
            return []
        found = [trial for trial in self._trials if states is None or trial.state in states]
        return copied(found) if deepcopy else found
