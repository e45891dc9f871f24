"""Confusion matrix of a classifier."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from phyla.errors import MetricInvalid, MetricMismatch
from phyla.evaluation.metric import Label, Stored, as_array, as_count


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion(Stored):
    """How often each class was taken for each: accuracy, precision, recall and F1.

    Attributes:
        labels: the classes, all different, at least one; text or integers.
        matrix: one row per true class, one column per predicted class, in the order of the labels; all 0 if empty.
    """

    labels: Sequence[Label]
    matrix: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        labels = tuple(_label(label) for label in self.labels)
        if not labels or len(set(labels)) != len(labels):
            raise MetricInvalid(f"Confusion(labels={labels!r}): name each class once, and at least one")
        rows = [tuple(as_count(count, "Confusion: a count") for count in row) for row in self.matrix]
        matrix = tuple(rows) or ((0,) * len(labels),) * len(labels)
        if {len(matrix), *map(len, matrix)} != {len(labels)}:
            raise MetricInvalid(f"Confusion: {len(labels)} labels need as many rows and columns, got {rows!r}")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "matrix", matrix)

    @classmethod
    def of(cls, truth: object, predicted: object, *, labels: Sequence[Label]) -> Self:
        """Return the confusion of two array-likes of labels, of equal shape."""
        empty = cls(labels=labels)
        true, guessed = as_array(truth, "truth"), as_array(predicted, "predicted")
        if true.shape != guessed.shape:
            raise MetricInvalid(
                f"truth has shape {true.shape}, predicted {guessed.shape}; give one predicted label per true label"
            )
        counts = Counter(zip(true.ravel().tolist(), guessed.ravel().tolist(), strict=True))
        for label in {label for pair in counts for label in pair}.difference(empty.labels):
            raise MetricInvalid(f"{label!r} is not among the labels {list(empty.labels)!r}")
        return cls(labels=labels, matrix=[[counts[t, p] for p in empty.labels] for t in empty.labels])

    @property
    def count(self) -> int:
        """How many samples it has seen."""
        return sum(map(sum, self.matrix))

    def _merged(self, other: Self) -> Self:
        if self.labels != other.labels:
            raise MetricMismatch(
                f"a Confusion of the labels {self.labels!r} cannot be merged with one of {other.labels!r}; always "
                "give all classes in one order"
            )
        return type(self)(labels=self.labels, matrix=np.add(self.matrix, other.matrix).tolist())

    def summary(self) -> dict[str, float]:
        """Return the accuracy, "stderr", "n", and "precision", "recall" and "f1" of each class and on average.

        Those of the class `cat` are "precision_cat" and so on; those without a class are macro averages. A class
        that neither occurs nor is predicted has none of them (nan) and is left out of the averages. Of a class
        that is never predicted the precision is 0, of one that never occurs the recall; F1 is
        2 tp / (2 tp + fp + fn).
        """
        matrix = np.asarray(self.matrix, dtype=float)
        hits, true, guessed = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
        seen = true + guessed > 0
        classes = {
            "precision": hits / np.maximum(guessed, 1),
            "recall": hits / np.maximum(true, 1),
            "f1": 2 * hits / np.maximum(true + guessed, 1),
        }
        n = self.count
        accuracy = float(hits.sum()) / n if n else math.nan
        # As the Moments of a 1 per hit and a 0 per miss.
        known = {"stderr": math.sqrt(accuracy * (1 - accuracy) / (n - 1))} if n > 1 else {}
        macro = {name: float(values[seen].mean()) if seen.any() else math.nan for name, values in classes.items()}
        each = {
            f"{name}_{label}": float(value) if occurs else math.nan
            for name, values in classes.items()
            for label, value, occurs in zip(self.labels, values, seen, strict=True)
        }
        return {"": accuracy, **known, "n": float(n), **macro, **each}


def _label(label: object) -> Label:
    # Numpy's integers and texts become plain ones.
    plain = label.item() if isinstance(label, np.generic) else label
    if isinstance(plain, bool) or not isinstance(plain, str | int):
        raise MetricInvalid(f"Confusion: a label is a text or an integer, got {label!r}")
    return plain
