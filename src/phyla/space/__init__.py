"""Search spaces: hyperparameters, how to draw them, and how to explore them.

Pure: randomness comes in as a generator, and nothing here reads a clock or a file.
"""

from phyla.space.choices import Choice, Ordinal
from phyla.space.declaration import Constraint, Parameter, check_extension
from phyla.space.params import Params, Scalar, run_check
from phyla.space.ranges import Float, Int
from phyla.space.space import Changes, Space
from phyla.validation import suggest_arguments

__all__ = [
    "Changes",
    "Choice",
    "Constraint",
    "Float",
    "Int",
    "Ordinal",
    "Parameter",
    "Params",
    "Scalar",
    "Space",
    "check_extension",
    "run_check",
]

suggest_arguments(Choice, Float, Int, Ordinal)
