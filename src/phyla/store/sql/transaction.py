"""One transaction on one study."""

from typing import final

from phyla.records import StudyKind, StudyRecord
from phyla.store.sql.applying import Applying
from phyla.store.sql.backend import Session
from phyla.store.sql.groups import Evaluating
from phyla.store.sql.population import Population
from phyla.store.sql.rows import STUDIES
from phyla.store.sql.tables import ONE_STUDY


@final
class SqlTransaction(Population, Evaluating, Applying):
    """Reads and changes one study.

    Args:
        session: inside an open transaction.
        study: the study's row.
        now: the database's time.
    """

    def __init__(self, session: Session, study: StudyRecord, now: float) -> None:
        super().__init__(session, study, now)
        self._source: SqlTransaction | None = self if study.kind is StudyKind.POPULATION else None

    def source(self) -> "SqlTransaction | None":
        if self._source is None and self._study.source is not None:
            record = self._session.one(STUDIES, ONE_STUDY, {"study": self._study.source})
            assert record is not None
            self._source = SqlTransaction(self._session, record, self._now)
        return self._source
