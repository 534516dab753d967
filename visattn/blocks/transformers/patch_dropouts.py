"""Patches that are left out at random while a network learns."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.transformers.token_layouts import TokenLayout
from visattn.functional.kept_tokens import random_tokens


class PatchDropout(nn.Module):
    """Leave out a share of the patches, for each picture others; tokens before the grid stay.

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
    """Return the rotations of the chosen tokens, for each picture its own."""
    if rotation is None:
        return None
    cosines, sines = (part[0, 0][chosen].unsqueeze(1) for part in rotation)
    return cosines, sines
