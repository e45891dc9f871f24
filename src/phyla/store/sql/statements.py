"""Every statement, built with SQLAlchemy Core and compiled once per open store.

They run on the driver's cursor with named parameters. A cached execution through SQLAlchemy costs about
20 us, the driver's own 2 to 5 us, and a claim with its completion is some twenty statements.

Parameters of conditions start with `k_`; parameters of values are named like their columns.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVarTuple, final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from phyla.store.sql.evaluation_statements import EvalStatements
from phyla.store.sql.rows import columns
from phyla.store.sql.tables import (
    DAMAGED,
    DELETING,
    ENDED,
    LIVE,
    PENDING,
    RUNNING,
    SCORED,
    UNFINISHED,
    attempts,
    checkpoints,
    marks,
    members,
    reports,
    store_identity,
    studies,
    trial_ids,
    trials,
)

_Columns = TypeVarTuple("_Columns")

STUDY = sa.bindparam("k_study", type_=sa.BigInteger)
MEMBER = sa.bindparam("k_member", type_=sa.Integer)
TRIAL = sa.bindparam("k_trial", type_=sa.BigInteger)
TOKEN = sa.bindparam("k_token", type_=sa.Integer)
NAME = sa.bindparam("k_name", type_=sa.Text)
WORKER = sa.bindparam("k_worker", type_=sa.Text)
ORDER = sa.bindparam("k_order", type_=sa.Double)
GENERATION = sa.bindparam("k_generation", type_=sa.Integer)
STEP = sa.bindparam("k_step", type_=sa.BigInteger)
NOW = sa.bindparam("k_now", type_=sa.Double)
EXPIRES_AFTER = sa.bindparam("k_expires_after", type_=sa.Double)
LIMIT = sa.bindparam("k_limit", type_=sa.Integer)
OFFSET = sa.bindparam("k_offset", type_=sa.Integer)
AFTER = sa.bindparam("k_after", type_=sa.BigInteger)

ZERO: sa.ColumnElement[int] = sa.literal_column("0")
ONE: sa.ColumnElement[int] = sa.literal_column("1")


@final
class Statements:
    """SQL texts for one database.

    Args:
        dialect: what they are compiled for.
        locks: whether rows are locked where that is promised; False for those who only look.
    """

    def __init__(self, dialect: sa.Dialect, *, locks: bool = True) -> None:
        self._dialect = dialect
        self._locks = locks
        self._member_updates: dict[tuple[str, ...], str] = {}
        self._trial_updates: dict[tuple[str, ...], str] = {}
        self._identity()
        self._studies()
        self._members()
        self._trials()
        self._attempts()
        self._checkpoints()
        self._reports()
        self._marks()

    @cached_property
    def evaluation(self) -> EvalStatements:
        """The statements about evaluation, which many never need."""
        return EvalStatements(self._dialect, locks=self._locks)

    def _compile(self, statement: sa.ClauseElement, values: Sequence[str] | None = None) -> str:
        return str(statement.compile(dialect=self._dialect, column_keys=values))

    def _locked(
        self,
        select: "sa.Select[*_Columns]",
        *,
        of: sa.Table | None = None,
        skip: bool = False,
        key_share: bool = False,
    ) -> "sa.Select[*_Columns]":
        if not self._locks:
            return select
        return select.with_for_update(of=of, skip_locked=skip, key_share=key_share)

    def _insert(self, table: sa.Table) -> str:
        # `inline` keeps SQLAlchemy from asking for the new key: every key is given.
        return self._compile(table.insert().inline(), [column.name for column in table.columns])

    def _identity(self) -> None:
        i = store_identity.c
        self.identity = self._compile(sa.select(i.id, i.place, i.copied_from).where(i.slot == ONE))
        insert = sqlite.insert if self._dialect.name == "sqlite" else postgresql.insert
        self.insert_identity = self._compile(
            insert(store_identity).on_conflict_do_nothing(index_elements=["slot"]),
            ["slot", "id", "place", "copied_from"],
        )
        # Of several processes that find a copy, one gives it an id.
        same = sa.and_(i.slot == ONE, i.id == NAME)
        self.replace_identity = self._compile(store_identity.update().where(same), ["id", "place", "copied_from"])

    def _studies(self) -> None:
        s = studies.c
        self.study = self._compile(sa.select(studies).where(s.id == STUDY))
        mine = sa.select(studies).where(s.id == STUDY)
        clock = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
        self.clock = self._compile(sa.select(clock))
        # The clock is read after the lock was waited for, hence the common table expression.
        locked = mine.with_for_update(key_share=True).cte("locked")
        self.locked_study_and_clock = self._compile(sa.select(locked, clock))
        self.study_and_clock = self._compile(sa.select(studies, clock).where(s.id == STUDY))
        self.study_by_name = self._compile(sa.select(studies).where(s.name == NAME))
        self.all_studies = self._compile(sa.select(studies).order_by(s.id))
        insert = sqlite.insert if self._dialect.name == "sqlite" else postgresql.insert
        self.insert_study = self._compile(
            insert(studies).on_conflict_do_nothing(index_elements=["name"]).returning(s.id),
            ["name", "state", "config", "seed", "population_size", "created_at"],
        )
        self.set_study_state = self._compile(studies.update().where(s.id == STUDY), ["state", "message"])
        self.resume_study = self._compile(
            studies.update().where(s.id == STUDY), ["state", "message", "resumed_at"]
        )
        self.set_config = self._compile(studies.update().where(s.id == STUDY), ["config"])
        self.set_population_size = self._compile(studies.update().where(s.id == STUDY), ["population_size"])
        self.set_strategy_state = self._compile(
            studies.update().where(s.id == STUDY).values(state_version=s.state_version + ONE), ["strategy_state"]
        )

    def _members(self) -> None:
        m = members.c
        mine = m.study == STUDY
        one = sa.select(members).where(mine, m.member == MEMBER)
        self.member = self._compile(one)
        self.locked_member = self._compile(self._locked(one))
        self.locked_ready = self._compile(self._locked(one, skip=True))
        self.all_members = self._compile(sa.select(members).where(mine).order_by(m.member))
        self.insert_member = self._compile(members.insert().inline(), ["study", "member", "state"])
        self.insert_whole_member = self._insert(members)
        ready: sa.ColumnElement[str] = sa.literal_column("'ready'")
        done = members.update().where(mine, m.state == sa.literal_column("'done'"), m.retired.is_(sa.false()))
        self.wake_done = self._compile(done.values({m.state: ready}), [])
        self.retry_given_up = self._compile(
            done.where(m.broken_trial.is_not(None), m.stops == ZERO).values(
                {m.state: ready, m.replacements: ZERO}
            ),
            [],
        )
        trained = m.generation - m.joined_generation
        self.spent_generations = self._compile(sa.select(sa.func.sum(trained)).where(mine))

    def update_member(self, fields: tuple[str, ...]) -> str:
        """Return the statement that writes these fields of a member."""
        found = self._member_updates.get(fields)
        if found is None:
            one = members.update().where(members.c.study == STUDY, members.c.member == MEMBER)
            found = self._member_updates[fields] = self._compile(one, columns(fields))
        return found

    def update_trial(self, fields: tuple[str, ...]) -> str:
        """Return the statement that writes these fields of a trial."""
        found = self._trial_updates.get(fields)
        if found is None:
            one = trials.update().where(trials.c.id == TRIAL)
            found = self._trial_updates[fields] = self._compile(one, columns(fields))
        return found

    def _trials(self) -> None:
        t = trials.c
        mine = t.study == STUDY
        one = sa.select(trials).where(t.id == TRIAL, mine)
        self.trial = self._compile(one)
        self.locked_trial = self._compile(self._locked(one))
        self.insert_trial = self._insert(trials)
        self.last_trial_id = self._compile(sa.select(sa.func.max(t.id)))
        sequences = self._dialect.supports_sequences
        self.next_trial_id = self._compile(sa.select(trial_ids.next_value())) if sequences else self.last_trial_id
        self.next_pending = self._compile(
            self._locked(sa.select(trials).where(mine, PENDING).order_by(t.id).limit(ONE).offset(ZERO), skip=True)
        )
        after = sa.select(trials).where(mine, t.id > AFTER).order_by(t.id)
        self.trials = self._compile(after)
        self.trials_page = self._compile(after.limit(LIMIT).offset(ZERO))
        self.trials_of_member = self._compile(after.where(t.member == MEMBER))
        self.trials_of_member_page = self._compile(after.where(t.member == MEMBER).limit(LIMIT).offset(ZERO))
        self.unfinished_checkpoints = self._compile(
            sa.select(t.parent_checkpoint, t.progress).where(mine, UNFINISHED)
        )
        train = t.kind == sa.literal_column("'train'")
        failed = t.state == sa.literal_column("'failed'")
        self.count_unfinished = self._compile(
            sa.select(t.state, sa.func.count()).where(mine, UNFINISHED, train).group_by(t.state)
        )
        given_up = t.state.in_([sa.literal_column("'failed'"), sa.literal_column("'cancelled'")])
        self.count_given_up = self._compile(
            sa.select(t.state, sa.func.count()).where(mine, ENDED, given_up, train).group_by(t.state)
        )
        completed = t.state == sa.literal_column("'completed'")
        last = sa.select(sa.func.max(t.ended_at)).where(mine, ENDED, completed).scalar_subquery()
        self.broken_in_a_row = self._compile(
            sa.select(sa.func.count())
            .select_from(trials)
            .where(mine, ENDED, failed, t.ended_at > sa.func.coalesce(last, NOW), t.ended_at > NOW)
        )
        newest = sa.select(trials).where(mine, ENDED, completed, train)
        self.last_completed = self._compile(
            newest.order_by(t.ended_at.desc(), t.id.desc()).limit(LIMIT).offset(ZERO)
        )
        stopped = sa.and_(t.state == sa.literal_column("'cancelled'"), t.stop_reason.is_not(None))
        # The states by name, so that their index is used.
        abandoned = sa.select(trials).where(mine, ENDED, given_up, train, sa.or_(failed, stopped))
        self.abandoned = self._compile(abandoned)
        came_to = sa.or_(sa.and_(completed, t.reached_step >= STEP), failed, stopped)
        any_way = t.state.in_([sa.literal_column(f"'{state}'") for state in ("completed", "failed", "cancelled")])
        self.ended = self._compile(sa.select(trials).where(mine, ENDED, any_way, train, came_to))
        # In no order: SQLite would else walk all trials by id instead of these by their own index.
        self.unfinished = self._compile(sa.select(trials).where(mine, UNFINISHED))
        of_generation = sa.select(trials).where(mine, t.generation == GENERATION, SCORED)
        self.results = self._compile(of_generation.order_by(t.id))
        live = sa.and_(checkpoints.c.study == t.study, checkpoints.c.name == t.checkpoint)
        self.best_trials = self._compile(
            sa.select(trials)
            .join(checkpoints, live)
            .where(mine, completed, train, t.fitness_order > ORDER)
            .where(checkpoints.c.state == sa.literal_column("'live'"))
            .order_by(t.fitness_order.desc(), t.id)
            .limit(LIMIT)
            .offset(ZERO)
        )

    def _attempts(self) -> None:
        a = attempts.c
        mine = a.study == STUDY
        of_trial = sa.select(attempts).where(a.trial == TRIAL, mine)
        self.attempt = self._compile(of_trial.where(a.token == TOKEN))
        self.attempts = self._compile(of_trial.order_by(a.token))
        self.all_attempts = self._compile(
            sa.select(attempts)
            .join(trials, trials.c.id == a.trial)
            .where(trials.c.study == STUDY)
            .order_by(trials.c.id, a.token)
        )
        running = sa.select(attempts).where(mine, RUNNING).order_by(a.trial, a.token)
        self.running = self._compile(running)
        self.running_of_worker = self._compile(running.where(a.worker == WORKER))
        # A trial that somebody has locked is being ended just now; to wait for it could be a deadlock.
        self.expired = self._compile(
            self._locked(
                sa.select(attempts)
                .join(trials, trials.c.id == a.trial)
                .where(mine, a.state == sa.literal_column("'running'"), a.expires_at < NOW)
                .order_by(a.expires_at, a.trial)
                .limit(LIMIT)
                .offset(ZERO),
                of=trials,
                skip=True,
            )
        )
        ahead = sa.select(attempts).where(mine, RUNNING, a.expires_at > EXPIRES_AFTER, a.claimed_at > NOW)
        self.claimed_ahead = self._compile(ahead.order_by(a.expires_at, a.trial))
        self.insert_attempt = self._insert(attempts)
        self.end_attempt = self._compile(
            attempts.update().where(a.trial == TRIAL, a.token == TOKEN),
            ["state", "ended_at", "outcome", "error", "timings"],
        )
        held = sa.select(a.trial, a.token).where(mine, RUNNING, a.worker == WORKER)
        self.renew_attempts = self._compile(
            attempts.update().where(sa.tuple_(a.trial, a.token).in_(held.with_for_update(skip_locked=True))),
            ["expires_at"],
        )

    def _checkpoints(self) -> None:
        c = checkpoints.c
        mine = c.study == STUDY
        one = sa.and_(mine, c.name == NAME)
        self.checkpoint = self._compile(sa.select(checkpoints).where(one))
        by_creation = sa.select(checkpoints).where(mine).order_by(c.created_at, c.trial, c.name)
        self.checkpoints = self._compile(by_creation)
        self.live_checkpoints = self._compile(by_creation.where(LIVE))
        self.deleting_checkpoints = self._compile(by_creation.where(DELETING))
        self.damaged_checkpoints = self._compile(by_creation.where(DAMAGED))
        dialect = sqlite if self._dialect.name == "sqlite" else postgresql
        insert: Any = dialect.insert(checkpoints)
        # A request that is sent again names the same checkpoint again.
        self.insert_checkpoint = self._compile(
            insert.on_conflict_do_update(
                index_elements=["study", "name"],
                set_={column.name: insert.excluded[column.name] for column in c if not column.primary_key},
            ),
            [column.name for column in c],
        )
        self.take_checkpoint = self._compile(checkpoints.update().where(one, LIVE).values(taken=c.taken + ONE), [])
        unlocked = (
            sa.select(c.name)
            .where(one, LIVE, c.taken == sa.bindparam("k_taken", type_=sa.Integer))
            .with_for_update(skip_locked=True)
        )
        # A row that somebody has locked is being taken; to wait for it could be a deadlock.
        self.mark_deleting = self._compile(
            checkpoints.update()
            .where(mine, c.name.in_(unlocked.scalar_subquery()))
            .values(state=sa.literal_column("'deleting'")),
            [],
        )
        self.set_checkpoint_state = self._compile(checkpoints.update().where(one), ["state", "damage"])

    def _reports(self) -> None:
        r = reports.c
        of_trial = sa.and_(r.study == STUDY, r.trial == TRIAL)
        next_seq = (
            sa.select(sa.func.coalesce(sa.func.max(r.seq), ZERO) + ONE)
            .where(of_trial, r.token == TOKEN)
            .scalar_subquery()
        )
        self.insert_reports = self._compile(
            reports.insert().inline().values(study=STUDY, trial=TRIAL, token=TOKEN, seq=next_seq), ["batch"]
        )
        newest = sa.select(sa.func.max(r.token)).where(of_trial).scalar_subquery()
        batches = sa.select(r.batch).where(of_trial).order_by(r.seq)
        self.reports_of_token = self._compile(batches.where(r.token == TOKEN))
        self.reports_of_newest = self._compile(batches.where(r.token == newest))
        newest_first = sa.select(r.batch).where(of_trial, r.token == TOKEN).order_by(r.seq.desc())
        self.last_reports = self._compile(newest_first.limit(LIMIT).offset(ZERO))
        self.set_tally = self._compile(
            attempts.update().where(attempts.c.trial == TRIAL, attempts.c.token == TOKEN), ["tally"]
        )

    def _marks(self) -> None:
        m = marks.c
        step = sa.bindparam("k_step", type_=sa.BigInteger)
        every = sa.bindparam("k_every", type_=sa.BigInteger)
        at_mark = sa.and_(m.study == STUDY, m.every == every, m.step == step)
        self.averages = self._compile(
            sa.select(m.average)
            .where(at_mark, m.trial != TRIAL)
            .order_by(m.trial.desc())
            .limit(LIMIT)
            .offset(ZERO)
        )
        insert: Any = sqlite.insert if self._dialect.name == "sqlite" else postgresql.insert
        add = insert(marks)
        self.set_mark = self._compile(
            add.on_conflict_do_update(
                index_elements=["study", "every", "step", "trial"], set_={"average": add.excluded.average}
            ),
            [column.name for column in m],
        )
