"""Search spaces: what the hyperparameters are, how they are drawn and how they are explored.

Pure: randomness comes in as a generator, and nothing here reads a clock or a file.
"""

from phyla.arguments import suggest_arguments
from phyla.space.conditions import Parameter
from phyla.space.declaration import Constraint
from phyla.space.discrete import Choice, Ordinal
from phyla.space.extension import check_extension
from phyla.space.numeric import Float, Int
from phyla.space.params import Params
from phyla.space.scalars import Scalar
from phyla.space.space import Change, Space

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
