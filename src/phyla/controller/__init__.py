"""The stateless decision maker: each request loads, decides and commits in one transaction."""

from phyla.controller.connect import PARTS, changes_of, controller_of, records_of, sightings_of
from phyla.controller.controller import EVALUATE_ONLY, TRAIN_ONLY, Controller, claimed_attempt
from phyla.controller.sightings import Sightings
from phyla.controller.study_changes import StudyChanges
from phyla.controller.study_records import StudyRecords
