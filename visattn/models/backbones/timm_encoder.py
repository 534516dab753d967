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
)
from visattn.models.base import ImageEncoder


def network_after(backbone: nn.Module, frozen: Collection[nn.Module]) -> nn.Module:
    """Return a copy of a backbone in which the frozen modules are replaced by the identity.

    The remaining modules are shared with the backbone. If the frozen modules form a chain, the
    copy computes the rest of the backbone from the output of the last frozen module.

    Example:
        >>> import torch
        >>> whole = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 5)))
        >>> tail = network_after(whole, {whole[0]})
        >>> tail(torch.zeros(1, 3)).shape, tail[1] is whole[1]
        (torch.Size([1, 5]), True)
    """
    if backbone in frozen:
        return nn.Identity()
    if not any(module in frozen for module in backbone.modules()):
        return backbone
    # The copy shares all weights with the backbone: only its table of modules is its own.
    tail = copy.copy(backbone)
    children = {name: network_after(child, frozen) for name, child in backbone.named_children()}
    tail.__dict__["_modules"] = children
    return tail


def intermediate_output(
    backbone: nn.Module, last: nn.Module, images: Float[Tensor, "b 3 y x"]
) -> Float[Tensor, "b c gy gx"]:
    """Return the output of a module of a backbone, without running the modules after it.

    Raises:
        ValueError: If the module is not reached, or its output is not a grid.
    """
    outputs: list[object] = []

    def stop_after(_: nn.Module, __: object, output: object) -> None:
        outputs.append(output)
        raise _StopForwardError

    handle = last.register_forward_hook(stop_after)
    try:
        cast("Any", backbone).forward_features(images)
    except _StopForwardError:
        pass
    finally:
        handle.remove()
    if not outputs or not isinstance(outputs[0], Tensor) or outputs[0].ndim != 4:
        raise ValueError("the frozen part of the backbone does not output a feature grid")
    return outputs[0]


class _StopForwardError(Exception):
    """Stops the forward pass after the module whose output is needed."""


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
        weights: File with pretrained weights instead, as in `read_state_dict`.
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
        model = create_timm_backbone(name, dict(timm_kwargs or {}), pretrained=pretrained)
        config = cast("dict[str, Any]", model.pretrained_cfg)
        super().__init__(img_size, mean or config["mean"], std or config["std"])
        self.stage = tuple(stage) if isinstance(stage, Sequence) else stage
        self.name = name
        self.unfreeze_from_stage = unfreeze_from_stage
        self.freeze_bn = freeze_bn
        self.timm_kwargs = dict(timm_kwargs or {})
        # A model rebuilt from its config gets its weights from its own file.
        self.pretrained = False
        self.weights = None
        if weights:
            load_timm_weights(model, name, Path(weights), self.timm_kwargs)
        self.backbone = model
        self._selected_stages = self._stage_indices(self.stage)
        self._shapes = self._probe_shapes()
        self.channels = sum(channels for channels, _, _ in self._shapes)
        self.grid_size = max((shape[1:] for shape in self._shapes), key=math.prod)
        self._freeze()
        # In a tuple, so that shared modules are not registered twice.
        self._tail: tuple[nn.Module, ...] = ()
        self._split()

    @property
    def frozen(self) -> bool:
        """Whether `stage_features` has no trainable parameters."""
        modules = self._frozen if self._tail else [self.backbone]
        trainable = any(
            weight.requires_grad for module in modules for weight in module.parameters()
        )
        return not trainable and (self.unfreeze_from_stage is None or bool(self._tail))

    @property
    def stage_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, rows and columns of each of the `stage_features` of an image."""
        return self._shapes

    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage, or the output of the frozen part."""
        if self._tail:
            return (intermediate_output(self.backbone, self._last_frozen, images),)
        return self._run_stages(self.backbone, images)

    def run_trainable_stages(
        self, grids: Sequence[Float[Tensor, "b _ _ _"]]
    ) -> Sequence[Float[Tensor, "b _ _ _"]]:
        """Return the feature grid of each stage, after the trainable part.

        On a CPU, convolutions are computed without autocast: the backward pass of depthwise ones in
        bfloat16 takes three times as long as in float32.
        """
        if not self._tail:
            return grids
        convolutions = any(isinstance(module, nn.Conv2d) for module in self._tail[0].modules())
        on_cpu = grids[0].device.type == "cpu"
        with without_autocast(grids[0].device) if on_cpu and convolutions else nullcontext():
            return self._run_stages(self._tail[0], grids[0])

    def stage_feature_weights(self) -> dict[str, Tensor]:
        """Return the parameters and buffers that `stage_features` depends on."""
        if not self._tail:
            return super().stage_feature_weights()
        state = self.state_dict(keep_vars=True)
        frozen_ids = {
            id(tensor)
            for module in self._frozen
            for tensor in module.state_dict(keep_vars=True).values()
        }
        return {name: tensor.detach() for name, tensor in state.items() if id(tensor) in frozen_ids}

    def _split(self) -> None:
        """Split off the trainable part if the output of the frozen part is enough to compute it."""
        if not self.unfreeze_from_stage or not any(
            p.requires_grad for p in self.backbone.parameters()
        ):
            return
        tail = network_after(self.backbone, set(self._frozen))
        # On constant images different networks may agree, and random ones would disturb the random
        # state.
        images = torch.arange(3.0 * math.prod(self.img_size)).sin().view(1, 3, *self.img_size)
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                frozen_output = intermediate_output(self.backbone, self._last_frozen, images)
                from_tail = self._run_stages(tail, frozen_output)
                from_backbone = self._run_stages(self.backbone, images)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return  # the frozen modules do not form a chain: the whole backbone is run
        finally:
            self.train(training)
        if all(map(torch.equal, from_tail, from_backbone)):
            self._tail = (tail,)
            channels, rows, columns = frozen_output.shape[1:]  # pyright: ignore[reportAttributeAccessIssue]
            self._shapes = ((channels, rows, columns),)

    @property
    def _last_frozen(self) -> nn.Module:
        return self.backbone.get_submodule(self._stages[(self.unfreeze_from_stage or 0) - 1])

    def _run_stages(
        self, network: nn.Module, images: Float[Tensor, "b _ y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the feature grid of each stage from the backbone or its trainable part."""
        backbone = cast("Any", network)
        if self._selected_stages == (None,):
            return (self._as_grid(backbone.forward_features(images), images),)
        indices = sorted(stage for stage in self._selected_stages if stage is not None)
        with_final = None in self._selected_stages
        outputs = backbone.forward_intermediates(
            images,
            indices=indices,
            output_fmt="NCHW",
            intermediates_only=not with_final,
            stop_early=not with_final,
        )
        final, grids = outputs if with_final else (None, outputs)
        features: dict[int | None, Tensor] = dict(zip(indices, grids, strict=True))
        if final is not None:
            features[None] = self._as_grid(final, images)
        return tuple(features[stage] for stage in self._selected_stages)

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, except the frozen part."""
        super().train(mode)
        norms = [m for m in self.backbone.modules() if isinstance(m, _BatchNorm)]
        for module in [*self._frozen, *(norms if self.freeze_bn else ())]:
            module.train(mode=False)
        return self

    def _as_grid(
        self, features: object, images: Float[Tensor, "b _ y x"]
    ) -> Float[Tensor, "b c gy gx"]:
        """Convert the backbone's output (tokens, channels last or first) to a grid."""
        backbone = cast("Any", self.backbone)
        size_of = getattr(getattr(backbone, "patch_embed", None), "dynamic_feat_size", None)
        if isinstance(features, Tensor) and features.ndim == 3 and size_of:
            patches = features[:, getattr(backbone, "num_prefix_tokens", 0) :]
            rows, columns = size_of(images.shape[-2:])
            return patches.transpose(1, 2).unflatten(2, (int(rows), int(columns)))
        if not isinstance(features, Tensor) or features.ndim != 4:
            shape = tuple(getattr(features, "shape", ())) or "of several tensors"
            raise ValueError(
                f"the final features of {self.name} have shape {shape}, not a grid; set stage"
            )
        if getattr(backbone, "output_fmt", "NCHW") == "NHWC":
            return features.permute(0, 3, 1, 2)
        return features

    def _stage_indices(self, stage: int | tuple[int | None, ...] | None) -> tuple[int | None, ...]:
        """Return the indices of the selected stages, counted from the first."""
        count = len(self._stages)
        stages = stage if isinstance(stage, tuple) else (stage,)
        if invalid := [i for i in stages if i is not None and not -count <= i < count]:
            raise ValueError(f"{self.name} has {count} stages, got stage={invalid[0]}")
        indices = tuple(None if i is None else i % count for i in stages)
        if not indices or len(set(indices)) < len(indices):
            raise ValueError(
                f"stage must be one or several distinct stages of the {count} stages of "
                f"{self.name}, got {stage}"
            )
        return indices

    @torch.no_grad()
    def _probe_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Return the shapes of the feature grids of one image."""
        self.backbone.eval()
        images = torch.zeros(1, 3, *self.img_size)
        try:
            grids = self._run_stages(self.backbone, images)
        except AssertionError as error:  # raised by timm
            raise ValueError(
                f"{self.name} does not accept images of {self.img_size} (height, width): {error}; "
                "change img_size, or set timm_kwargs={'img_size': ...}"
            ) from error
        if None in self._selected_stages and len(grids) > 1:
            self._check_final(grids[self._selected_stages.index(None)], images)
        self.backbone.train()
        return tuple((grid.shape[1], grid.shape[2], grid.shape[3]) for grid in grids)

    def _check_final(self, final: Tensor, images: Float[Tensor, "b 3 y x"]) -> None:
        """Refuse backbones whose final features change when stages are requested as well."""
        expected = self._as_grid(cast("Any", self.backbone).forward_features(images), images)
        if expected.shape != final.shape or not torch.allclose(
            expected, final, rtol=1e-3, atol=1e-4
        ):
            raise ValueError(
                f"timm cannot return the final features of {self.name} together with those of its "
                "stages; use stage -1, the last one, instead of None"
            )

    @property
    def _stages(self) -> list[str]:
        """Return the names of the last modules of the backbone's stages."""
        info = cast("list[dict[str, Any]]", cast("Any", self.backbone).feature_info)
        return [str(stage["module"]) for stage in info]

    def _freeze(self) -> None:
        """Freeze everything before the first trainable stage."""
        modules = list(self.backbone.modules())
        # A module stands before its children in the list, so that those up to the last frozen one
        # include some that hold trained ones: of each, only its own parameters are frozen.
        before = modules[: self._count_frozen()]
        for parameter in self.backbone.parameters():
            parameter.requires_grad = True
        for module in before:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad = False
        # Modules that also hold trainable ones, such as the backbone itself, are not frozen.
        self._frozen = [
            module for module in before if not any(p.requires_grad for p in module.parameters())
        ]
        self.train(self.training)

    def _count_frozen(self) -> int:
        """Return the number of leading modules of the backbone that are frozen."""
        names = [name for name, _ in self.backbone.named_modules()]
        stages = self._stages
        if self.unfreeze_from_stage is None:
            return len(names)
        if not 0 <= self.unfreeze_from_stage <= len(stages):
            raise ValueError(
                f"unfreeze_from_stage must be from 0 to {len(stages)} for {self.name}, whose "
                f"stages end in {', '.join(stages)}; got {self.unfreeze_from_stage}"
            )
        if self.unfreeze_from_stage == 0:
            return 0
        end = stages[self.unfreeze_from_stage - 1]
        inside = [i for i, name in enumerate(names) if f"{name}.".startswith(f"{end}.")]
        if not inside:
            raise ValueError(
                f"{self.name} has no module {end} at the end of a stage: set unfreeze_from_stage "
                "to None or 0"
            )
        return inside[-1] + 1
