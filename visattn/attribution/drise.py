"""D-RISE: RISE for the box of a detector."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.bound_targets import BoundBox
from visattn.attribution.perturbation import Baseline, rise
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.attribution.variants import evaluate_target
from visattn.recording.frozen_model import frozen
from visattn.recording.model_info import ExplainedModel


@method("drise", title="D-RISE", paper="arXiv:2006.03204", needs="boxes")
def drise(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    num_masks: int = 1000,
    grid_size: int = 16,
    keep_probability: float = 0.5,
    baselines: Baseline = "mean",
    seed: int = 0,
    internal_batch_size: int = 8,
) -> Float[Tensor, "b y x"]:
    """D-RISE: the mean of random masks, weighted by how well the box is still detected.

    The weight of a mask is the highest IoU · class similarity · objectness of any detection on the
    masked image. If a detector returns one class for each box, as torchvision's do, class
    similarity is its score if the class is the target's, else 0.

    Args:
        explained: The model, a detector.
        images: Normalized.
        target: A bound `BoxTarget`.
        num_masks: Number of masks; the paper uses 5000.
        grid_size: Cells along a side of a mask.
        keep_probability: Probability that a cell stays visible.
        baselines: Color of hidden pixels: `mean`, `black` (as in the paper) or `white`.
        seed: Of the masks.
        internal_batch_size: Images in one forward pass.

    Raises:
        TypeError: If the target is no box.
        ValueError: If nothing is detected at the box, or an argument is out of range.

    Source:
        Petsiuk et al. 2021, arXiv:2006.03204, equations 1 to 5.
    """
    if not isinstance(target, BoundBox):
        raise TypeError(
            "drise explains a box of a detector: pass target=BoxTarget((left, top, right, bottom), "
            f"'class'); got {type(target).__name__}"
        )
    with frozen(explained.model), torch.no_grad():
        evaluate_target(explained, images[None], target)
    return rise(
        explained,
        images,
        _Similarity(target),
        num_masks=num_masks,
        grid_size=grid_size,
        keep_probability=keep_probability,
        baselines=baselines,
        seed=seed,
        internal_batch_size=internal_batch_size,
    )


class _Similarity:
    """The similarity of the detections of an output to a box, as a target."""

    def __init__(self, target: BoundBox) -> None:
        self.num_images, self.similarity = target.num_images, target.similarity

    def __call__(self, output: object) -> Float[Tensor, " mb"]:
        return self.similarity(output)
