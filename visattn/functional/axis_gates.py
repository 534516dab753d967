"""Gates that look along one axis at a time: rows, columns, or channels against either."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.pools import maxima, means


def strip_means(
    x: Float[Tensor, "b c y x"],
) -> tuple[Float[Tensor, "b c y"], Float[Tensor, "b c x"]]:
    """Return the mean of each row, and that of each column.

    Example:
        >>> import torch
        >>> strip_means(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        (tensor([[[2., 6.]]]), tensor([[[3., 5.]]]))

    Source:
        Hou et al. 2021, arXiv:2103.02907, equations 4 and 5.
    """
    return means(x, (3,)), means(x, (2,))


def coordinate_gate(
    rows: Float[Tensor, "b c y"], columns: Float[Tensor, "b c x"]
) -> Float[Tensor, "b c y x"]:
    """Return the gate of each place: that of its row times that of its column.

    Example:
        >>> import torch
        >>> coordinate_gate(torch.tensor([[[0.5, 1.0]]]), torch.tensor([[[0.5, 1.0]]]))
        tensor([[[[0.2500, 0.5000],
                  [0.5000, 1.0000]]]])

    Source:
        Hou et al. 2021, arXiv:2103.02907, equation 9.
    """
    return rows.unsqueeze(3) * columns.unsqueeze(2)


def axis_pools(x: Float[Tensor, "b c y x"], axis: int) -> Float[Tensor, "b 2 p q"]:
    """Return the maxima over an axis, and the means: a picture of two channels of the other axes.

    Args:
        x: Features.
        axis: 1 leaves rows and columns, 2 channels and columns, 3 channels and rows.

    Example:
        >>> import torch
        >>> axis_pools(torch.tensor([[[[1.0]], [[3.0]]]]), 1)
        tensor([[[[3.]],
                 [[2.]]]])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equation 1 (the Z-pool).
    """
    return torch.stack((maxima(x, axis), means(x, (axis,))), dim=1)


def triplet_gate(
    places: Float[Tensor, "b y x"],
    rows: Float[Tensor, "b c y"],
    columns: Float[Tensor, "b c x"],
) -> Float[Tensor, "b c y x"]:
    """Return the gate of each place in each channel: the mean of three that know two axes each.

    The mean of the gates does to features what the mean of three gated copies does, without them.

    Example:
        >>> import torch
        >>> triplet_gate(torch.tensor([[[0.3]]]), torch.tensor([[[0.6]]]), torch.tensor([[[0.9]]]))
        tensor([[[[0.6000]]]])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equation 3.
    """
    crossed = (rows / 3).unsqueeze(3) + (columns / 3).unsqueeze(2)
    # In the memory that is ours already: no slope of a sum needs what was added.
    return crossed.add_((places / 3).unsqueeze(1))
