"""How often a job is tried."""

from phyla.leases import Quarantine, Retry, after_failure


def test_a_job_is_tried_until_its_attempts_are_used_up() -> None:
    assert [after_failure(failed, max_attempts=3) for failed in range(3)] == [Retry(1), Retry(2), Quarantine(3)]
    assert after_failure(0, max_attempts=3, retryable=False) == Quarantine(1)
