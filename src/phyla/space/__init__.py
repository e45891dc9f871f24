"""Search spaces: what the hyperparameters are, how they are drawn and how they are explored.

Pure: randomness comes in as a generator, and nothing here reads a clock or a file.
"""

from phyla.arguments import suggest_arguments
from phyla.space.conditions import Parameter
from phyla.space.constraints import Constraint
from phyla.space.discrete import Choice, Ordinal
from phyla.space.extension import check_extension
from phyla.space.integer import Int
from phyla.space.real import Float
from phyla.space.scalars import Scalar
from phyla.space.space import Change, Space
from phyla.space.values import Params

__all__ = [
    "Change",
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
]

suggest_arguments(
    Choice,
    Float,
    Int,
    Ordinal,
)
