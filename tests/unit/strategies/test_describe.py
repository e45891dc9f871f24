"""A decision's reason in words, branch by branch."""

from typing import Any

import pytest

from phyla.strategies.describe import describe

OWN = {"member": 7, "fitness": 0.25}
LENDER = {"member": 5, "fitness": 0.75, "step": 4000}
DONOR = {"member": 3, "fitness": 0.5, "step": 4000}
CHANGED = {"lr": {"from": 0.01, "to": 0.012, "by": "x1.2"}, "width": {"from": 8, "to": 16, "by": "drawn again"}}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ({"decision": "start"}, "started fresh"),
        ({"decision": "replace"}, "started fresh"),
        ({"decision": "continue"}, "continued"),
        ({"decision": "explore"}, "explored"),
        ({"decision": "schedule"}, "continued"),
        ({"decision": "measure"}, "is measured again"),
        ({"decision": "import"}, "imported"),
        ({"decision": "replay"}, "replayed"),
        ({"decision": "mine"}, "mine"),
        ({}, "no reason given"),
        (
            {"why": "because", "gain": 0.123456, "of": 1200, "none": None},
            "why because, gain 0.1235, of 1,200, none none",
        ),
        ({"mate": {"member": 2}, "joined": True}, "joined and no reason given, crossed with member 2"),
        ({"decision": "continue", "compared": {"rank": 19, "of": 20}}, "19th of 20, continued"),
        ({"decision": "continue", "compared": {"rank": 1, "of": 1000}}, "1st of 1,000, continued"),
        ({"decision": "continue", "compared": {"rank": 22, "of": 30}}, "22nd of 30, continued"),
        ({"decision": "continue", "compared": {"rank": 33, "of": 40}}, "33rd of 40, continued"),
        ({"decision": "continue", "compared": {"rank": 1112, "of": 2000}}, "1,112th of 2,000, continued"),
        ({"decision": "continue", "compared": {"rank": 11, "of": 20}}, "11th of 20, continued"),
        ({"decision": "continue", "compared": {"rank": 13, "of": 20}}, "13th of 20, continued"),
        (
            {"decision": "exploit", "compared": {"own": OWN, "donor": DONOR}},
            "took over member 3's weights and hyperparameters at step 4,000 (0.5 against 0.25)",
        ),
        (
            {"decision": "exploit", "compared": {"own": OWN, "donor": DONOR, "p": 0.04}},
            "took over member 3's weights and hyperparameters at step 4,000 (0.5 against 0.25, p 0.04)",
        ),
        (
            {
                "decision": "exploit",
                "compared": {"own": OWN, "donor": DONOR, "rank": 3, "of": 4},
                "changes": CHANGED,
            },
            "3rd of 4, took over member 3's weights at step 4,000; lr 0.01 to 0.012, width 8 to 16 (drawn again)",
        ),
        (
            {"decision": "exploit", "compared": {"own": OWN, "donor": DONOR, "opponent": {"fitness": 0.75}}},
            "took over member 3's weights and hyperparameters at step 4,000 (0.75 against 0.25)",
        ),
        (
            {"decision": "exploit", "copied": "weights", "compared": {"donor": DONOR}},
            "took over only member 3's weights at step 4,000",
        ),
        (
            {"decision": "exploit", "copied": "hyperparameters", "compared": {"donor": DONOR}},
            "took over member 3's hyperparameters",
        ),
        (
            {"decision": "exploit", "copied": "both", "compared": {"donor": DONOR, "params_donor": LENDER}},
            "took over member 3's weights at step 4,000, with member 5's hyperparameters",
        ),
        (
            {
                "decision": "exploit",
                "copied": "hyperparameters",
                "compared": {"donor": DONOR, "params_donor": LENDER},
            },
            "took over member 5's hyperparameters",
        ),
        (
            {"decision": "exploit", "compared": {"own": OWN, "donor": {"member": 7}, "params_donor": LENDER}},
            "went back to its own weights, with member 5's hyperparameters (none against 0.25)",
        ),
        (
            {"decision": "explore", "compared": {"params_donor": LENDER}},
            "explored from member 5's hyperparameters",
        ),
        ({"decision": "exploit"}, "took over another member's weights and hyperparameters"),
        (
            {"decision": "exploit", "compared": {"own": OWN, "donor": {"member": 7, "step": 20, "fitness": 1.0}}},
            "went back to its own weights at step 20 (1 against 0.25)",
        ),
        (
            {
                "decision": "exploit",
                "compared": {
                    "own": {"member": 1, "mean": 0.5, "scores": 4},
                    "donor": {"member": 2, "goals": {"loss": 0.125, "size": 3}},
                },
            },
            "took over member 2's weights and hyperparameters (loss 0.125, size 3 against mean 0.5 of 4 scores)",
        ),
        (
            {
                "decision": "exploit",
                "compared": {"own": {"member": 1, "infeasible": "cost 3 > 2"}, "donor": DONOR},
            },
            "took over member 3's weights and hyperparameters at step 4,000 (0.5 against infeasible)",
        ),
        (
            {"decision": "explore", "compared": {"own": {"fitness": 2}, "opponent": {"member": 4, "fitness": 1}}},
            "won against member 4 (2 against 1)",
        ),
        ({"decision": "promote", "compared": {"rung": 1, "rank": 2, "of": 9}}, "promoted from rung 1 (2 of 9)"),
        ({"decision": "branch", "way": "best of three"}, "went on with the best"),
        ({"decision": "branch", "way": "x1.2"}, "tried x1.2"),
        ({"decision": "join", "donor": DONOR}, "joined with member 3's weights at step 4,000"),
        ({"decision": "recover", "lost": "t5"}, "started fresh, since checkpoint t5 was lost"),
        (
            {"decision": "recover", "damaged": "t5", "donor": DONOR},
            "took over member 3's weights at step 4,000, since checkpoint t5 was damaged",
        ),
        ({"decision": "start", "imported": 9}, "started from imported trial 9"),
        ({"decision": "explore", "imported": 0}, "explored from imported trial 0"),
        ({"decision": "start", "joined": True}, "joined and started fresh"),
        ({"decision": "explore", "mate": {"member": 5}}, "explored, crossed with member 5"),
        ({"decision": "start", "replaces": 12}, "started fresh, in place of broken trial 12"),
        (
            {"decision": "start", "replaces": 12, "stopped": {"step": 30, "rule": "asha"}},
            "started fresh, in place of trial 12 (stopped at step 30: asha)",
        ),
        ({"step": 30, "rule": "mine", "why": "it was late"}, "stopped at step 30: it was late (mine)"),
        (
            {"step": 30, "rule": "median", "metric": "loss", "best": 0.5, "median": 0.25, "of": 7},
            "stopped at step 30: best loss 0.5 is worse than the median 0.25 of 7 trials",
        ),
        (
            {"step": 30, "rule": "divergence", "metric": "loss", "value": 99.5, "above": 50.0, "below": -1.0},
            "stopped at step 30: loss was 99.5, above 50, below -1",
        ),
        ({"step": 30, "rule": "divergence", "metric": "loss", "value": None}, "stopped at step 30: loss was none"),
    ],
)
def test_a_reason_is_a_sentence(reason: Any, words: str) -> None:
    assert describe(reason) == words
    verb = "was " if words.startswith("stopped at") else ""
    with_rank = isinstance(reason.get("compared", {}).get("rank"), int) and reason.get("decision") != "promote"
    assert describe(reason, "member 7") == f"member 7{',' if with_rank else ''} {verb}{words}"
