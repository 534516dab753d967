"""Branches that are left out at random while a network learns."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.functional.tokens import random_tokens


class DropPath(nn.Module):
    """Leave a branch out, for each image by itself; what stays is scaled so that the mean does.

    Out of training nothing happens.

    Args:
        rate: How likely it is to be left out, in [0, 1].

    Raises:
        ValueError: If the rate is no probability.

    Example:
        >>> import torch
        >>> DropPath(1.0)(torch.ones(2, 1)), DropPath(1.0).eval()(torch.ones(1, 1))
        (tensor([[0.], [0.]]), tensor([[1.]]))

    Source:
        Huang et al. 2016, arXiv:1603.09382, section 3. Deviation: branches are scaled in
        training, as in dropout, and not when the network is used.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate <= 1:
            raise ValueError(f"the rate of dropping a path must lie in [0, 1], got {rate}")
        self.rate = rate

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the branch, of some images zero."""
        if not self.training or self.rate == 0:
            return x
        stays = 1 - self.rate
        drawn = x.new_empty((x.shape[0], *(1,) * (x.ndim - 1))).bernoulli_(stays)
        return x * (drawn / stays if stays else drawn)

    def extra_repr(self) -> str:
        """Return what is printed of it."""
        return f"{self.rate:g}"


class PatchDropout(nn.Module):
    """Leave out a share of the patches, for each image others; tokens before the grid stay.

    Out of training nothing happens. The layout says which are left, so that maps can place them.

    Args:
        rate: Share of the patches that is left out; one stays at least.

    Raises:
        ValueError: If the rate is not at least 0 and below 1.

    Example:
        >>> x, layout = PatchDropout(0.5)(torch.zeros(1, 5, 3), TokenLayout((2, 2), ("class",)))
        >>> x.shape, layout.kept.shape
        (torch.Size([1, 3, 3]), torch.Size([1, 2]))

    Source:
        Liu et al. 2022, arXiv:2208.07220, section 3.2. No positions are made anew.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"the share of patches to drop must be in [0, 1), got {rate}")
        self.rate = rate

    def forward(
        self, x: Float[Tensor, "b n c"], layout: TokenLayout
    ) -> tuple[Float[Tensor, "b m c"], TokenLayout]:
        """Return the tokens that are left, in their order, and their layout."""
        if not self.training or self.rate == 0:
            return x, layout
        before, patches = layout.before, x.shape[1] - layout.before
        count = max(1, int(patches * (1 - self.rate)))
        kept = random_tokens(x.shape[0], patches, count, device=x.device)
        always = torch.arange(before, device=x.device).expand(x.shape[0], -1)
        chosen = torch.cat((always, kept + before), 1)
        layout = layout._replace(kept=kept, rotation=_of(layout.rotation, chosen))
        return x.gather(1, chosen.unsqueeze(-1).expand(-1, -1, x.shape[2])), layout

    def extra_repr(self) -> str:
        """Return what is printed of it."""
        return f"{self.rate:g}"


def _of(rotation: tuple[Tensor, Tensor] | None, chosen: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the rotations of the chosen tokens, for each image its own."""
    if rotation is None:
        return None
    cosines, sines = (part[0, 0][chosen].unsqueeze(1) for part in rotation)
    return cosines, sines


class LayerScale(nn.Module):
    """Scale each channel.

    Args:
        width: Of a token.
        start: What every scale is at first.

    Example:
        >>> LayerScale(2, 0.5)(torch.ones(1, 1, 2))
        tensor([[[0.5000, 0.5000]]], grad_fn=<MulBackward0>)

    Source:
        Touvron et al. 2021, arXiv:2103.17239, equation 4.
    """

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(start)))

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Return the scaled branch."""
        return x * self.gamma
