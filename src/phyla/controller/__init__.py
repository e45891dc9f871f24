"""The stateless decision maker: load, decide, commit, one transaction each."""

from phyla.controller.connect import controller_of, housekeeping_of, sightings_of
from phyla.controller.controller import EVALUATE_ONLY, TRAIN_ONLY, Controller
from phyla.controller.sightings import Sightings
from phyla.controller.study_changes import Upkeep
from phyla.controller.study_records import Housekeeping
