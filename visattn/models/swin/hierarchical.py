"""A transformer whose grid gets coarser from stage to stage, with attention inside windows."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad as padded

from visattn.blocks.transformer.stems import PatchEmbedding
from visattn.blocks.transformer.swin_stage import WindowStage
from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.models.classifier import ImageClassifier
from visattn.models.serialization.state_dict_mapping import Made, filled
from visattn.models.swin.conversion import (
    timm_swin_model,
    timm_swin_parts,
    torchvision_swin_parts,
)
from visattn.models.vit.parts import both, whole_size


class HierarchicalTransformer(ImageClassifier):
    """A transformer over small patches, which are merged two by two from stage to stage.

    Tokens attend within windows, which move by half of their size in every second layer. The cost
    grows with the number of patches, not with its square. The head sees the mean of the last grid.
    Images may be of any size that patches fill: windows fill up with empty slots. What layers
    attend to is seen by `visattn.record`; there is no class token, so ask for `patches`.

    Args:
        classes: Names of the classes, in the order of the scores.
        size: Height and width, in pixels, of the images it is made for. Windows larger than the
            grid of a stage are cut down to it, and then do not move; so they stay for other sizes.
        patch: Side of a patch in pixels, or its height and width.
        width: Of a token in the first stage; it doubles from stage to stage.
        depths: Layers of each stage.
        heads: Of each layer, for each stage; they divide its width.
        window: Side of a window in tokens, or its height and width.
        ratio: How much wider than a token the hidden layer of a feed-forward layer is.
        qkv_bias: Whether queries, keys and values have a bias.
        drop_path: How likely the last layer is left out in training; the first never is.
        pad: Whether to fill images up to whole patches, at the bottom and on the right, with the
            mean color; if not, others are refused.
        checkpointing: Whether to compute layers again for their gradients and keep less in memory.
        epsilon: Added to variances in the norms.
        mean: Mean of each color channel, in [0, 1]; one for gray images.
        std: Spread of each color channel, in [0, 1].

    Raises:
        ValueError: If an option does not fit the others.

    Example:
        >>> import torch
        >>> model = HierarchicalTransformer(("cat", "dog"), size=(32, 48), patch=4, width=16,
        ...     depths=(2, 2), heads=(2, 4), window=4)
        >>> model(torch.zeros(1, 3, 40, 36, dtype=torch.uint8)).shape
        torch.Size([1, 2])

    Source:
        Liu et al. 2021, arXiv:2103.14030. Where windows do not tile a grid, as timm does.
    """

    def __init__(
        self,
        classes: Sequence[str],
        *,
        size: tuple[int, int] = (224, 224),
        patch: int | tuple[int, int] = 4,
        width: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        heads: Sequence[int] = (3, 6, 12, 24),
        window: int | tuple[int, int] = 7,
        ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_path: float = 0.0,
        pad: bool = False,
        checkpointing: bool = False,
        epsilon: float = 1e-5,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__(classes, size, mean, std)
        self.patch, self.window = both(patch, "patch"), both(window, "window")
        self.width, self.ratio = width, ratio
        self.depths, self.heads = tuple(map(int, depths)), tuple(map(int, heads))
        if not self.depths or min(self.depths) < 1 or len(self.heads) != len(self.depths):
            raise ValueError(
                "depths needs a number of layers >= 1 for each stage, and heads as many numbers, "
                f"got depths={self.depths} and heads={self.heads}"
            )
        self.qkv_bias, self.drop_path = qkv_bias, drop_path
        self.pad, self.checkpointing, self.epsilon = pad, checkpointing, epsilon
        self._build()
        self._start()

    def _build(self) -> None:
        """Make the parts."""
        self.patch_embed = PatchEmbedding(len(self.mean), self.width, patch=self.patch)
        self.patch_norm = nn.LayerNorm(self.width, self.epsilon)
        self.grid = grid = self.patch_embed.grid(self._whole(*self.size))
        self.layers, width, before = nn.ModuleList(), self.width, 0
        for number, (depth, heads) in enumerate(zip(self.depths, self.heads, strict=True)):
            if number:
                grid, width = (-(-grid[0] // 2), -(-grid[1] // 2)), 2 * width
            stage = WindowStage(
                width,
                grid,
                heads=heads,
                window=self.window,
                paths=[self._path(layer) for layer in range(before, before + depth)],
                hidden=round(width * self.ratio),
                merges=width // 2 if number else None,
                bias=self.qkv_bias,
                epsilon=self.epsilon,
            )
            self.layers.append(stage)
            before += depth
        self.norm = nn.LayerNorm(width, self.epsilon)
        self._modules["head"] = nn.Linear(width, len(self.classes))  # `head` is a property

    def _path(self, layer: int) -> float:
        return self.drop_path * layer / max(1, sum(self.depths) - 1)

    def _start(self) -> None:
        """Give weights their first values, as timm does."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias) if module.bias is not None else None

    @classmethod
    def from_timm(
        cls: type[Made],
        model: nn.Module | str,
        *,
        classes: Sequence[str] | None = None,
        **options: Any,
    ) -> Made:
        """Return a Swin Transformer of timm's with its weights; see `timm_swin_parts`."""
        return filled(cls, *timm_swin_parts(model, classes, **options))

    @classmethod
    def from_torchvision(
        cls: type[Made],
        model: nn.Module | str,
        *,
        classes: Sequence[str] | None = None,
        **options: Any,
    ) -> Made:
        """Return a Swin Transformer of torchvision's; see `torchvision_swin_parts`."""
        return filled(cls, *torchvision_swin_parts(model, classes, **options))

    def to_timm(self) -> nn.Module:
        """Return timm's model with these weights."""
        return timm_swin_model(self)

    @property
    def head(self) -> nn.Module:
        """The last layer, the one that knows the classes."""
        return cast("nn.Module", self._modules["head"])

    def takes(self, height: int, width: int) -> bool:
        """Whether images of a size may come in; `_whole` says what is wrong with others."""
        self._whole(height, width)
        return True

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the score of each class, before softmax, for normalized images."""
        return self.head(self.features(images).mean(1))

    def features(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n w"]:
        """Return the tokens of the last grid behind their norm, for normalized images."""
        return self.norm(self.encoded(images)[0])

    def encoded(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b n w"], TokenLayout]:
        """Return the tokens behind the last stage, before the norm, and their grid.

        Raises:
            ValueError: If patches do not fill the images, and these may not be padded.
        """
        height, width = self._whole(images.shape[2], images.shape[3])
        missing = (height - images.shape[2], width - images.shape[3])
        cells = self.patch_embed(padded(images, (0, missing[1], 0, missing[0])))
        notes: Mapping[str, Any] = {"positions": "relative", "padded": missing}
        layout = TokenLayout((cells.shape[2], cells.shape[3]), notes=notes)
        x = self.patch_norm(cells.flatten(2).transpose(1, 2))
        for stage in self.layers:
            x, layout = stage(x, layout, again=self.checkpointing)
        return x, layout

    def _whole(self, height: int, width: int) -> tuple[int, int]:
        return whole_size(height, width, patch=self.patch, pad=self.pad)


SWIN_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"width": 96, "depths": (2, 2, 6, 2), "heads": (3, 6, 12, 24)},
    "small": {"width": 96, "depths": (2, 2, 18, 2), "heads": (3, 6, 12, 24)},
    "base": {"width": 128, "depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32)},
}
"""What differs from the defaults of `HierarchicalTransformer`: patches of 4 on 224 pixels, windows
of 7."""


def swin(name: str, classes: Sequence[str], **options: Any) -> HierarchicalTransformer:
    """Return a Swin Transformer by the name of its size.

    Args:
        name: One of `SWIN_PRESETS`.
        classes: Names of the classes, in the order of the scores.
        **options: Of `HierarchicalTransformer`; they win over those of the preset.

    Raises:
        ValueError: If there is no such preset, or an option does not fit.

    Example:
        >>> model = swin("tiny", ("cat", "dog"), width=24, depths=(1, 1), heads=(1, 2))
        >>> model.grid, model.width
        ((56, 56), 24)

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.3.
    """
    if name not in SWIN_PRESETS:
        close = get_close_matches(name, SWIN_PRESETS, n=3) or list(SWIN_PRESETS)
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(close)}")
    return HierarchicalTransformer(classes, **{**SWIN_PRESETS[name], **options})
