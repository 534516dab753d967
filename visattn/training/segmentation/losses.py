"""Segmentation losses: Dice, focal, and supervision of attention gates by masks."""

from jaxtyping import Float, Integer, UInt8
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, binary_cross_entropy, cross_entropy, one_hot

from visattn.functional.numerics import without_autocast
from visattn.results.kinds import IGNORE_CLASS

Labels = Integer[Tensor, "b y x"] | UInt8[Tensor, "b y x"]


def dice_loss(
    logits: Float[Tensor, "b k y x"],
    labels: Labels,
    *,
    background: bool = False,
    smooth: float = 1.0,
) -> Float[Tensor, ""]:
    """Return 1 minus the Dice coefficient of the softmax, averaged over classes.

    Sums are over all pixels of the batch, in float32. A class without pixels in the batch adds no
    loss if it gets no probability.

    Pixels of the class 255 are ignored. With `background`, class 0 is included. `smooth`, in
    pixels, is added to numerator and denominator.

    Example:
        >>> labels = torch.tensor([[[0, 1, 255]]])
        >>> logits = torch.tensor([[[[50.0, -50.0, 0.0]], [[-50.0, 50.0, 0.0]]]])
        >>> dice_loss(logits, labels), dice_loss(-logits, labels, smooth=1e-6)
        (tensor(0.), tensor(1.0000))

    Source:
        Milletari et al. 2016, arXiv:1606.04797, section 3, with p instead of its square; the code
        of Attention U-Net adds the constant in the numerator twice, so that an absent class scores
        2.
    """
    with without_autocast(logits.device):
        # Predicted and true distributions over classes; zeros for ignored pixels.
        counted = labels != IGNORE_CLASS
        classes = one_hot(labels.long().masked_fill(~counted, 0), logits.shape[1])
        targets = (classes.permute(0, 3, 1, 2) * counted[:, None]).float()
        probabilities = logits.float().softmax(1) * counted[:, None]
        first = 0 if background else 1
        intersection = (probabilities * targets).sum((0, 2, 3))[first:]
        total = (probabilities + targets).sum((0, 2, 3))[first:]
        return 1 - ((2 * intersection + smooth) / (total + smooth)).mean()


def focal_loss(
    logits: Float[Tensor, "b k y x"],
    labels: Labels,
    *,
    gamma: float = 2.0,
) -> Float[Tensor, ""]:
    """Return the focal loss per pixel: cross-entropy weighted by (1 - p)^gamma.

    Example:
        >>> logits = torch.zeros(1, 2, 1, 1)
        >>> focal_loss(logits, torch.zeros(1, 1, 1, dtype=torch.long))
        tensor(0.1733)

    Source:
        Lin et al. 2017, arXiv:1708.02002, equation 4, over a softmax instead of sigmoids.
    """
    with without_autocast(logits.device):
        losses = _cross_entropy(logits, labels, "none")
        count = (labels != IGNORE_CLASS).sum().clamp(min=1)
        # The cross-entropy is -log p, so p is exp(-loss); rounding may take 1 - p below 0.
        return (losses * (1 - (-losses).exp()).clamp(min=0) ** gamma).sum() / count


def pixel_cross_entropy(logits: Float[Tensor, "b k y x"], labels: Labels) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of pixels in float32; 0 if all pixels are ignored.

    Example:
        >>> pixel_cross_entropy(torch.zeros(1, 2, 1, 1), torch.full((1, 1, 1), 255))
        tensor(0.)
    """
    total = _cross_entropy(logits, labels, "sum")
    return total / (labels != IGNORE_CLASS).sum().clamp(min=1)


def _cross_entropy(
    logits: Float[Tensor, "b k y x"], labels: Labels, reduction: str
) -> Float[Tensor, "*b"]:
    labels = labels.long()
    return cross_entropy(logits.float(), labels, ignore_index=IGNORE_CLASS, reduction=reduction)


def gate_supervision_loss(gates: Float[Tensor, "b gy gx"], labels: Labels) -> Float[Tensor, ""]:
    """Return the binary cross-entropy of a spatial gate against the object share of each cell.

    Cells are weighted by the share of their pixels that are not ignored. Class 0 is the background,
    every other class an object.

    Example:
        >>> labels = torch.tensor([[[0, 0, 1, 1]]])
        >>> good, bad = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[0.5, 0.5]]])
        >>> gate_supervision_loss(good, labels), gate_supervision_loss(bad, labels)
        (tensor(0.), tensor(0.6931))
    """
    with without_autocast(gates.device):
        size = (gates.shape[1], gates.shape[2])
        counted = (labels != IGNORE_CLASS)[:, None]
        objects = counted & (labels != 0)[:, None]
        weight = adaptive_avg_pool2d(counted.float(), size).squeeze(1)
        share = adaptive_avg_pool2d(objects.float(), size).squeeze(1) / weight.clamp(min=1e-6)
        losses = binary_cross_entropy(gates.float(), share.clamp(max=1), reduction="none")
        return (losses * weight).sum() / weight.sum().clamp(min=1e-6)
