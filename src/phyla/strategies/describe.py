"""A decision's reason in words."""

from collections.abc import Mapping

from phyla.records import Json, JsonObject


def describe(reason: JsonObject) -> str:
    """Return a stored reason, of a decision or of a stop, as one line for a person."""
    decision, compared = reason.get("decision"), _mapping(reason.get("compared"))
    if "decision" not in reason and "rule" in reason:
        return _stop(reason)
    own, donor, opponent = (_mapping(compared.get(name)) for name in ("own", "donor", "opponent"))
    giver = _mapping(reason.get("donor"))
    words = _WORDS.get(str(decision), str(decision or "unknown"))
    match decision:
        case "exploit":
            copied, p = reason.get("copied"), compared.get("p")
            words = f"took {'over' if copied in (None, 'both') else copied} member {donor.get('member')}"
            if donor and own:
                words += f" ({_score(donor)} against {_score(own)}{'' if p is None else f', p {_number(p)}'})"
        case "explore" if opponent:
            words = f"won against member {opponent.get('member')} ({_score(own)} against {_score(opponent)})"
        case "promote":
            words = f"promoted from rung {compared.get('rung')} ({compared.get('rank')} of {compared.get('of')})"
        case "branch":
            way = reason.get("way")
            words = "went on with the best" if way == "best of three" else f"tried {way}"
        case "join":
            words = f"joined from member {giver.get('member')}"
        case "recover":
            damaged = reason.get("damaged")
            gone = f"{reason.get('lost')} was lost" if damaged is None else f"{damaged} was damaged"
            words = f"checkpoint {gone}: "
            words += f"took over member {giver.get('member')}" if giver else "started fresh"
    if reason.get("imported") is not None:
        begun = "started" if words == "started fresh" else words
        words = f"{begun} from imported trial {reason['imported']}"
    if mate := _mapping(reason.get("mate")):
        words += f", crossed with member {mate.get('member')}"
    for name, change in _mapping(reason.get("changes")).items():
        words += f", {name} {_change(_mapping(change))}"
    if reason.get("replaces") is not None:
        stopped = _mapping(reason.get("stopped"))
        broken, why = ("", f" ({_stop(stopped)})") if stopped else ("broken ", "")
        words += f", in place of {broken}trial {reason['replaces']}{why}"
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


def _change(change: JsonObject) -> str:
    return f"{_number(change.get('from'))} -> {_number(change.get('to'))} ({change.get('by')})"


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
