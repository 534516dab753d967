"""The part of a backbone that follows what is frozen, as a network of its own."""

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from visattn.models.backbones.timm_weights import load_timm_weights, timm_backbone
from visattn.models.encoder import ImageEncoder


def tail_after(backbone: nn.Module, frozen: Collection[nn.Module]) -> nn.Module:
    """Return a backbone in which the frozen modules hand on what they are given.

    All else in it are the very modules of the backbone: what trains one trains both. It takes what
    the last frozen module gives, if the frozen ones form a chain; `continues` tells.

    Example:
        >>> import torch
        >>> whole = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 5)))
        >>> tail = tail_after(whole, {whole[0]})
        >>> tail(torch.zeros(1, 3)).shape, tail[1] is whole[1]
        (torch.Size([1, 5]), True)
    """
    if backbone in frozen:
        return nn.Identity()
    if not any(module in frozen for module in backbone.modules()):
        return backbone
    tail = copy.copy(backbone)
    parts = {name: tail_after(part, frozen) for name, part in backbone.named_children()}
    tail.__dict__["_modules"] = parts
    return tail


def output_of(
    backbone: nn.Module, last: nn.Module, images: Float[Tensor, "b 3 y x"]
) -> Float[Tensor, "b c gy gx"]:
    """Return what a module of a backbone gives; nothing after it is run.

    Raises:
        ValueError: If it is not reached, or gives no grid.
    """
    given: list[object] = []

    def keep(_: nn.Module, __: object, output: object) -> None:
        given.append(output)
        raise _ReachedError

    handle = last.register_forward_hook(keep)
    try:
        cast("Any", backbone).forward_features(images)
    except _ReachedError:
        pass
    finally:
        handle.remove()
    if not given or not isinstance(given[0], Tensor) or given[0].ndim != 4:
        raise ValueError("the backbone does not pass a grid from its frozen part to the rest")
    return given[0]


class _ReachedError(Exception):
    """What was to run has run."""


class TimmEncoder(ImageEncoder):
    """A backbone by its timm name, as a grid of features.

    What is frozen takes no gradient and stays in evaluation mode while the rest trains, so that
    its running statistics do not drift. Where a frozen beginning hands one grid to the trained
    rest, as in most CNNs, `grids` are those of the beginning, and may be kept.

    Args:
        name: A name that `timm.list_models()` knows.
        size: Height and width, in pixels, of the images it is made for.
        stage: Which of the backbone's stages gives the grid, -1 for the last; None for its final
            features, with whatever layers stand between the last stage and the pooling. Or a list
            of these: one pass then gives all their grids, which are laid onto the finest.
        train_from: First stage that is trained; everything before it stays frozen. None: all
            frozen, 0: all trained.
        fixed_norms: Whether batch norms of trained stages keep their statistics too, as batches of
            a few photos ask for.
        pretrained: Whether to start from timm's own weights, which are downloaded.
        weights: Or a file or folder of weights to start from, as `read_state_dict` takes it.
        arguments: More arguments of `timm.create_model`.
        mean: Mean of each color channel, in [0, 1]; None for the backbone's own.
        std: Spread of each color channel, in [0, 1]; None for the backbone's own.

    Raises:
        ValueError: If the name, a stage or an argument is unknown, if the backbone does not take
            images of this size or its features are no grid, if weights are asked for twice, or
            if the file does not fit the backbone.
        FileNotFoundError: If there is no such file.

    Example:
        >>> encoder = TimmEncoder("test_resnet.r160_in1k", size=(96, 64))
        >>> encoder(torch.zeros(1, 3, 96, 64, dtype=torch.uint8)).shape
        torch.Size([1, 96, 3, 2])
    """

    def __init__(
        self,
        name: str,
        *,
        size: tuple[int, int] = (224, 224),
        stage: int | Sequence[int | None] | None = None,
        train_from: int | None = None,
        fixed_norms: bool = False,
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
        super().__init__(size, mean or config["mean"], std or config["std"])
        self.stage = tuple(stage) if isinstance(stage, Sequence) else stage
        self.name, self.train_from, self.fixed_norms = name, train_from, fixed_norms
        self.arguments = dict(arguments or {})
        # A model that is built again from its description gets its weights from its own file.
        self.pretrained, self.weights = False, None
        if weights:
            load_timm_weights(model, name, Path(weights), self.arguments)
        self.backbone = model
        self._wanted = self._numbered(self.stage)
        self._shapes = self._probe()
        self.channels = sum(channels for channels, _, _ in self._shapes)
        self.grid = max((shape[1:] for shape in self._shapes), key=math.prod)
        self._freeze()
        self._tail: tuple[nn.Module, ...] = ()  # in a tuple, as its modules are those of backbone
        self._cut_in_two()

    @property
    def frozen(self) -> bool:
        """Whether nothing that `grids` does is trained."""
        kept = self._frozen if self._tail else [self.backbone]
        trained = any(parameter.requires_grad for part in kept for parameter in part.parameters())
        return not trained and (self.train_from is None or bool(self._tail))

    @property
    def stage_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, rows and columns of each of the `grids` of an image."""
        return self._shapes

    def features(self, images: Float[Tensor, "b 3 y x"]) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the grid of each stage, or what the trained rest takes, from one pass."""
        if self._tail:
            return (output_of(self.backbone, self._last_frozen, images),)
        return self._stages_of(self.backbone, images)

    def finished(
        self, grids: Sequence[Float[Tensor, "b _ _ _"]]
    ) -> Sequence[Float[Tensor, "b _ _ _"]]:
        """Return the grid of each stage, after the trained rest if `grids` ends before it."""
        return self._stages_of(self._tail[0], grids[0]) if self._tail else grids

    def kept_weights(self) -> dict[str, Tensor]:
        """Return the weights and statistics that `grids` depends on."""
        if not self._tail:
            return super().kept_weights()
        every = self.state_dict(keep_vars=True)
        kept = {
            id(tensor)
            for part in self._frozen
            for tensor in part.state_dict(keep_vars=True).values()
        }
        return {name: tensor.detach() for name, tensor in every.items() if id(tensor) in kept}

    def _cut_in_two(self) -> None:
        """Make the trained rest a network of its own, if its frozen beginning allows that."""
        if not self.train_from or not any(p.requires_grad for p in self.backbone.parameters()):
            return
        tail = tail_after(self.backbone, set(self._frozen))
        waves = torch.arange(3.0 * math.prod(self.size)).sin().view(1, 3, *self.size)
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                kept = output_of(self.backbone, self._last_frozen, waves)
                again = self._stages_of(tail, kept)
                whole = self._stages_of(self.backbone, waves)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return  # no chain of modules that pass a grid on: the whole is run each time
        finally:
            self.train(training)
        if all(map(torch.equal, again, whole)):
            self._tail = (tail,)
            self._shapes = ((kept.shape[1], kept.shape[2], kept.shape[3]),)

    @property
    def _last_frozen(self) -> nn.Module:
        return self.backbone.get_submodule(self._stages[(self.train_from or 0) - 1])

    def _stages_of(
        self, part: nn.Module, images: Float[Tensor, "b _ y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """Return the grid of each stage, from one pass through the backbone or its trained rest."""
        backbone = cast("Any", part)
        if self._wanted == (None,):
            return (self._as_grid(backbone.forward_features(images), images),)
        inner = sorted(stage for stage in self._wanted if stage is not None)
        to_the_end = None in self._wanted
        given = backbone.forward_intermediates(
            images,
            indices=inner,
            output_fmt="NCHW",
            intermediates_only=not to_the_end,
            stop_early=not to_the_end,
        )
        final, grids = given if to_the_end else (None, given)
        found: dict[int | None, Tensor] = dict(zip(inner, grids, strict=True))
        if final is not None:
            found[None] = self._as_grid(final, images)
        return tuple(found[stage] for stage in self._wanted)

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, all but the frozen part."""
        super().train(mode)
        norms = [m for m in self.backbone.modules() if isinstance(m, _BatchNorm)]
        for module in [*self._frozen, *(norms if self.fixed_norms else ())]:
            module.train(mode=False)
        return self

    def _as_grid(
        self, features: object, images: Float[Tensor, "b _ y x"]
    ) -> Float[Tensor, "b c gy gx"]:
        """Lay out what the backbone gives: tokens, channels last or channels first."""
        backbone = cast("Any", self.backbone)
        size_of = getattr(getattr(backbone, "patch_embed", None), "dynamic_feat_size", None)
        if isinstance(features, Tensor) and features.ndim == 3 and size_of:
            patches = features[:, getattr(backbone, "num_prefix_tokens", 0) :]
            rows, columns = size_of(images.shape[-2:])
            return patches.transpose(1, 2).unflatten(2, (int(rows), int(columns)))
        if not isinstance(features, Tensor) or features.ndim != 4:
            shape = tuple(getattr(features, "shape", ())) or "several kinds"
            raise ValueError(
                f"{self.name} gives final features of {shape}, not a grid; name a stage"
            )
        if getattr(backbone, "output_fmt", "NCHW") == "NHWC":
            return features.permute(0, 3, 1, 2)
        return features

    def _numbered(self, stage: int | tuple[int | None, ...] | None) -> tuple[int | None, ...]:
        """Return the stages that are asked for, counted from the first."""
        count = len(self._stages)
        asked = stage if isinstance(stage, tuple) else (stage,)
        if wrong := [one for one in asked if one is not None and not -count <= one < count]:
            raise ValueError(f"{self.name} has {count} stages, got stage={wrong[0]}")
        numbered = tuple(None if one is None else one % count for one in asked)
        if not numbered or len(set(numbered)) < len(numbered):
            raise ValueError(
                f"stage must name one of the {count} stages of {self.name} or several different "
                f"ones, got {stage}"
            )
        return numbered

    @torch.no_grad()
    def _probe(self) -> tuple[tuple[int, int, int], ...]:
        """Return the shapes of the grids for one image of the right size."""
        self.backbone.eval()
        blank = torch.zeros(1, 3, *self.size)
        try:
            grids = self._stages_of(self.backbone, blank)
        except AssertionError as error:  # timm's way to say so
            raise ValueError(
                f"{self.name} takes no images of {self.size} (height, width): {error}; "
                "change size, or say arguments={'img_size': ...}"
            ) from error
        if None in self._wanted and len(grids) > 1:
            self._check_final(grids[self._wanted.index(None)], blank)
        self.backbone.train()
        return tuple((grid.shape[1], grid.shape[2], grid.shape[3]) for grid in grids)

    def _check_final(self, beside: Tensor, images: Float[Tensor, "b 3 y x"]) -> None:
        """Refuse the few backbones that go only half the way when asked for stages as well."""
        alone = self._as_grid(cast("Any", self.backbone).forward_features(images), images)
        if alone.shape != beside.shape or not torch.allclose(alone, beside, rtol=1e-3, atol=1e-4):
            raise ValueError(
                f"timm does not give the final features of {self.name} beside those of its stages; "
                "say -1, its last stage, in place of None"
            )

    @property
    def _stages(self) -> list[str]:
        """Return the names of the modules in which the backbone's stages end."""
        info = cast("list[dict[str, Any]]", cast("Any", self.backbone).feature_info)
        return [str(stage["module"]) for stage in info]

    def _freeze(self) -> None:
        """Freeze everything that stands before the first trained stage."""
        modules = list(self.backbone.modules())
        before = modules[: self._count_frozen()]
        for parameter in self.backbone.parameters():
            parameter.requires_grad = True
        for module in before:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad = False
        # A module that holds trained ones as well, as the backbone itself, stays as it is.
        self._frozen = [
            module for module in before if not any(p.requires_grad for p in module.parameters())
        ]
        self.train(self.training)

    def _count_frozen(self) -> int:
        """Return how many of the backbone's modules, in their order, are not trained."""
        names, stages = [name for name, _ in self.backbone.named_modules()], self._stages
        if self.train_from is None:
            return len(names)
        if not 0 <= self.train_from <= len(stages):
            raise ValueError(
                f"train_from must lie between 0 and {len(stages)} for {self.name}, whose stages "
                f"end in {', '.join(stages)}; got {self.train_from}"
            )
        if self.train_from == 0:
            return 0
        end = stages[self.train_from - 1]
        inside = [i for i, name in enumerate(names) if f"{name}.".startswith(f"{end}.")]
        if not inside:
            raise ValueError(f"{self.name} does not show where stage {end} ends; train all or none")
        return inside[-1] + 1
