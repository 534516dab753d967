"""What decides where to look: a Gaussian around a place read off from what is remembered."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

Start = Literal["random", "center", "learned"]
Action = tuple[Tensor, Tensor]
"""Mean and sample of a choice, neither of them cut off at the image's edge."""


class LocationPolicy(nn.Module):
    """Choose places on the image.

    The mean is a linear reading with nothing that flattens it: at any mean there is a gradient. A
    sample beyond the edge leads to the edge; that is the world's doing and not the policy's.

    Args:
        width: Numbers that are remembered.
        start: Where the first glimpse lies: anywhere (`random`), in the `center`, or at a place
            that is `learned`, the same for all images.
        spread: Standard deviation; 2 is a side of the image.
        learn_spread: Let training change the spread.

    Example:
        >>> policy = LocationPolicy(5, "center", 0.1, learn_spread=False)
        >>> place, (mean, sample) = policy(torch.zeros(3, 5), torch.full((3, 2), 99.0))
        >>> place.max(), bool((sample - mean).min() > 9)
        (tensor(1.), True)

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4.
    """

    def __init__(self, width: int, start: Start, spread: float, *, learn_spread: bool) -> None:
        super().__init__()
        self.start: Start = start
        self.mean = nn.Linear(width, 2)
        self.first = nn.Parameter(torch.zeros(2), requires_grad=start == "learned")
        self.log_spread = nn.Parameter(torch.tensor(math.log(spread)), requires_grad=learn_spread)

    @property
    def spread(self) -> Float[Tensor, ""]:
        """Standard deviation, in units of which a side of the image has 2."""
        return self.log_spread.exp()

    def begin(self, noise: Float[Tensor, "r 2"]) -> tuple[Tensor, Action | None]:
        """Return the first places and, if they are chosen, the choice.

        Args:
            noise: How far samples are off their means, in spreads; it counts only where the first
                place is learned.

        Raises:
            ValueError: If the learned place is no number.
        """
        if self.start == "learned":
            return self._chosen(self.first.expand_as(noise), noise)
        if self.start == "center":
            return torch.zeros_like(noise), None
        return torch.rand_like(noise) * 2 - 1, None

    def forward(
        self, state: Float[Tensor, "r d"], noise: Float[Tensor, "r 2"]
    ) -> tuple[Tensor, Action]:
        """Return the next places, and the choice of them.

        Args:
            state: What is remembered.
            noise: How far samples are off their means, in spreads.

        Raises:
            ValueError: If a mean is no number.
        """
        return self._chosen(self.mean(state), noise)

    def _chosen(self, mean: Tensor, noise: Tensor) -> tuple[Tensor, Action]:
        if not torch.compiler.is_compiling() and not mean.isfinite().all():
            raise ValueError(
                "the policy gives places that are no numbers: the weights hold NaN or infinity; "
                "go back to an earlier checkpoint, and train with a lower rate or clipped gradients"
            )
        sample = (mean + self.spread * noise).detach()
        return sample.clamp(-1, 1), (mean, sample)
