"""A job: what a worker can lease. Trials, shards of eval tasks and aggregations are jobs."""

from enum import StrEnum


class JobState(StrEnum):
    """Life of a job; the allowed moves are in `phyla.leases.TRANSITIONS`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobKind(StrEnum):
    """What there is to do.

    Attributes:
        TRAIN: a trial that trains from `start_step` to `end_step`.
        MEASURE: a trial that measures its parent's checkpoint again.
        IMPORT: a trial that stands for a checkpoint from elsewhere. It is born completed and trains no step: it
            counts neither in the budget nor as a generation.
        EVALUATE: one shard of one eval task on one checkpoint.
        AGGREGATE: the aggregation of an evaluation group.
    """

    TRAIN = "train"
    MEASURE = "measure"
    IMPORT = "import"
    EVALUATE = "evaluate"
    AGGREGATE = "aggregate"
