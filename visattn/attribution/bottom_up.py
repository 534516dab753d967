"""Where an eye is drawn before it knows what it sees: maps that ask no model."""

from jaxtyping import Float
from torch import Tensor

from visattn.attribution.perturbation import colored
from visattn.attribution.targets import Target
from visattn.functional.saliency.itti_koch import saliency
from visattn.functional.saliency.spectral_residual import spectral_residual
from visattn.recording.model_info import ExplainedModel


def itti_koch(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,  # noqa: ARG001 (as of all methods)
) -> Float[Tensor, "b y x"]:
    """Return how far each place stands out by brightness, color and the direction of stripes.

    Args:
        subject: Says how the images were normalized.
        images: Normalized.
        target: Not asked.

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis".
    """
    return saliency(colored(images, subject.card))


def unexpected_spectrum(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,  # noqa: ARG001 (as of all methods)
    *,
    side: int = 64,
    blur: float = 2.5,
) -> Float[Tensor, "b gy gx"]:
    """Return how unexpected each place is by the spectrum of the image.

    Args:
        subject: Says how the images were normalized.
        images: Normalized.
        target: Not asked.
        side: Rows or columns of the map, whichever are fewer.
        blur: Standard deviation by which it is smoothed, in its places.

    Raises:
        ValueError: If side is below 1, or blur not above 0.

    Source:
        Hou and Zhang 2007, "Saliency Detection: A Spectral Residual Approach".
    """
    return spectral_residual(colored(images, subject.card), side=side, blur=blur)
