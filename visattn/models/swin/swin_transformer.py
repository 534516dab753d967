"""Swin Transformer and its presets."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from visattn.blocks.transformer.stems import PatchEmbedding
from visattn.blocks.transformer.swin_stage import SwinStage
from visattn.blocks.transformer.token_attention import TokenLayout
from visattn.io.messages import did_you_mean
from visattn.models.saving.mapping import build_converted
from visattn.models.vit.parts import TransformerClassifier, to_2tuple


class SwinTransformer(TransformerClassifier):
    """Swin Transformer: attention in shifted windows, with patch merging between stages.

    The cost grows linearly with the number of patches. The head reads the mean of the last grid.
    Images of any size that is a multiple of the patch size are accepted: windows are padded.
    `visattn.record` records the attention of all layers; there is no class token, so use the site
    `patches`.

    Args:
        class_names: Names of the classes, in the order of the logits.
        img_size: Default height and width of the input images, in pixels. Windows larger than the
            grid of a stage are reduced to it and not shifted; other image sizes use the same
            windows.
        patch_size: Side of a patch in pixels, or its height and width.
        embed_dim: Embedding dimension of the first stage; it doubles from stage to stage.
        depths: Number of layers of each stage.
        num_heads: Number of attention heads of each stage; must divide its embedding dimension.
        window_size: Side of a window in tokens, or its height and width.
        mlp_ratio: Ratio of the MLP's hidden dimension to the embedding dimension.
        qkv_bias: Whether queries, keys and values have a bias.
        drop_path_rate: Stochastic depth rate of the last layer; it rises linearly from 0.
        dynamic_img_pad: Whether images are padded at the bottom and right, with the mean color, to
            a multiple of the patch size; otherwise such images are refused.
        grad_checkpointing: Whether to recompute layers in the backward pass to save memory.
        norm_eps: Epsilon of the normalization layers.
        mean: Mean of each color channel, in [0, 1]; one value for gray images.
        std: Standard deviation of each color channel, in [0, 1].

    Raises:
        ValueError: If an option does not fit the others.

    Example:
        >>> import torch
        >>> model = SwinTransformer(("cat", "dog"), img_size=(32, 48), patch_size=4, embed_dim=16,
        ...     depths=(2, 2), num_heads=(2, 4), window_size=4)
        >>> model(torch.zeros(1, 3, 40, 36, dtype=torch.uint8)).shape
        torch.Size([1, 2])

    Source:
        Liu et al. 2021, arXiv:2103.14030. Grids that windows do not tile are padded as in timm.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        *,
        img_size: tuple[int, int] = (224, 224),
        patch_size: int | tuple[int, int] = 4,
        embed_dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        window_size: int | tuple[int, int] = 7,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_path_rate: float = 0.0,
        dynamic_img_pad: bool = False,
        grad_checkpointing: bool = False,
        norm_eps: float = 1e-5,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__(class_names, img_size, mean, std)
        self.patch_size = to_2tuple(patch_size, "patch_size")
        self.window_size = to_2tuple(window_size, "window_size")
        self.embed_dim = embed_dim
        self.mlp_ratio = mlp_ratio
        self.depths = tuple(map(int, depths))
        self.num_heads = tuple(map(int, num_heads))
        if not self.depths or min(self.depths) < 1 or len(self.num_heads) != len(self.depths):
            raise ValueError(
                "depths and num_heads must have one entry per stage, and depths entries >= 1; "
                f"got depths={self.depths} and num_heads={self.num_heads}"
            )
        self.qkv_bias = qkv_bias
        self.drop_path_rate = drop_path_rate
        self.norm_eps = norm_eps
        self.dynamic_img_pad = dynamic_img_pad
        self.grad_checkpointing = grad_checkpointing
        self._build()
        self.init_linear_layers()

    def _build(self) -> None:
        """Create the submodules."""
        self.patch_embed = PatchEmbedding(
            len(self.mean), self.embed_dim, patch_size=self.patch_size
        )
        self.patch_norm = nn.LayerNorm(self.embed_dim, self.norm_eps)
        self.grid_size = grid = self.patch_embed.grid_size(self.padded_size(*self.img_size))
        self.layers = nn.ModuleList()
        dim = self.embed_dim
        first_layer = 0
        last_layer = max(1, sum(self.depths) - 1)
        for index, (depth, num_heads) in enumerate(zip(self.depths, self.num_heads, strict=True)):
            if index:
                grid = (-(-grid[0] // 2), -(-grid[1] // 2))
                dim *= 2
            layers = range(first_layer, first_layer + depth)
            stage = SwinStage(
                dim,
                grid,
                num_heads=num_heads,
                window_size=self.window_size,
                drop_path_rates=[self.drop_path_rate * layer / last_layer for layer in layers],
                hidden_dim=round(dim * self.mlp_ratio),
                merge_dim=dim // 2 if index else None,
                qkv_bias=self.qkv_bias,
                norm_eps=self.norm_eps,
            )
            self.layers.append(stage)
            first_layer += depth
        self.norm = nn.LayerNorm(dim, self.norm_eps)
        self.set_head(dim)

    @classmethod
    def from_timm(
        cls, model: nn.Module | str, *, class_names: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Convert a timm model with its weights; see `swin_from_timm`."""
        from visattn.models.swin.conversion import swin_from_timm  # imports timm

        return build_converted(cls, *swin_from_timm(model, class_names, **options))

    @classmethod
    def from_torchvision(
        cls, model: nn.Module | str, *, class_names: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Convert a torchvision model with its weights; see `swin_from_torchvision`."""
        from visattn.models.swin.conversion import swin_from_torchvision  # imports timm

        return build_converted(cls, *swin_from_torchvision(model, class_names, **options))

    def to_timm(self) -> nn.Module:
        """Return timm's model with these weights."""
        from visattn.models.swin.conversion import swin_to_timm  # imports timm

        return swin_to_timm(self)

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        return self.head(self.forward_features(images).mean(1))

    def encode(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b n w"], TokenLayout]:
        """Return the tokens after the last stage, before the norm, and their layout."""
        height, width = self.padded_size(images.shape[2], images.shape[3])
        padding = (height - images.shape[2], width - images.shape[3])
        features = self.patch_embed(pad(images, (0, padding[1], 0, padding[0])))
        notes: Mapping[str, Any] = {"pos_embed_type": "relative", "padding": padding}
        layout = TokenLayout((features.shape[2], features.shape[3]), notes=notes)
        x = self.patch_norm(features.flatten(2).transpose(1, 2))
        for stage in self.layers:
            x, layout = stage(x, layout, grad_checkpointing=self.grad_checkpointing)
        return x, layout


SWIN_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)},
    "small": {"embed_dim": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "base": {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
}
"""Arguments that differ from the defaults of `SwinTransformer`: patch 4, image 224, window 7."""


def create_swin(name: str, class_names: Sequence[str], **options: Any) -> SwinTransformer:
    """Create a Swin Transformer from a preset.

    Args:
        name: One of `SWIN_PRESETS`.
        class_names: Names of the classes, in the order of the logits.
        **options: Arguments of `SwinTransformer`; they override those of the preset.

    Raises:
        ValueError: If the preset is unknown or an option is invalid.

    Example:
        >>> options = {"embed_dim": 24, "depths": (1, 1), "num_heads": (1, 2)}
        >>> model = create_swin("tiny", ("cat", "dog"), **options)
        >>> model.grid_size, model.embed_dim
        ((56, 56), 24)

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.3.
    """
    if name not in SWIN_PRESETS:
        raise ValueError(f"unknown preset {name!r}; {did_you_mean(name, SWIN_PRESETS)}")
    return SwinTransformer(class_names, **{**SWIN_PRESETS[name], **options})
