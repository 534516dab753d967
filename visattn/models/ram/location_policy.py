"""Location policy: an isotropic Gaussian over the next glimpse location."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

InitLocation = Literal["random", "center", "learned", "context"]
Action = tuple[Tensor, Tensor]
"""Mean and sample of the Gaussian policy, before clamping to the image."""


class LocationPolicy(nn.Module):
    """Gaussian policy over locations on the image.

    The mean is a linear function of the hidden state without a squashing nonlinearity, so that its
    gradient never vanishes. A sample beyond the edge of the image is clamped; the clamping belongs
    to the environment, not to the policy.

    Args:
        hidden_size: Hidden size of the recurrent core.
        init_location: First location: uniformly `random`, the `center`, one `learned` location for
            all images, or one chosen as all others, from a state that knows the `context`.
        std: Standard deviation; the side of the image has length 2.
        learn_std: Whether the standard deviation is trained.

    Example:
        >>> policy = LocationPolicy(5, "center", 0.1, learn_std=False)
        >>> location, (mean, sample) = policy(torch.zeros(3, 5), torch.full((3, 2), 99.0))
        >>> location.max(), bool((sample - mean).min() > 9)
        (tensor(1.), True)

    Source:
        Mnih et al. 2014, arXiv:1406.6247, section 4.
    """

    def __init__(
        self, hidden_size: int, init_location: InitLocation, std: float, *, learn_std: bool
    ) -> None:
        super().__init__()
        self.init_location: InitLocation = init_location
        self.mean = nn.Linear(hidden_size, 2)
        self.init_mean = nn.Parameter(torch.zeros(2), requires_grad=init_location == "learned")
        self.log_std = nn.Parameter(torch.tensor(math.log(std)), requires_grad=learn_std)

    @property
    def std(self) -> Float[Tensor, ""]:
        """Standard deviation; the side of the image has length 2."""
        return self.log_std.exp()

    def initial_locations(self, noise: Float[Tensor, "r 2"]) -> tuple[Tensor, Action | None]:
        """Return the first locations, and the action if they are sampled from the policy.

        Args:
            noise: Standard normal noise; used only if the first location is learned.

        Raises:
            ValueError: If the learned location is not finite, in eval mode.
        """
        if self.init_location == "learned":
            return self._sample(self.init_mean.expand_as(noise), noise)
        if self.init_location == "center":
            return torch.zeros_like(noise), None
        return torch.rand_like(noise) * 2 - 1, None

    def forward(
        self, hidden_state: Float[Tensor, "r d"], noise: Float[Tensor, "r 2"]
    ) -> tuple[Tensor, Action]:
        """Return the next locations and the action.

        Args:
            hidden_state: Hidden state of the recurrent core.
            noise: Standard normal noise; zeros give the mean of the policy.

        Raises:
            ValueError: If a mean is not finite, in eval mode.
        """
        return self._sample(self.mean(hidden_state), noise)

    def _sample(self, mean: Tensor, noise: Tensor) -> tuple[Tensor, Action]:
        # In training a check would wait for the GPU at each glimpse: the loss is not finite either.
        checked = not (self.training or torch.compiler.is_compiling())
        if checked and not mean.isfinite().all():
            raise ValueError(
                "the location policy returns NaN or infinity, because the weights hold NaN or "
                "infinity: go back to an earlier checkpoint, and train with a lower learning rate "
                "or with gradient clipping"
            )
        sample = (mean + self.std * noise).detach().nan_to_num()
        return sample.clamp(-1, 1), (mean, sample)
