"""Space: the hyperparameters of a study, how to draw them and how to explore them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, final

from phyla.errors import SpaceError
from phyla.space import declaration
from phyla.space.declaration import (
    Constraint,
    Parameter,
    check_list,
    describe_parameter,
    find_violated,
    hold,
    make_plan,
    name_of,
    read_parameter,
    refuse_unknown,
    require,
    starting_point,
    unmet,
)
from phyla.space.params import Scalar, as_integer, as_real, as_share, flatten, run_check

if TYPE_CHECKING:
    import numpy as np

Changes: TypeAlias = dict[str, Mapping[str, Scalar]]
"""The change of each changed parameter: `from`, `to` and `by`.

`by` is "x1.2" (the factor), "1 - x, x0.8" (of the distance from 1), "+10% of the range", "step" (where these alone
move nothing), "neighbour", "resampled", "crossed", "activated" or "dropped".
"""

Pick: TypeAlias = Callable[[str, Parameter, int], tuple[Scalar, str]]

SAMPLE_TRIES = 1000
PERTURB_TRIES = 100


@final
class Space:
    """The hyperparameters of a study.

    Parameters come as keywords, as a mapping, or both; a mapping as a value is a group. Names are flattened with
    "/", so `Space(opt={"lr": Float(1e-4, 1.0)})` has the parameter `"opt/lr"`. A parameter named "constraints" or
    "initial" has to come in the mapping.

    A parameter with a `when` is active only if every parameter that it names is active and has one of the values
    it lists; inactive parameters are absent from all values. Names in `when` are full, such as `"opt/kind"`.

    Every method is a function of its arguments: the same generator state gives the same values, in the order of
    the space. A SpaceError names the invalid argument, the error of a constraint, or the constraint that rejected
    all draws.

    Args:
        mapping: Parameters and groups by name.
        constraints: Functions that return whether Params are allowed. Rejected values are drawn again, at most
            1000 times when sampling and 100 times when perturbing. Worker processes can only use functions of a
            module.
        initial: Starting points: the i-th mapping is for member i. Missing names are drawn.
        **parameters: Parameters and groups by name.
    """

    __slots__ = ("_constraints", "_initial", "_parameters", "_plan")

    def __init__(
        self,
        mapping: Mapping[str, Any] | None = None,
        /,
        *,
        constraints: Sequence[Constraint] = (),
        initial: Sequence[Mapping[str, Any]] = (),
        **parameters: Any,
    ) -> None:
        self._constraints = tuple(check_list("constraints", constraints))
        points = check_list("initial", initial)
        self._parameters = declaration.parameters(mapping, parameters)
        self._plan = make_plan(self._parameters)
        self._initial = tuple(run_check(self.check_part, point, f"initial[{i}]") for i, point in enumerate(points))

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters by full name, in order; the names in their `when` are full."""
        return MappingProxyType(self._parameters)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints, in order."""
        return self._constraints

    @property
    def initial(self) -> tuple[dict[str, Scalar], ...]:
        """The starting points of the first members, flat."""
        return tuple(dict(point) for point in self._initial)

    def sample(self, rng: "np.random.Generator", member: int | None = None) -> dict[str, Scalar]:
        """Flat values of all active parameters: draws from the priors, or the starting point of a member.

        That is its entry of the space's `initial`, else the parameter's own `initial`, else a draw.
        """
        if member is not None and as_integer(member, "member") < 0:
            raise SpaceError(f"member must be at least 0, got {member!r}")
        point = self._initial[member] if member is not None and member < len(self._initial) else {}

        def pick(name: str, parameter: Parameter, tried: int) -> tuple[Scalar, str]:
            if name in point:
                return point[name], "given"
            return (parameter.draw(rng) if member is None else parameter.start(rng)), "drawn"

        advice = "widen the ranges, loosen the constraint, or give starting points"
        return self._search_values(pick, SAMPLE_TRIES, advice)[0]

    def check_part(self, params: object) -> dict[str, Scalar]:
        """`params`, possibly incomplete, in canonical form: flat, plain Python values."""
        return starting_point(params, self._plan, self._constraints)

    def complete(
        self, params: Mapping[str, Scalar], others: Mapping[str, Scalar], rng: "np.random.Generator"
    ) -> dict[str, Scalar]:
        """Flat values of all active parameters: `params`, and for the rest `others`, or draws.

        If the constraints do not allow the others, these names are drawn instead.
        """

        def pick(name: str, parameter: Parameter, tried: int) -> tuple[Scalar, str]:
            if name in params:
                return params[name], "given"
            return (others[name] if name in others and not tried else parameter.draw(rng)), "drawn"

        return self._search_values(pick, SAMPLE_TRIES, f"loosen the constraint, or give more than {params!r}")[0]

    def perturb(
        self,
        params: Mapping[str, Any],
        rng: "np.random.Generator",
        *,
        factors: Sequence[float] = (0.8, 1.2),
        resample: float = 0.0,
        names: Iterable[str] | None = None,
        clip: bool = False,
    ) -> tuple[dict[str, Scalar], Changes]:
        """New values near `params`, and what changed; `params` themselves where constraints allow no others.

        Every parameter, or those of `names`, is moved by a factor drawn uniformly from `factors` (above 0, not 1),
        as its kind says, or with probability `resample` drawn from its prior instead. If some factors are above 1
        and some below, a move that would pass an end of the range turns back, and the chance of going up is such
        that chains of moves prefer no part of the range, if factors are near 1 and lead about as far up as down.
        With 0.5 and 2 they prefer the lower half of a linear range a little, with 0.9 and 2 more, and with 0.5
        and 1.2 the upper one. If all push in one direction, a value stops at the end.
        With `clip` all factors are alike, and numbers are multiplied and clipped into the range.

        Those that become active are drawn from their prior; those that become inactive are dropped. Only the
        constraints may be violated by `params`.
        """
        resample = as_share(resample, "resample")
        listing: Any = factors
        if not isinstance(listing, Iterable):
            raise SpaceError(f"factors must be a list of numbers, such as (0.8, 1.2), got {factors!r}")
        multipliers = tuple(as_real(factor, "a factor") for factor in factors)
        if not multipliers:
            raise SpaceError("factors is empty; give at least one, such as (0.8, 1.2)")
        if any(factor <= 0.0 or factor == 1.0 for factor in multipliers):
            raise SpaceError(f"every factor must be above 0 and not 1, got {multipliers!r}")
        return self._explore(params, rng, multipliers, resample, names, PERTURB_TRIES, clip=clip)

    def resample(
        self, params: Mapping[str, Any], rng: "np.random.Generator", names: Iterable[str] | None = None
    ) -> tuple[dict[str, Scalar], Changes]:
        """`params` with the named parameters, or all, drawn from their priors again; as `perturb` otherwise."""
        return self._explore(params, rng, (), 1.0, names, SAMPLE_TRIES)

    def cross(
        self,
        first: Mapping[str, Any],
        second: Mapping[str, Any],
        rng: "np.random.Generator",
        *,
        share: float = 0.5,
    ) -> tuple[dict[str, Scalar], Changes]:
        """Flat values from two parents, and what changed from the first ("crossed", "activated" or "dropped").

        What both have comes from the second with probability `share`; what only one has, from that one; what
        neither has is drawn. Parents may violate the constraints.
        """
        share = as_share(share, "share")
        old, other = self._check_params(first), self._check_params(second)

        def pick(name: str, parameter: Parameter, tried: int) -> tuple[Scalar, str]:
            if name not in old and name not in other:
                return parameter.draw(rng), "activated"
            if name not in old or (name in other and rng.random() < share):
                return other[name], "crossed"
            return old[name], "kept"

        values, ways = self._search_values(
            pick, PERTURB_TRIES, f"loosen the constraint; from {old!r} and {other!r}"
        )
        return values, self._changes(old, values, ways)

    def validate(self, params: Mapping[str, Any]) -> dict[str, Scalar]:
        """Flat or nested values in canonical form: flat, in order, plain values of the right type."""
        values = self._check_params(params)
        require(self._constraints, values)
        return values

    def with_defaults(self, params: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Flat values with the defaults of active parameters that they lack; nothing else is checked.

        So training can go on from trials that ran before a parameter was added.
        """
        values = dict(params)
        for name, parameter, needed in self._plan:
            if name not in values and parameter.default is not None and hold(needed, values):
                values[name] = parameter.default
        if len(values) == len(params):
            return params
        return {name: values[name] for name in self._parameters if name in values}

    def contains(self, params: Mapping[str, Any]) -> bool:
        """Whether `validate` would accept them."""
        try:
            values = self._check_params(params)
        except SpaceError:
            return False
        return find_violated(self._constraints, values) is None

    def config(self, reference: Callable[[Constraint], str]) -> dict[str, Any]:
        """A description in JSON types; `reference` gives the text for a constraint, as "module:function"."""
        # A list, since databases may reorder the keys of an object.
        return {
            "parameters": [describe_parameter(name, parameter) for name, parameter in self._parameters.items()],
            "constraints": [reference(constraint) for constraint in self._constraints],
            "initial": [dict(point) for point in self._initial],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], resolve: Callable[[str], Constraint]) -> "Space":
        """The space described by `config`; `resolve` returns the constraint for a text."""
        constraints = [resolve(text) for text in config.get("constraints", ())]
        parameters = dict(map(read_parameter, config["parameters"]))
        return cls(parameters, constraints=constraints, initial=config.get("initial", ()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space):
            return NotImplemented
        # As lists: the order of parameters decides which random number goes where.
        mine, theirs = list(self._parameters.items()), list(other._parameters.items())
        return (mine, self._constraints, self._initial) == (theirs, other._constraints, other._initial)

    def __hash__(self) -> int:
        return hash((tuple(self._parameters.items()), self._constraints))

    def __repr__(self) -> str:
        parts = [f"{{{', '.join(f'{name!r}: {parameter!r}' for name, parameter in self._parameters.items())}}}"]
        if self._constraints:
            parts.append(f"constraints=[{', '.join(map(name_of, self._constraints))}]")
        if self._initial:
            parts.append(f"initial={list(self._initial)!r}")
        return f"Space({', '.join(parts)})"

    def _explore(
        self,
        params: Mapping[str, Any],
        rng: "np.random.Generator",
        factors: tuple[float, ...],
        resample: float,
        names: Iterable[str] | None,
        tries: int,
        *,
        clip: bool = False,
    ) -> tuple[dict[str, Scalar], Changes]:
        old = self._check_params(params)
        movable = self._select_names(names)
        ups, downs = [factor for factor in factors if factor > 1.0], [factor for factor in factors if factor < 1.0]
        if clip or not ups or not downs:
            ups, downs = [*factors], []

        def pick(name: str, parameter: Parameter, tried: int) -> tuple[Scalar, str]:
            if name not in old:
                return parameter.draw(rng), "activated"
            if name not in movable:
                return old[name], "kept"
            if resample and rng.random() < resample:
                return parameter.draw(rng), "resampled"
            factor = ups[int(rng.random() * len(ups))]
            other = downs[int(rng.random() * len(downs))] if downs else None
            # `_checked` guarantees that the value has the parameter's type.
            move: Callable[..., tuple[Scalar, str]] = parameter.clipped if clip else parameter.perturb
            return move(old[name], factor, rng) if other is None else move(old[name], factor, rng, other)

        advice = f"loosen the constraint, or move other parameters; from {old!r}"
        values, ways = self._search_values(pick, tries, advice, otherwise=old)
        return values, self._changes(old, values, ways)

    def _search_values(
        self, pick: Pick, tries: int, advice: str, otherwise: dict[str, Scalar] | None = None
    ) -> tuple[dict[str, Scalar], dict[str, str]]:
        """Values of all active parameters that the constraints allow, and how `pick` came to each.

        Where all attempts are rejected it is `otherwise`, if the constraints allow that, else an error.
        """
        rejected, values = None, dict[str, Scalar]()
        for tried in range(tries):
            values, ways = {}, dict[str, str]()
            for name, parameter, needed in self._plan:
                if not needed or hold(needed, values):
                    values[name], ways[name] = pick(name, parameter, tried)
            values = self._sort_values(values)
            rejected = find_violated(self._constraints, values)
            if rejected is None:
                return values, ways
        if otherwise is not None and find_violated(self._constraints, otherwise) is None:
            return otherwise, {}
        named = "none" if rejected is None else name_of(rejected)
        raise SpaceError(f"the constraint {named} rejected the last of {tries} draws, {values!r}; {advice}")

    def _changes(self, old: dict[str, Scalar], new: dict[str, Scalar], ways: dict[str, str]) -> Changes:
        ways = {name: ways.get(name, "dropped") for name in self._parameters}
        return {
            name: {"from": old.get(name), "to": new.get(name), "by": way}
            for name, way in ways.items()
            if (name in old) != (name in new) or old.get(name) != new.get(name)
        }

    def _select_names(self, names: Iterable[str] | None) -> Iterable[str]:
        if names is None:
            return self._parameters.keys()
        if not isinstance(names, Iterable):
            raise SpaceError(f"names must be a list of parameters, got {names!r}")
        chosen = {names} if isinstance(names, str) else set(names)
        refuse_unknown(sorted(chosen), self._parameters)
        return chosen

    def _check_params(self, params: Mapping[str, Any]) -> dict[str, Scalar]:
        if not isinstance(params, Mapping):
            raise SpaceError(f"parameters must be a mapping from names to values, got {params!r}")
        flat = params
        if not params.keys() <= self._parameters.keys():
            flat = flatten(params)
            refuse_unknown(flat, self._parameters)
        values: dict[str, Scalar] = {}
        for name, parameter, needed in self._plan:
            if needed and not hold(needed, values):
                if name in flat:
                    raise SpaceError(f"{name}: must be absent, not {flat[name]!r}: {unmet(needed, values)}")
            elif name in flat:
                values[name] = run_check(parameter.check, flat[name], name)
            elif parameter.default is not None:
                values[name] = parameter.default
            else:
                raise SpaceError(f"{name}: has no value; give one from {parameter!r}")
        return self._sort_values(values)

    def _sort_values(self, values: dict[str, Scalar]) -> dict[str, Scalar]:
        return {name: values[name] for name in self._parameters if name in values}
