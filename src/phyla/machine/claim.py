"""Claiming: pick a ready member, decide, and start the trial."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from phyla.errors import ConfigurationError
from phyla.machine.commands import (
    Command,
    Insert,
    SetStrategyState,
    SetStudyState,
    TakeCheckpoint,
    Update,
)
from phyla.machine.evaluating.groups import replicate
from phyla.machine.finals.final import due_measurements, end_final, evaluate_finalists, running_measurements
from phyla.machine.jobs import lease, start_job
from phyla.machine.population import explore_after_join, is_at_import, joining
from phyla.machine.published_states import without_trial
from phyla.machine.quorum import Comparisons, as_of
from phyla.machine.requests import ClaimAnswer, Claimed, Ended, Idle
from phyla.machine.rules import TrainRules
from phyla.machine.view import View
from phyla.records import (
    JobKind,
    JobState,
    JsonObject,
    Member,
    MemberState,
    Scored,
    StudyState,
    TrialRecord,
    exact,
    order_to_stop_at,
    summarize_error,
)
from phyla.space import run_check
from phyla.strategies import Context, Decision, Measure, Start, Stop, Wait, decision_rng, ranked, trial_seed
from phyla.strategies.checks import check_returned
from phyla.strategies.estimate import by_estimate
from phyla.strategies.final import final_of
from phyla.strategies.fitness import Estimated

FINALISTS = 2**31
"""Added to the member where measurements of a final draw their seeds, which no decision draws."""

DONOR_GONE = "the donor's checkpoint is gone"
"""Why a member continues although its strategy chose a donor."""

_PLAIN = (str, float, int, type(None))
Step = tuple[ClaimAnswer | None, list[Command]]
"""An answer and commands; without an answer the caller applies the commands and repeats the request."""


def claim(
    view: View,
    rules: TrainRules,
    worker: str,
    gone: frozenset[str] = frozenset(),
    *,
    fills: bool = False,
    comparisons: Comparisons | None = None,
) -> Step:
    """Give a worker its next trial; if it `fills` a batch, a final may measure more than is due.

    `comparisons` is shared by all claims of a transaction.

    Returns:
        The answer and its commands. Without an answer: apply the commands and repeat the request.
    """
    study = view.study()
    if study.state is not StudyState.RUNNING:
        return Ended(state=study.state, message=study.message), []
    asked = _Claim(view, rules, worker, gone, fills)
    # A study with a message has trained: it keeps running until its final.
    reached = study.message or _completion_reason(view, rules)
    if reached is not None:
        return asked.conclude(SetStudyState(StudyState.COMPLETED, reached))
    pending = view.next_pending()
    if pending is not None:
        return asked.retry(pending)
    population = [member for member in view.members() if not member.retired]
    wanted = MemberState.READY  # Looking it up costs six times what comparing does.
    ready = [member for member in population if member.state is wanted]
    slot, skipped, beyond = slot_of(worker), False, math.inf
    # They are ordered by index. Of equal progress, the worker's own come first.
    ready.sort(key=lambda member: member.slot != slot)
    ready.sort(key=attrgetter("progress"))
    comparisons = comparisons or Comparisons()
    for candidate in ready:
        if candidate.measures_left == 0 and _line(candidate, rules) >= beyond:
            continue
        member = view.locked_ready(candidate)
        if member is None:
            # Another worker is deciding about it, or has.
            skipped = True
            continue
        compared = comparisons.peers(member, population, rules)
        answer, commands = asked.decide(member, compared)
        if answer is not None or commands:
            return answer, commands
        if compared is None:
            # Members with more progress need at least as many peers there.
            beyond = _line(member, rules)
    if skipped:
        return Idle(seconds=None, why="other workers are deciding about the ready members"), []
    return _nothing_ready(view, rules, population) or asked.conclude(_end_study(view))


def _completion_reason(view: View, rules: TrainRules) -> str | None:
    """Return why the study is complete before its members; None if it is not."""
    reasons = (
        check_returned(rule, "ends", rule.ends(view.members(), rules.objective, view), str, type(None))
        for rule in rules.stopping
    )
    return next((why for why in reasons if why is not None), None) or _goal(view, rules)


def _goal(view: View, rules: TrainRules) -> str | None:
    """Return the message that the objective's `stop_at` is reached; None if it is not."""
    wanted = order_to_stop_at(rules.objective)
    if wanted is None:
        return None
    for member in view.members():
        for state in (*member.states, *([] if member.head is None else [member.head])):
            if state.order is not None and state.order >= wanted:
                at: Any = getattr(rules.objective, "stop_at", None)
                score = f"{rules.objective.name} is {state.fitness:g} in trial {state.trial}"
                return f"{score}: stop_at={exact(at)} is reached"
    return None


def _line(member: Member, rules: TrainRules) -> float:
    """Return a member's published progress; a member without published states never waits for a quorum."""
    own = member.published
    return -1.0 if own is None else rules.strategy.line(own.progress)


def slot_of(worker: str) -> str:
    """Return the part of a worker's name that its successor after a restart shares."""
    return worker.rsplit(":", 2)[0]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A worker's request with the rules of the decision; checkpoints in `gone` cannot be donors."""

    view: View
    rules: TrainRules
    worker: str
    gone: frozenset[str]
    fills: bool

    def decide(self, member: Member, compared: Sequence[Member] | None) -> Step:
        """Decide about one ready member; without answer and commands it waits."""
        rules, study, head = self.rules, self.view.study(), member.head
        lost = head is not None and head.checkpoint in self.gone
        if lost:
            # A damaged checkpoint cannot be measured.
            member = replace(member, measures_left=0)
        if member.measures_left > 0 and head is not None:
            return self._measure(member, head, {"decision": "measure"})
        fitness = rules.suite_fitness
        if fitness is not None and sum(not state.judged for state in member.states) > fitness.max_lag:
            return None, []
        if rules.strategy.finished(member):
            return None, [Update(replace(member, state=MemberState.DONE))]
        if compared is None:
            return None, []
        seen = member
        if isinstance(rules.strategy.fitness, Estimated):
            seen, *compared = by_estimate([member, *compared], self.view.scores(), member.generation)
        rng = decision_rng(study.seed, member.index, member.generation, member.replacements)
        seed = trial_seed(rng)
        context = Context(
            space=rules.space,
            objective=rules.objective,
            rng=rng,
            now=self.view.now(),
            history=self.view,
            state=study.strategy_state,
        )
        if head is not None and lost:
            decision = self._recover(member, head, compared, context)
        elif is_at_import(member):
            decision = _from_import(member, rules, compared, context)
        else:
            decision = rules.strategy.decide(seen, compared, context)
            if joining(member):
                decision = explore_after_join(decision, member, rules, context)
        return self._apply(member, decision, seed)

    def _apply(self, member: Member, decision: Decision, seed: int) -> Step:
        check_returned(self.rules.strategy, "decide", decision, Start, Wait, Measure, Stop)
        if isinstance(decision, Wait):
            return None, []
        for name in ("reason", "state"):
            self._check_json(name, getattr(decision, name))
        state: list[Command] = [] if decision.state is None else [SetStrategyState(decision.state)]
        if isinstance(decision, Start):
            answer, commands = self._start(member, decision, seed)
            return answer, state + commands
        if isinstance(decision, Measure):
            again = self.rules.suite_fitness is not None
            subject = (decision.subject if again else None) or member.head
            if subject is None:
                raise ValueError(
                    f"{self.rules.strategy!r} measures member {member.index}, which has no checkpoint yet"
                )
            if again:
                return None, [*state, *self._evaluate_again(member, subject, decision.times)]
            measured = replace(member, measures_left=decision.times)
            answer, commands = self._measure(measured, subject, decision.reason)
            return answer, state + commands
        stopped: list[Command] = [*state, Update(replace(member, state=MemberState.DONE))]
        if not decision.study:
            return None, stopped
        why = str(decision.reason.get("why", "the strategy ended the study"))
        ended = StudyState.COMPLETED if final_of(self.view.study().config) is None else StudyState.RUNNING
        return None, [*stopped, SetStudyState(ended, why)]

    def _start(self, member: Member, start: Start, seed: int) -> Step:
        head = member.head
        if start.weights is not None and start.weights.checkpoint in self.gone and head is not None:
            # The donor's files were deleted between decision and commit: the member continues its own state.
            start = replace(
                start,
                weights=head,
                params=head.params,
                params_from=head.trial,
                reason={"decision": "continue", "compared": {"why": DONOR_GONE}},
                exploited=False,
            )
        self._check_start(start, head)
        weights, reason = start.weights, start.reason
        if member.stops and member.broken_trial is not None:
            stopped = self.view.trial(member.broken_trial).stop_reason
            reason = reason if stopped is None else {**reason, "stopped": stopped}
        return self._running(
            member,
            weights,
            self._check_params(start, head),
            steps=self._steps(start),
            jump_from=head.trial if head and (weights is None or weights.trial != head.trial) else None,
            params_from=start.params_from,
            replaces=member.broken_trial,
            seed=seed if start.seed is None else start.seed,
            exploited=start.exploited,
            reason=reason,
        )

    def _check_start(self, start: Start, head: Scored | None) -> None:
        """Reject hyperparameters of a trial that does not exist."""
        weights, named = start.weights, start.params_from
        known = (None, head and head.trial, weights and weights.trial)
        if named not in known and not isinstance(self.view.job(named or 0), TrialRecord):
            raise ConfigurationError(
                f"{type(self.rules.strategy).__name__} decides Start(...) with params_from={named}: there is no "
                f"trial {named}; give the id of one, or None"
            )

    def _steps(self, start: Start) -> int:
        """Return how many steps to train: at least one, and otherwise none beyond the end of training."""
        most, age = self.rules.strategy.member_steps, start.weights.age if start.weights else 0
        return start.steps if most is None else min(start.steps, max(1, most - age))

    def _check_params(self, start: Start, head: Scored | None) -> JsonObject:
        """Return the hyperparameters of the trial; reject values outside the space."""
        for state in (head, start.weights):
            # It may be outside of a space that was changed since.
            if state is not None and start.params == state.params:
                return state.params
        strategy = self.rules.strategy
        rule = getattr(strategy, "explore", None)
        named = f"{type(strategy).__name__}({'' if rule is None else f'explore={rule!r}'})"
        proposed: Any = start.params
        return run_check(self.rules.space.validate, proposed, f"{named} proposes what the space does not allow")

    def _check_json(self, name: str, value: object) -> None:
        """Reject values of a decision that cannot be stored, and name their place."""
        if isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, _PLAIN):
                    raise self._not_json(f"key in {name}", key)
                if not isinstance(item, _PLAIN):
                    self._check_json(f"{name}[{key!r}]", item)
        elif isinstance(value, list | tuple) and name != "reason":
            for place, item in enumerate(value):
                self._check_json(f"{name}[{place}]", item)
        elif not isinstance(value, _PLAIN) or name == "reason":
            raise self._not_json(name, value)

    def _not_json(self, name: str, value: object) -> ConfigurationError:
        strategy = type(self.rules.strategy).__name__
        return ConfigurationError(
            f"the {name} of a decision of {strategy} is {reprlib.repr(value)}, which cannot be stored; give text, "
            "plain numbers (float(x) for one of NumPy), lists and dicts; a reason is a dict"
        )

    def _measure(self, member: Member, head: Scored, reason: JsonObject) -> Step:
        study = self.view.study()
        rng = decision_rng(study.seed, member.index, member.generation, 1000 + head.measurements)
        return self._running(
            member,
            head,
            head.params,
            steps=0,
            kind=JobKind.MEASURE,
            params_from=head.trial,
            seed=trial_seed(rng),
            reason={"decision": "measure", **reason},
        )

    def _measure_finalist(self, subject: Scored) -> Step:
        number = sum(trial.parent == subject.trial for trial in self.view.final_trials())
        generation = self.view.trial(subject.trial).generation
        rng = decision_rng(self.view.study().seed, FINALISTS + subject.member, generation, number)
        trial = self._trial(
            self.view.member(subject.member),
            subject,
            subject.params,
            kind=JobKind.FINAL,
            params_from=subject.trial,
            seed=trial_seed(rng),
            reason={"decision": "final"},
        )
        attempt = lease(trial, self.rules.lease_s)
        taken = TakeCheckpoint(subject.checkpoint)
        return Claimed(trial=trial, expires_at=attempt.expires_at), [taken, Insert(trial), Insert(attempt)]

    def _running(
        self, member: Member, weights: Scored | None, params: JsonObject, *, steps: int, **facts: Any
    ) -> Step:
        trial = self._trial(member, weights, params, steps=steps, **facts)
        attempt = lease(trial, self.rules.lease_s)
        busy = replace(
            member,
            state=MemberState.RUNNING,
            current_trial=trial.id,
            broken_trial=None,
            slot=slot_of(self.worker),
        )
        taking = [] if weights is None else [TakeCheckpoint(weights.checkpoint)]
        answer = Claimed(trial=trial, expires_at=attempt.expires_at)
        return answer, [*taking, Insert(trial), Insert(attempt), Update(busy)]

    def _trial(
        self, member: Member, weights: Scored | None, params: JsonObject, *, steps: int = 0, **facts: Any
    ) -> TrialRecord:
        now, start_step = self.view.now(), weights.step if weights else 0
        chosen: Any = params
        return TrialRecord(
            id=self.view.new_job_id(),
            study=member.study,
            member=member.index,
            generation=member.generation,
            state=JobState.RUNNING,
            parent=weights.trial if weights else None,
            parent_checkpoint=weights.checkpoint if weights else None,
            parent_index=weights.index if weights else 0,
            # Parameters that were added to the space since get their defaults.
            params=self.rules.space.with_defaults(chosen),
            start_step=start_step,
            end_step=start_step + steps,
            age=weights.age if weights else 0,
            token=1,
            worker=self.worker,
            created_at=now,
            started_at=now,
            **facts,
        )

    def retry(self, trial: TrialRecord) -> Step:
        """Hand out a trial that is queued for a retry."""
        running = start_job(trial, self.worker, self.view.now())
        attempt = lease(running, self.rules.lease_s)
        answer = Claimed(trial=running, expires_at=attempt.expires_at)
        commands: list[Command] = [Update(running), Insert(attempt)]
        if trial.kind is not JobKind.FINAL:
            commands.append(Update(replace(self.view.locked_member(trial.member), slot=slot_of(self.worker))))
        return answer, commands

    def conclude(self, end: SetStudyState) -> Step:
        """End the study, whose training has ended; before that the final measures, if there is one."""
        rules, view = self.rules, self.view
        final = final_of(view.study().config)
        if final is None or end.state is not StudyState.COMPLETED:
            return None, [end]
        pending = view.next_pending()
        if pending is not None:
            return self.retry(pending)
        if any(member.state is MemberState.RUNNING for member in view.members()):
            return Idle(seconds=None, why="the final begins once what is running has ended"), []
        due = due_measurements(view, final)
        if self.fills and not due and rules.suite_fitness is None:
            due = running_measurements(view)
        if due is None:
            return None, [end_final(view, rules, final, end)]
        if not due:
            return Idle(seconds=None, why="the final waits for what is running"), []
        if rules.suite_fitness is not None:
            return None, evaluate_finalists(view, rules, due)
        return self._measure_finalist(due[0])

    def _evaluate_again(self, member: Member, subject: Scored, times: int) -> list[Command]:
        """Run the suite on a checkpoint again; the member waits for that."""
        seen = self.view.find_seen(subject.checkpoint, subject.index)
        if seen is None or not seen.usable:
            # A state that cannot be confirmed is no donor; the member decides again without it.
            owner = member if subject.member == member.index else self.view.locked_member(subject.member)
            changed = without_trial(owner, subject.trial)
            return [] if changed == owner else [Update(changed)]
        return replicate(self.view, self.rules, subject, times)

    def _recover(self, member: Member, head: Scored, population: Sequence[Member], context: Context) -> Decision:
        """Give a member whose checkpoint is lost the best remaining state."""
        strategy = self.rules.strategy
        row = self.view.checkpoint(head.checkpoint)
        damaged = row is not None and row.error is not None
        reason: JsonObject = {"decision": "recover", "damaged" if damaged else "lost": head.checkpoint}
        # It may have no state left, and must not see peers beyond its own progress.
        line = strategy.line(member.progress)
        known = as_of([peer for peer in self.view.members() if not peer.retired], line, strategy)
        bare = replace(member, head=None, states=())
        for donor in ranked(known):
            then = replace(bare, progress=max(member.progress, donor.age))
            if not donor.can_donate or donor.checkpoint in self.gone or strategy.finished(then):
                continue
            decision = strategy.decide(then, population, context)
            if not isinstance(decision, Start):
                return decision
            return replace(
                decision,
                weights=donor,
                params=donor.params,
                params_from=donor.trial,
                reason={**reason, "donor": {"member": donor.member, "trial": donor.trial, "step": donor.step}},
                exploited=True,
            )
        decision = strategy.decide(bare, population, context)
        return replace(decision, reason=reason) if isinstance(decision, Start) else decision


def _from_import(member: Member, rules: TrainRules, population: Sequence[Member], context: Context) -> Decision:
    """Start a member with fresh hyperparameters of the strategy, but from its import."""
    head = member.head
    assert head is not None
    decision = rules.strategy.decide(replace(member, head=None), population, context)
    if not isinstance(decision, Start) or decision.weights is not None:
        return decision
    params = decision.params
    if head.params:
        known: Any = head.params
        chosen: Any = decision.params
        params = rules.space.complete(known, chosen, context.rng)
    return replace(decision, weights=head, params=params, reason={**decision.reason, "imported": head.trial})


def _end_study(view: View) -> SetStudyState:
    """Return the final state of a study whose members are all done, with the members that were given up."""
    members = [member for member in view.members() if not member.retired]
    broken = [member for member in members if member.given_up]
    if not broken:
        return SetStudyState(StudyState.COMPLETED)
    last = max(member.broken_trial or 0 for member in broken)
    indices = ", ".join(str(member.index) for member in broken[:10]) + (", ..." if len(broken) > 10 else "")
    error = summarize_error(view.trial(last).error)
    why = f"{'' if len(broken) == 1 else 's'} {indices}: trials kept failing; the last, {last}, with: {error}"
    if len(broken) < len(members):
        return SetStudyState(StudyState.COMPLETED, f"given up member{why}")
    message = (
        f"every member was given up, member{why}. Completed trials are kept; the training of failed ones "
        "is lost. Fix the cause, then resume the study."
    )
    return SetStudyState(StudyState.FAILED, message)


def _nothing_ready(view: View, rules: TrainRules, population: Sequence[Member]) -> Step | None:
    """Return what follows while no member is ready; None when all are done."""
    if any(member.state is MemberState.RUNNING for member in population):
        return Idle(seconds=None, why="every member is training, or waits for others"), []
    if rules.suites and view.open_groups():
        return Idle(seconds=None, why="training waits for evaluations"), []
    if [member for member in view.members() if not member.retired] != population:
        return Idle(seconds=None, why="other workers changed the population just now"), []
    if any(member.state is not MemberState.DONE for member in population):
        message = (
            "every member waits for another and nothing is running, so the study cannot continue; this is a bug "
            "in the strategy: a member may only wait for results of running trials"
        )
        return None, [SetStudyState(StudyState.FAILED, message)]
    return None
