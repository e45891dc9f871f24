"""The newest decisions read as a person would tell them."""

from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import check_facts
from phyla.records import JsonObject
from phyla.strategies import MedianStopping, describe
from phyla.study.results.decision_log import decisions


def study(home: Path, **more: Any) -> phyla.Study:
    """Five members with scores by index, the last one bad, that all start the same."""
    settings: dict[str, Any] = {
        "strategy": phyla.PBT(
            population_size=5, steps_per_trial=2000, total_steps=8000, explore=phyla.Perturb(factors=(1.2,))
        ),
        "home": home,
        "storage": "memory://",
        **more,
    }
    space = phyla.Space(lr=phyla.Float(0.001, 1.0))
    return phyla.Study("told", space, phyla.Maximize("score"), **settings)


def done(made: phyla.Study, trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "weights").write_text("w")
    made.tell(trial, metrics={"score": 0.9 - 0.1 * trial.member})


def told(made: phyla.Study, limit: int = 100) -> list[str]:
    return [one.words for one in decisions(made.results(), limit=limit)]


def test_an_exploit_says_who_took_what_from_whom_and_what_changed(tmp_path: Path) -> None:
    made = study(tmp_path)
    for _ in range(3):
        for each in made.ask(5):
            done(made, each)
    found = decisions(made.results(), limit=100)
    newest = found[0]
    trials = made.results().trials()
    trial = trials[newest.trial - 1]
    before, after = (f"{one.params['lr']:.4g}" for one in (trials[(trial.parent or 0) - 1], trial))
    assert newest.words == (
        f"member 4, 5th of 5, took over member 0's weights at step 4,000; lr {before} to {after}"
    )
    assert (trial.member, trial.created_at, trial.start_step) == (newest.member, newest.at, 4000)
    assert [one.at for one in found] == sorted((one.at for one in found), reverse=True)
    # Members that went on unchanged are left out, and those that started are told.
    assert len(found) == 7
    assert [one.kind for one in found] == ["decided"] * 2 + ["started"] * 5
    assert {one.words for one in found[-5:]} == {f"member {member} started fresh" for member in range(5)}
    assert [one.words for one in decisions(made.results(), limit=2)] == [one.words for one in found[:2]]


def test_a_final_is_one_line_for_each_candidate(tmp_path: Path) -> None:
    strategy = phyla.PBT(population_size=5, steps_per_trial=2000, total_steps=2000)
    made = study(tmp_path, strategy=strategy, final=phyla.Final(candidates=2, measurements=8))
    for each in made.ask(5):
        done(made, each)
    counts = []
    while due := made.ask(1):
        counts.append(made.results().progress().final)
        done(made, due[0])
    assert counts == [(ended, 8) for ended in range(8)]
    assert made.results().progress().final == (8, 8)
    measured = [words for words in told(made) if "final" in words]
    assert measured == [f"member {member} is measured again in the final" for member in (1, 0)]


def test_failures_and_what_replaces_them(tmp_path: Path) -> None:
    made = study(tmp_path, retries=phyla.Retries(attempts=2))
    first, other = made.ask(2)
    made.tell(first, error="ValueError: one")
    check_facts(told(made)[0], "member 0", f"trial {first.id}", "retried", "ValueError: one")
    done(made, other)
    (again,) = made.ask(1)
    made.tell(again, error="ValueError: two")
    check_facts(told(made)[0], "member 0", f"trial {first.id}", "for good", "ValueError: two")
    made.ask(1)
    check_facts(told(made)[0], "member 0", f"trial {first.id}")


def test_what_a_rule_stopped(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        trial.report(score=1.0 - trial.member, step=50)
        (trial.checkpoint_dir / "weights").write_text("w")

    rule = MedianStopping(min_steps=1, min_trials=1)
    made = study(tmp_path, strategy=phyla.RandomSearch(2, 100), stopping=[rule], train=train)
    made.run(workers=0)
    check_facts("\n".join(told(made)), "member 1", "step 50", "0", "1 of 1 trials")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ({"decision": "import"}, "member 3 imported"),
        (
            {"decision": "join", "donor": {"member": 1, "trial": 4, "step": 12000}, "changes": {}},
            "member 3 joined with member 1's weights at step 12,000",
        ),
        (
            {"decision": "start", "joined": {"member": 1, "trial": 4, "step": 12000}},
            "member 3 joined and started fresh",
        ),
        (
            {"decision": "recover", "lost": "7.1", "donor": {"member": 0, "trial": 2, "step": 10}},
            "member 3 took over member 0's weights at step 10, since checkpoint 7.1 was lost",
        ),
        (
            {
                "decision": "exploit",
                "copied": "weights",
                "compared": {"rank": 22, "of": 1000, "donor": {"member": 1, "step": 5}},
                "changes": {
                    "n": {"from": 1024, "to": 2048, "by": "x2"},
                    "act": {"from": "relu", "to": None, "by": "dropped"},
                },
            },
            (
                "member 3, 22nd of 1,000, took over only member 1's weights at step 5; n 1,024 to 2,048, "
                "act relu to none (dropped)"
            ),
        ),
        (
            {"decision": "exploit", "compared": {"donor": {"member": 3, "step": 40}, "own": {"member": 3}}},
            "member 3 went back to its own weights at step 40 (none against none)",
        ),
    ],
)
def test_other_decisions(reason: JsonObject, words: str) -> None:
    assert describe(reason, "member 3") == words
