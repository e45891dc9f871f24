"""The reason of a decision as text."""

from collections.abc import Mapping

from phyla.records import Json, JsonObject, on_one_line, significant


def describe(reason: JsonObject, member: str = "") -> str:
    """Return a stored reason, of a decision or of a stop, on one line; `member` is its subject, if any.

    As in "member 7, 19th of 20, took over member 3's weights at step 4,000; lr 0.01 to 0.012".
    """
    decision, compared = reason.get("decision"), _mapping(reason.get("compared"))
    if "decision" not in reason and "rule" in reason and "step" in reason:
        return f"{member} was {_stop(reason)}" if member else _stop(reason)
    own, donor, opponent = (_mapping(compared.get(name)) for name in ("own", "donor", "opponent"))
    lender, giver = _mapping(compared.get("params_donor")), _mapping(reason.get("donor"))
    words = _WORDS.get(str(decision), str(decision)) if decision else _own(reason)
    rank = None if decision == "promote" else compared.get("rank")
    match decision:
        case "exploit":
            words, p = _describe_donor(donor, own, lender, reason), compared.get("p")
            if donor and own and rank is None:
                note = "" if p is None else f", p {_number(p)}"
                words += f" ({_score(opponent or donor)} against {_score(own)}{note})"
        case "explore" if lender:
            words = f"explored from {_whose(lender)} hyperparameters"
        case "explore" if opponent:
            words = f"won against member {opponent.get('member')} ({_score(own)} against {_score(opponent)})"
        case "promote":
            words = f"promoted from rung {compared.get('rung')} ({compared.get('rank')} of {compared.get('of')})"
        case "branch":
            way = reason.get("way")
            words = "went on with the best" if way == "best of three" else f"tried {way}"
        case "join":
            words = f"joined with {_weights(giver)}"
        case "recover":
            damaged = reason.get("damaged")
            gone = f"{reason.get('lost')} was lost" if damaged is None else f"{damaged} was damaged"
            words = f"took over {_weights(giver)}" if giver else "started fresh"
            words += f", since checkpoint {gone}"
    if reason.get("imported") is not None:
        begun = "started" if words == "started fresh" else words
        words = f"{begun} from imported trial {reason['imported']}"
    if reason.get("joined"):
        words = f"joined and {words}"
    if mate := _mapping(reason.get("mate")):
        words += f", crossed with member {mate.get('member')}"
    if reason.get("replaces") is not None:
        stopped = _mapping(reason.get("stopped"))
        broken, why = ("", f" ({_stop(stopped)})") if stopped else ("broken ", "")
        words += f", in place of {broken}trial {reason['replaces']}{why}"
    changes = [f"{name} {_change(_mapping(change))}" for name, change in _mapping(reason.get("changes")).items()]
    words = "; ".join(filter(None, [words, ", ".join(changes)]))
    if not isinstance(rank, int):
        return f"{member} {words}".lstrip()
    return ", ".join(filter(None, [member, f"{_ordinal(rank)} of {_number(compared.get('of'))}", words]))


_WORDS = {
    "start": "started fresh",
    "replace": "started fresh",
    "continue": "continued",
    "explore": "explored",
    "schedule": "continued",
    "measure": "is measured again",
    "final": "is measured again in the final",
    "import": "imported",
    "replay": "replayed",
}


def _own(reason: JsonObject) -> str:
    """Return the reason of a third-party strategy, in any form."""
    facts = [f"{name} {_number(value)}" for name, value in reason.items() if name not in _FACTS]
    return ", ".join(facts) or "no reason given"


_FACTS = ("imported", "joined", "mate", "replaces", "stopped", "changes")
"""Keys of any reason."""


def _stop(reason: JsonObject) -> str:
    words = f"stopped at step {reason.get('step')}: "
    metric = reason.get("metric")
    if reason.get("rule") == "median":
        best, median = _number(reason.get("best")), _number(reason.get("median"))
        return f"{words}best {metric} {best} is worse than the median {median} of {reason.get('of')} trials"
    if reason.get("rule") == "divergence":
        words += f"{metric} was {_number(reason.get('value'))}"
        bounds = [f"{side} {_number(reason[side])}" for side in ("above", "below") if side in reason]
        return ", ".join([words, *bounds])
    return words + (f"{reason['why']} ({reason.get('rule')})" if "why" in reason else str(reason.get("rule")))


def _describe_donor(donor: JsonObject, own: JsonObject, lender: JsonObject, reason: JsonObject) -> str:
    copied, step = reason.get("copied"), _at(donor)
    if copied == "hyperparameters":
        return f"took over {_whose(lender or donor)} hyperparameters"
    params = f", with {_whose(lender)} hyperparameters" if lender else ""
    if donor.get("member") is not None and donor.get("member") == own.get("member"):
        return f"went back to its own weights{step}{params}"
    both = "" if lender or reason.get("changes") or copied == "weights" else " and hyperparameters"
    return f"took over {'only ' if copied == 'weights' else ''}{_whose(donor)} weights{both}{step}{params}"


def _whose(scored: JsonObject) -> str:
    return "another member's" if scored.get("member") is None else f"member {scored['member']}'s"


def _weights(giver: JsonObject) -> str:
    return f"member {giver.get('member')}'s weights{_at(giver)}"


def _at(scored: JsonObject) -> str:
    step = scored.get("step")
    return f" at step {step:,}" if isinstance(step, int) else ""


def _ordinal(rank: int) -> str:
    ending = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank:,}{ending}"


def _change(change: JsonObject) -> str:
    """Return the old and the new value, and the way, unless that is only the factor between them."""
    way = str(change.get("by"))
    note = "" if way.startswith("x") else f" ({way})"
    return f"{_number(change.get('from'))} to {_number(change.get('to'))}{note}"


def _score(scored: JsonObject) -> str:
    """Return the compared score: a mean of scores, the values of traded-off goals, or the fitness."""
    if "mean" in scored:
        return f"mean {_number(scored['mean'])} of {scored.get('scores')} scores"
    if scored.get("infeasible"):
        return "infeasible"
    goals = _mapping(scored.get("goals"))
    return ", ".join(f"{name} {_number(goals[name])}" for name in goals) or _number(scored.get("fitness"))


def _number(value: Json) -> str:
    if isinstance(value, float):
        return significant(value, 4)
    return "none" if value is None else f"{value:,}" if type(value) is int else on_one_line(str(value))


def _mapping(value: Json) -> JsonObject:
    return value if isinstance(value, Mapping) else {}
