"""Any backbone of timm as a classifier, with attention put into it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from visattn.insertion.insertion import insert
from visattn.models.backbones.timm_weights import load_timm_weights, timm_backbone
from visattn.models.classifier import ImageClassifier, block_name

Init = Literal["identity", "paper"]


class TimmClassifier(ImageClassifier):
    """A network by its timm name with a new head, and an attention block at each of its sites.

    Args:
        classes: Names of the classes, in the order of the scores.
        name: A name that `timm.list_models()` knows.
        block: Name of the attention block in the catalog; None or `none` for the network as it
            is.
        at: Where blocks are put: `residual`, before the addition of each residual unit;
            `stage_end`; or a pattern of module names, as `visattn.insert` takes it.
        stages: The stages that get blocks, the first of them 1; None for all.
        init: `identity` leaves what the network computes as it is at the start; `paper` begins with
            the block as published.
        options: What each block takes besides its width, such as `reduction`.
        size: Height and width, in pixels, of the images it is made for.
        pretrained: Whether to start from timm's own weights, which are downloaded.
        weights: Or a file or folder of weights to start from, as `read_state_dict` takes it.
        fixed_norms: Whether batch norms of the network keep the means and variances that they came
            with, also in training. Those of the blocks do not.
        arguments: More arguments of `timm.create_model`.
        mean: Mean of each color channel, in [0, 1]; None for the network's own.
        std: Spread of each color channel, in [0, 1]; None for the network's own.

    Raises:
        ValueError: If the name, the block, a site or an argument is unknown, if weights are asked
            for twice, if the file does not fit the network, or if its batch norms were folded into
            its convolutions and are not fixed.
        FileNotFoundError: If there is no such file.

    Example:
        >>> model = TimmClassifier(("cat", "dog"), "test_resnet", block="se", size=(96, 64))
        >>> model(torch.zeros(1, 3, 96, 64, dtype=torch.uint8)).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        classes: Sequence[str],
        name: str,
        *,
        block: str | None = None,
        at: str = "residual",
        stages: Sequence[int] | None = None,
        init: Init = "identity",
        options: Mapping[str, Any] | None = None,
        size: tuple[int, int] = (224, 224),
        pretrained: bool = False,
        weights: str | None = None,
        fixed_norms: bool = False,
        arguments: Mapping[str, Any] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        if pretrained and weights:
            raise ValueError("weights come from timm or from a file, not both: drop one of them")
        model = timm_backbone(name, dict(arguments or {}), pretrained=pretrained)
        config = cast("dict[str, Any]", model.pretrained_cfg)
        super().__init__(classes, size, mean or config["mean"], std or config["std"])
        if weights:
            load_timm_weights(model, name, Path(weights), dict(arguments or {}))
            if not fixed_norms and _norms(model):
                _check_norms(model, weights)
        cast("Any", model).reset_classifier(len(self.classes))
        self.name, self.block, self.at = name, block_name(block), at
        self.stages = None if stages is None else tuple(stages)
        self.init: Init = init
        self.options, self.arguments = dict(options or {}), dict(arguments or {})
        # A model that is built again from its description gets its weights from its own file.
        self.pretrained, self.weights = False, None
        self.fixed_norms = fixed_norms
        self._norms = tuple(_norms(model))  # before blocks bring their own
        if self.block:
            example = torch.zeros(1, 3, *self.size)
            insert(
                model,
                self.block,
                at=at,
                stages=self.stages,
                example=example,
                init=init,
                **self.options,
            )
        self.backbone = model
        self.train()  # trainers take modes as they find them

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, all but norms that are fixed."""
        super().train(mode)
        for norm in self._norms if self.fixed_norms else ():
            norm.training = False  # train() would reach the blocks that hang on it
        return self

    @property
    def head(self) -> nn.Module:
        """The last layer, the one that knows the classes."""
        return cast("Any", self.backbone).get_classifier()

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the score of each class, before softmax, for normalized images."""
        return self.backbone(images)


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _check_norms(model: nn.Module, file: str) -> None:
    """Refuse to train norms that were folded into the convolutions before them."""
    for norm in _norms(model):
        mean, variance = norm.running_mean, norm.running_var
        if mean is None or variance is None or (mean != 0).any() or (variance != 1).any():
            return
    raise ValueError(
        f"the batch norms in {file} have means of 0 and variances of 1 throughout: they were "
        "folded into the convolutions, and with the means of a batch in their place the network "
        "forgets all that it knows; say fixed_norms=True"
    )
