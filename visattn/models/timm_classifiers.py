"""Any backbone of timm as a classifier, with attention put into it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.surgery import insert
from visattn.models.backbones import load_backbone, timm_backbone
from visattn.models.classifiers import ImageClassifier, block_name

Init = Literal["identity", "paper"]


class TimmClassifier(ImageClassifier):
    """A network by its timm name with a new head, and an attention block at each of its sites.

    Args:
        classes: Names of the classes, in the order of the scores.
        name: A name that `timm.list_models()` knows.
        block: Name of the attention block in the catalogue; None or `none` for the network as it
            is.
        at: Where blocks are put: `residual`, before the addition of each residual unit;
            `stage_end`; or a pattern of module names, as `visattn.insert` takes it.
        stages: The stages that get blocks, the first of them 1; None for all.
        init: `identity` leaves what the network computes as it is at the start; `paper` begins with
            the block as published.
        options: What each block takes besides its width, such as `reduction`.
        size: Height and width, in pixels, of the pictures it is made for.
        pretrained: Whether to start from timm's own weights, which are downloaded.
        weights: Or a safetensors file to start from.
        arguments: More arguments of `timm.create_model`.
        mean: Mean of each colour channel, in [0, 1]; None for the network's own.
        std: Spread of each colour channel, in [0, 1]; None for the network's own.

    Raises:
        ValueError: If the name, the block, a site or an argument is unknown, if weights are asked
            for twice, or if the file does not fit the network.
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
            load_backbone(model, Path(weights))
        cast("Any", model).reset_classifier(len(self.classes))
        self.name, self.block, self.at = name, block_name(block), at
        self.stages = None if stages is None else tuple(stages)
        self.init: Init = init
        self.options, self.arguments = dict(options or {}), dict(arguments or {})
        # A model that is built again from its description gets its weights from its own file.
        self.pretrained, self.weights = False, None
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

    @property
    def head(self) -> nn.Module:
        """The last layer, the one that knows the classes."""
        return cast("Any", self.backbone).get_classifier()

    def classify(self, pictures: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the score of each class, before softmax, for normalised pictures."""
        return self.backbone(pictures)
