"""A decision's reason in words."""

from collections.abc import Mapping

from phyla.records import Json, JsonObject


def describe(reason: JsonObject) -> str:
    """Return a stored reason as one line for a person."""
    decision = reason.get("decision")
    words = _WORDS.get(str(decision), str(decision or "unknown"))
    compared = _mapping(reason.get("compared"))
    if decision == "exploit":
        words = f"took {_what(reason)} member {_mapping(compared.get('donor')).get('member')}"
        donor, own = _mapping(compared.get("donor")), _mapping(compared.get("own"))
        if donor and own:
            against = f"{_number(donor.get('fitness'))} against {_number(own.get('fitness'))}"
            p = compared.get("p")
            words += f" ({against})" if p is None else f" ({against}, p {_number(p)})"
    opponent = _mapping(compared.get("opponent"))
    if decision == "explore" and opponent:
        own = _mapping(compared.get("own"))
        against = f"{_number(own.get('fitness'))} against {_number(opponent.get('fitness'))}"
        words = f"won against member {opponent.get('member')} ({against})"
    if decision == "promote":
        words = f"promoted from rung {compared.get('rung')} ({compared.get('rank')} of {compared.get('of')})"
    if decision == "branch":
        words = f"tried {reason.get('way')}" if reason.get("way") != "best of three" else "went on with the best"
    if decision == "recover":
        donor = _mapping(reason.get("donor"))
        words = f"checkpoint {reason.get('lost')} was lost: " + (
            f"took over member {donor.get('member')}" if donor else "started fresh"
        )
    mate = _mapping(reason.get("mate"))
    if mate:
        words += f", crossed with member {mate.get('member')}"
    changes = _mapping(reason.get("changes"))
    if changes:
        words += ", " + ", ".join(_change(name, _mapping(change)) for name, change in changes.items())
    if reason.get("replaces") is not None:
        words += f", in place of broken trial {reason['replaces']}"
    return words


_WORDS = {
    "start": "started fresh",
    "replace": "started fresh",
    "continue": "continued",
    "explore": "explored",
    "schedule": "continued",
    "measure": "measured again",
}


def _what(reason: JsonObject) -> str:
    copied = reason.get("copied")
    return "over" if copied in (None, "both") else str(copied)


def _change(name: str, change: JsonObject) -> str:
    return f"{name} {_number(change.get('from'))} -> {_number(change.get('to'))} ({change.get('by')})"


def _number(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _mapping(value: Json) -> JsonObject:
    return value if isinstance(value, Mapping) else {}
