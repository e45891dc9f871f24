"""A decision's reason in words."""

from collections.abc import Mapping

from phyla.records import Json, JsonObject


def describe(reason: JsonObject) -> str:
    """Return a stored reason, of a decision or of a stop, as one line for a person."""
    if "decision" not in reason and "rule" in reason:
        return _stop(reason)
    decision = reason.get("decision")
    words = _WORDS.get(str(decision), str(decision or "unknown"))
    compared = _mapping(reason.get("compared"))
    if decision == "exploit":
        words = f"took {_what(reason)} member {_mapping(compared.get('donor')).get('member')}"
        donor, own = _mapping(compared.get("donor")), _mapping(compared.get("own"))
        if donor and own:
            against = f"{_score(donor)} against {_score(own)}"
            p = compared.get("p")
            words += f" ({against})" if p is None else f" ({against}, p {_number(p)})"
    opponent = _mapping(compared.get("opponent"))
    if decision == "explore" and opponent:
        own = _mapping(compared.get("own"))
        against = f"{_score(own)} against {_score(opponent)}"
        words = f"won against member {opponent.get('member')} ({against})"
    if decision == "promote":
        words = f"promoted from rung {compared.get('rung')} ({compared.get('rank')} of {compared.get('of')})"
    if decision == "branch":
        words = f"tried {reason.get('way')}" if reason.get("way") != "best of three" else "went on with the best"
    if decision == "join":
        words = f"joined from member {_mapping(reason.get('donor')).get('member')}"
    if decision == "recover":
        donor = _mapping(reason.get("donor"))
        damaged = reason.get("damaged")
        gone = f"{reason.get('lost')} was lost" if damaged is None else f"{damaged} was damaged"
        words = f"checkpoint {gone}: " + (f"took over member {donor.get('member')}" if donor else "started fresh")
    if reason.get("imported") is not None:
        begun = "started" if words == "started fresh" else words
        words = f"{begun} from imported trial {reason['imported']}"
    mate = _mapping(reason.get("mate"))
    if mate:
        words += f", crossed with member {mate.get('member')}"
    changes = _mapping(reason.get("changes"))
    if changes:
        words += ", " + ", ".join(_change(name, _mapping(change)) for name, change in changes.items())
    stopped = _mapping(reason.get("stopped"))
    if reason.get("replaces") is not None and stopped:
        words += f", in place of trial {reason['replaces']} ({_stop(stopped)})"
    elif reason.get("replaces") is not None:
        words += f", in place of broken trial {reason['replaces']}"
    return words


_WORDS = {
    "start": "started fresh",
    "replace": "started fresh",
    "continue": "continued",
    "explore": "explored",
    "schedule": "continued",
    "measure": "measured again",
    "import": "imported",
    "replay": "replayed",
}


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


def _what(reason: JsonObject) -> str:
    copied = reason.get("copied")
    return "over" if copied in (None, "both") else str(copied)


def _change(name: str, change: JsonObject) -> str:
    return f"{name} {_number(change.get('from'))} -> {_number(change.get('to'))} ({change.get('by')})"


def _score(scored: JsonObject) -> str:
    """Return what was compared: the values of the goals that are traded off, else the fitness."""
    if scored.get("infeasible"):
        return "infeasible"
    goals = _mapping(scored.get("goals"))
    return ", ".join(f"{name} {_number(goals[name])}" for name in goals) or _number(scored.get("fitness"))


def _number(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _mapping(value: Json) -> JsonObject:
    return value if isinstance(value, Mapping) else {}
