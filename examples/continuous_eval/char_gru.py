"""A small language model over characters: one gated recurrent unit."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class CharGRU(nn.Module):
    """Predicts each character from those before it in its window.

    Args:
        vocabulary: number of characters.
        width: of the recurrent state.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width // 2)
        self.recurrent = nn.GRU(width // 2, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits of the next characters.

        Args:
            characters: integers of the shape (windows, length).

        Returns:
            Shape (windows, length, vocabulary).
        """
        states, _ = self.recurrent(self.embedding(characters))
        logits: Tensor = self.output(states)
        return logits


def losses(model: CharGRU, windows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the negative log-likelihood of each character but the first, in nats, and whether it was foreseen.

    Args:
        model: the model.
        windows: integers of the shape (windows, length + 1).

    Returns:
        Two of the shape (windows, length).
    """
    logits, targets = model(windows[:, :-1]), windows[:, 1:]
    nll = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    with torch.no_grad():
        return nll, logits.argmax(dim=-1) == targets
