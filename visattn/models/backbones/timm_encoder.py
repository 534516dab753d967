"""timm backbones as image encoders, with a frozen and a trainable part."""

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from visattn.functional.numerics import without_autocast
from visattn.models.backbones.timm_classifier import (
    check_single_source,
    create_timm_backbone,
    load_timm_weights,
    weights_are_loaded,
)
from visattn.models.base import ImageEncoder

CHAINS = frozenset(
    {"ByobNet", "ConvNeXt", "EfficientNet", "GhostNet", "MobileNetV3", "NormFreeNet"}
    | {"RegNet", "ResNet", "ResNetV2", "RexNet"}
)
"""Timm classes whose stages pass on a single grid [b, c, y, x], which can be cached."""


def network_after(backbone: nn.Module, frozen: Collection[nn.Module]) -> nn.Module:
    """Return a copy of a backbone in which the frozen modules are replaced by the identity.

    The remaining modules are shared with the backbone, and containers are kept. If the frozen
    modules form a chain, the copy computes the rest from the output of the last frozen module.

        backbone:  stem -> layer1 -> layer2 -> layer3 -> layer4
        the copy:   id  ->   id   ->   id   -> layer3 -> layer4     frozen: up to layer2

    Example:
        >>> whole = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 5)))
        >>> tail = network_after(whole, {whole[0]})
        >>> tail(torch.zeros(1, 3)).shape, tail[1] is whole[1]
        (torch.Size([1, 5]), True)
    """
    if backbone in frozen and not isinstance(backbone, nn.Sequential):  # timm iterates over these
        return nn.Identity()
    if not any(module in frozen for module in backbone.modules()):
        return backbone
    # The copy shares all weights with the backbone and has only its own module table.
    tail = copy.copy(backbone)
    children = {name: network_after(child, frozen) for name, child in backbone.named_children()}
    tail.__dict__["_modules"] = children
    return tail


class TimmEncoder(ImageEncoder):
    """timm backbone as an image encoder.

    Frozen modules get no gradient and stay in evaluation mode, so that their running statistics
    do not change. If the frozen part passes a single grid to the trainable part, as in most CNNs,
    `stage_features` is the output of the frozen part, and can be cached.

    Args:
        name: Name of the timm model.
        img_size: Height and width of the input images, in pixels.
        stage: Index of the stage whose features are used, -1 for the last; None for the final
            features, including the layers between the last stage and the pooling. Or a list of
            these, whose grids are resized to the finest one and concatenated.
        unfreeze_from_stage: First trainable stage; everything before it is frozen. None: all
            frozen; 0: all trainable.
        freeze_bn: Whether batch norms of trainable stages keep their running statistics too, as
            small batches need.
        pretrained: Whether to download timm's pretrained weights.
        weights: File with pretrained weights instead, or `imagenet-classifier`, which comes with
            visattn.
        timm_kwargs: Further arguments of `timm.create_model`.
        mean: Mean of each color channel, in [0, 1]; None for the backbone's own.
        std: Standard deviation of each color channel, in [0, 1]; None for the backbone's own.

    Raises:
        ValueError: If the name, a stage or an argument is unknown, the backbone does not accept
            images of this size, its features are not a grid, both `pretrained` and `weights` are
            given, or the file does not fit the backbone.
        FileNotFoundError: If the file does not exist.

    Example:
        >>> encoder = TimmEncoder("test_resnet.r160_in1k", img_size=(96, 64))
        >>> encoder(torch.zeros(1, 3, 96, 64, dtype=torch.uint8)).shape
        torch.Size([1, 96, 3, 2])
    """

    def __init__(
        self,
        name: str,
        *,
        img_size: tuple[int, int] = (224, 224),
        stage: int | Sequence[int | None] | None = None,
        unfreeze_from_stage: int | None = None,
        freeze_bn: bool = False,
        pretrained: bool = False,
        weights: str | None = None,
        timm_kwargs: Mapping[str, Any] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        check_single_source(weights, pretrained=pretrained)
        arguments = dict(timm_kwargs or {})
        backbone: Any = create_timm_backbone(name, arguments, pretrained=pretrained)
        config = backbone.pretrained_cfg
        super().__init__(img_size, mean or config["mean"], std or config["std"])
        self.stage = tuple(stage) if isinstance(stage, Sequence) else stage
        self.timm_kwargs = arguments
        # A model rebuilt from its config gets its weights from its own file, not from `weights`.
        self.pretrained, self.weights = False, None
        self.random_weights = not (pretrained or weights)
        self.register_load_state_dict_post_hook(weights_are_loaded)
        if weights:
            load_timm_weights(backbone, name, Path(weights), arguments)
        self.backbone = backbone
        self.freeze_bn = freeze_bn
        ends = [str(each["module"]) for each in backbone.feature_info]
        selected = self.stage if isinstance(self.stage, tuple) else (self.stage,)
        counted = range(len(ends))
        self._stages = tuple(None if each is None else counted[each] for each in selected)
        self._frozen = self._freeze(ends, unfreeze_from_stage)
        self._cut = unfreeze_from_stage or 0
        # Selected stages follow the frozen ones, or are the last of these. A tuple keeps shared
        # modules from being registered twice.
        behind = all(each is None or each >= self._cut - 1 for each in self._stages)
        trained = any(weight.requires_grad for weight in backbone.parameters())
        split = self._cut > 0 and trained and behind and type(backbone).__name__ in CHAINS
        self._tail = (network_after(backbone, set(self._frozen)),) if split else ()
        with torch.no_grad():
            self.eval()
            cached = self.forward_features(torch.zeros(1, 3, *self.img_size))
            grids = self.run_trainable_stages(cached)
            self.train()
        self._shapes = tuple((each.shape[1], each.shape[2], each.shape[3]) for each in cached)
        self.channels = sum(grid.shape[1] for grid in grids)
        self.grid_size = max(((grid.shape[2], grid.shape[3]) for grid in grids), key=math.prod)

    @property
    def frozen(self) -> bool:
        """Whether `stage_features` has no trainable parameters."""
        modules = self._frozen if self._tail else [self.backbone]
        trained = any(weight.requires_grad for module in modules for weight in module.parameters())
        return not trained and (self.unfreeze_from_stage is None or bool(self._tail))

    @property
    def stage_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, rows and columns of each of the `stage_features` of an image."""
        return self._shapes

    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage, or the output of the frozen part."""
        if self._tail:
            return self._run(self.backbone, images, (self._cut - 1,))
        return self._run(self.backbone, images, self._stages)

    def run_trainable_stages(
        self, grids: Sequence[Float[Tensor, "b _ _ _"]]
    ) -> Sequence[Float[Tensor, "b _ _ _"]]:
        """Return the feature grid of each stage, after the trainable part.

        On a CPU, convolutions are computed without autocast: the backward pass of depthwise ones in
        bfloat16 takes three times as long as in float32.
        """
        if not self._tail:
            return grids
        device = grids[0].device
        with without_autocast(device) if device.type == "cpu" else nullcontext():
            return self._run(self._tail[0], grids[0], self._stages)

    def stage_feature_weights(self) -> dict[str, Tensor]:
        """Return the parameters and buffers that `stage_features` depends on."""
        if not self._tail:
            return super().stage_feature_weights()
        states = [module.state_dict(keep_vars=True) for module in self._frozen]
        frozen = {id(tensor) for state in states for tensor in state.values()}
        state = self.state_dict(keep_vars=True)
        return {name: tensor.detach() for name, tensor in state.items() if id(tensor) in frozen}

    def _run(
        self, network: nn.Module, x: Float[Tensor, "b _ y x"], stages: Sequence[int | None]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage from the backbone or its trainable part."""
        ends = len(cast("Any", self.backbone).feature_info)
        indices = sorted({ends - 1 if stage is None else stage for stage in stages})
        final = None in stages  # the features after the layers that follow the last stage
        run = cast("Any", network).forward_intermediates
        outputs = run(
            x, indices, output_fmt="NCHW", intermediates_only=not final, stop_early=not final
        )
        grids: dict[int | None, Tensor] = dict(
            zip(indices, outputs[1] if final else outputs, strict=True)
        )
        if final:
            grids[None] = self._as_grid(outputs[0], grids[ends - 1])
        return tuple(grids[stage] for stage in stages)

    def _as_grid(self, final: Tensor, last: Float[Tensor, "b _ y x"]) -> Float[Tensor, "b _ y x"]:
        """Return the final features on the grid of the last stage."""
        if final.ndim == 3:  # tokens: class tokens, then patches
            rows, columns = last.shape[2:]
            return final[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))
        is_last = getattr(self.backbone, "output_fmt", "NCHW") == "NHWC"
        return final.movedim(-1, 1) if is_last else final

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, except the frozen part."""
        super().train(mode)
        norms = [m for m in self.backbone.modules() if isinstance(m, _BatchNorm)]
        for module in [*self._frozen, *(norms if self.freeze_bn else ())]:
            module.train(mode=False)
        return self

    def _freeze(self, ends: Sequence[str], first: int | None) -> list[nn.Module]:
        """Freeze everything before the first trainable stage; return the frozen modules."""
        names = [f"{name}." for name, _ in self.backbone.named_modules()]
        count = len(names)
        if first is not None:
            # Modules come before their children, so containers of trainable modules may precede the
            # last frozen one: only the direct parameters of each module are frozen.
            last = f"{ends[first - 1]}." if first else " "
            count = max((i + 1 for i, name in enumerate(names) if name.startswith(last)), default=0)
        before = list(self.backbone.modules())[:count]
        for module in before:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad = False
        return [m for m in before if not any(p.requires_grad for p in m.parameters())]
