"""timm models as classifiers with inserted attention blocks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from visattn.insertion.insertion import insert
from visattn.models.backbones.timm_weights import create_timm_backbone, load_timm_weights
from visattn.models.classifier import ImageClassifier, parse_block_name

Init = Literal["identity", "paper"]


class TimmClassifier(ImageClassifier):
    """timm model with a new head and attention blocks inserted at chosen positions.

    Args:
        class_names: Names of the classes, in the order of the logits.
        name: Name of the timm model.
        block: Registered name of the attention block; None or `none` for none.
        position: Position of the blocks: `residual`, before the addition of each residual unit;
            `stage_end`; or a pattern of module names, as in `visattn.insert`.
        stages: Stages that get blocks, counted from 1; None for all.
        init: `identity` initializes blocks so that the network's output is unchanged; `paper` uses
            the published initialization.
        block_kwargs: Further arguments of the blocks, such as `reduction`.
        img_size: Height and width of the input images, in pixels.
        pretrained: Whether to download timm's pretrained weights.
        weights: File or folder with pretrained weights instead, as in `read_state_dict`.
        freeze_bn: Whether batch norms of the backbone keep their running statistics during
            training. Those of the blocks are not frozen.
        freeze_backbone: Whether only the blocks and the head are trained, as `visattn.insert` does
            with `freeze=True`; without a block, a linear probe. Batch norms are frozen too.
        timm_kwargs: Further arguments of `timm.create_model`.
        grad_checkpointing: Whether training recomputes layers in the backward pass to save memory,
            as timm's `set_grad_checkpointing`.
        mean: Mean of each color channel, in [0, 1]; None for the model's own.
        std: Standard deviation of each color channel, in [0, 1]; None for the model's own.

    Raises:
        ValueError: If the name, the block, a position or an argument is unknown, both `pretrained`
            and `weights` are given, the file does not fit the model, or its batch norms were folded
            into the convolutions and `freeze_bn` is off.
        FileNotFoundError: If the file does not exist.

    Example:
        >>> model = TimmClassifier(("cat", "dog"), "test_resnet", block="se", img_size=(96, 64))
        >>> model(torch.zeros(1, 3, 96, 64, dtype=torch.uint8)).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        class_names: Sequence[str],
        name: str,
        *,
        block: str | None = None,
        position: str = "residual",
        stages: Sequence[int] | None = None,
        init: Init = "identity",
        block_kwargs: Mapping[str, Any] | None = None,
        img_size: tuple[int, int] = (224, 224),
        pretrained: bool = False,
        weights: str | None = None,
        freeze_bn: bool = False,
        freeze_backbone: bool = False,
        timm_kwargs: Mapping[str, Any] | None = None,
        grad_checkpointing: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        if pretrained and weights:
            raise ValueError("set either pretrained or weights, not both")
        model = create_timm_backbone(name, dict(timm_kwargs or {}), pretrained=pretrained)
        config = cast("dict[str, Any]", model.pretrained_cfg)
        super().__init__(class_names, img_size, mean or config["mean"], std or config["std"])
        if weights:
            load_timm_weights(model, name, Path(weights), dict(timm_kwargs or {}))
            if not (freeze_bn or freeze_backbone) and _batch_norms(model):
                _check_not_folded(model, weights)
        cast("Any", model).reset_classifier(len(self.class_names))
        self.name, self.block = name, parse_block_name(block)
        self.stages = None if stages is None else tuple(stages)
        self.block_kwargs, self.timm_kwargs = dict(block_kwargs or {}), dict(timm_kwargs or {})
        # A model rebuilt from its config gets its weights from its own file.
        self.pretrained, self.weights = False, None
        self.freeze_bn, self.freeze_backbone = freeze_bn, freeze_backbone
        self._backbone_norms = tuple(_batch_norms(model))  # before blocks add their own
        if self.block:
            example = torch.zeros(1, 3, *self.img_size)
            insert(
                model,
                self.block,
                position=position,
                stages=self.stages,
                example=example,
                init=init,
                **self.block_kwargs,
            )
        self.backbone = model
        for weight in self.parameter_groups()["backbone"] if freeze_backbone else ():
            weight.requires_grad = False
        self.grad_checkpointing = grad_checkpointing
        self.train()  # trainers keep the mode that they find

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, except frozen batch norms.

        Layers are recomputed in training mode only, since a recomputed layer would be recorded
        twice.

        Raises:
            ValueError: If layers were to be recomputed that timm cannot, or with batch norms.
        """
        super().train(mode)
        for norm in self._backbone_norms if self.freeze_bn or self.freeze_backbone else ():
            norm.training = False  # train() would also reach blocks inserted into it
        if self.grad_checkpointing:
            _set_grad_checkpointing(self.backbone, self.name, enable=mode)
        return self

    @property
    def head(self) -> nn.Module:
        """The final classification layer."""
        return cast("Any", self.backbone).get_classifier()

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        return self.backbone(images)


def _set_grad_checkpointing(model: nn.Module, name: str, *, enable: bool) -> None:
    if any(norm.training for norm in _batch_norms(model)):
        raise ValueError(
            f"grad_checkpointing must be false for {name}: its batch norms would count each batch "
            "twice; set freeze_bn"
        )
    try:
        cast("Any", model).set_grad_checkpointing(enable)
    except (AssertionError, AttributeError) as error:
        raise ValueError(f"grad_checkpointing must be false for {name}: timm has none") from error


def _batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _check_not_folded(model: nn.Module, file: str) -> None:
    """Refuse to train batch norms that were folded into the convolutions."""
    for norm in _batch_norms(model):
        mean, variance = norm.running_mean, norm.running_var
        if mean is None or variance is None or (mean != 0).any() or (variance != 1).any():
            return
    raise ValueError(
        f"all batch norms in {file} have mean 0 and variance 1: they were folded into the "
        "convolutions, and training with batch statistics would destroy the pretrained features; "
        "set freeze_bn=True"
    )
