"""Vision Transformer with a choice of stems, position embeddings and pooling."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.transformer.layer import EncoderLayer, FeedForward, run_layers
from visattn.blocks.transformer.pooling import SequencePool
from visattn.blocks.transformer.stems import (
    ConvStem,
    ConvTokenizer,
    PatchEmbedding,
    ShiftedPatchEmbedding,
)
from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.functional.positions import resample_pos_embed, sincos_pos_embed
from visattn.models.base import ImageClassifier

Stem = Literal["patch", "conv", "shifted", "overlapping"]
GlobalPool = Literal["class", "mean", "sequence"]
PosEmbedType = Literal["learned", "sine"]

_STEMS: dict[str, Any] = {
    "patch": PatchEmbedding,
    "conv": ConvStem,
    "shifted": ShiftedPatchEmbedding,
    "overlapping": ConvTokenizer,
}
_NORM_EPS = 1e-6  # as timm's


class VisionTransformer(ImageClassifier):
    """Vision Transformer (ViT).

    Images of any size that is a multiple of the patch size are accepted: learned position
    embeddings are interpolated, the others computed. `visattn.record` records the attention of all
    layers. State dict keys are those of timm where the modules are the same.

    Args:
        class_names: Names of the classes, in the order of the logits.
        img_size: Default height and width of the input images, in pixels.
        patch_size: Side of a patch in pixels, or its height and width.
        stem: Patch embedding: `patch`, a linear projection of each patch; `conv`, a stack of small
            convolutions; `shifted`, a projection of the patch and four shifted copies (SPT); or
            `overlapping`, the convolutional tokenizer of compact transformers, which ignores
            `patch_size`.
        stem_kwargs: Further arguments of the stem, such as `num_layers` of `overlapping`.
        embed_dim: Embedding dimension.
        depth: Number of layers.
        num_heads: Number of attention heads; must divide `embed_dim`.
        mlp_ratio: Ratio of the MLP's hidden dimension to `embed_dim`.
        pos_embed_type: Position embedding, added to the tokens: `learned` or `sine`.
        global_pool: Input of the head: the `class` token, the `mean` of the patch tokens, or their
            weighted mean with learned weights (`sequence`).
        qkv_bias: Whether queries, keys and values have a bias.
        lsa: Locality self-attention: learned temperature per head, and no attention of a token to
            itself.
        drop_path_rate: Stochastic depth rate of the last layer; it rises linearly from 0.
        grad_checkpointing: Whether to recompute layers in the backward pass to save memory.
        mean: Mean of each color channel, in [0, 1]; one value for gray images.
        std: Standard deviation of each color channel, in [0, 1].

    Raises:
        ValueError: If an option is unknown or does not fit the others.

    Example:
        >>> model = VisionTransformer(("cat", "dog"), img_size=(32, 32), patch_size=8, embed_dim=32,
        ...     depth=2, num_heads=2)
        >>> model(torch.zeros(1, 3, 40, 24, dtype=torch.uint8)).shape
        torch.Size([1, 2])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929; Lee et al. 2021, arXiv:2112.13492 (`shifted`,
        `lsa`); Hassani et al. 2021, arXiv:2104.05704 (`overlapping`, `sequence`).
    """

    NO_WEIGHT_DECAY = ("cls_token", "pos_embed")

    def __init__(
        self,
        class_names: Sequence[str],
        *,
        img_size: tuple[int, int] = (224, 224),
        patch_size: int | tuple[int, int] = 16,
        stem: Stem = "patch",
        stem_kwargs: Mapping[str, Any] | None = None,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        pos_embed_type: PosEmbedType = "learned",
        global_pool: GlobalPool = "class",
        qkv_bias: bool = True,
        lsa: bool = False,
        drop_path_rate: float = 0.0,
        grad_checkpointing: bool = False,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__(class_names, img_size, mean, std)
        check_choice("stem", stem, get_args(Stem))
        check_choice("pos_embed_type", pos_embed_type, get_args(PosEmbedType))
        check_choice("global_pool", global_pool, get_args(GlobalPool))
        self.patch_size = (
            (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)
        )
        self.stem: Stem = stem
        self.stem_kwargs = dict(stem_kwargs or {})
        self.embed_dim = embed_dim
        self.pos_embed_type: PosEmbedType = pos_embed_type
        self.global_pool: GlobalPool = global_pool
        self.grad_checkpointing = grad_checkpointing
        if stem != "overlapping":
            stem_kwargs = {**self.stem_kwargs, "patch_size": self.patch_size}
        self.patch_embed = _STEMS[stem](len(self.mean), embed_dim, **(stem_kwargs or {}))
        self.accepts_size(*self.img_size)
        self.grid_size: tuple[int, int] = self.patch_embed.grid_size(self.img_size)
        self.prefix_roles = ("class",) if global_pool == "class" else ()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if self.prefix_roles else None
        count = len(self.prefix_roles) + self.grid_size[0] * self.grid_size[1]
        learned = pos_embed_type == "learned"
        self.pos_embed = nn.Parameter(torch.zeros(1, count, embed_dim)) if learned else None
        self.blocks = nn.ModuleList(
            EncoderLayer(
                embed_dim,
                TokenAttention(embed_dim, num_heads=num_heads, qkv_bias=qkv_bias, lsa=lsa),
                FeedForward(embed_dim, round(embed_dim * mlp_ratio)),
                drop_path=drop_path_rate * index / max(1, depth - 1),
            )
            for index in range(depth)
        )
        # The norm stands before pooling, or after the mean; the other is the identity, as in timm.
        norms = nn.LayerNorm(embed_dim, _NORM_EPS), nn.Identity()
        self.norm, self.fc_norm = norms[::-1] if global_pool == "mean" else norms
        self.attn_pool = SequencePool(embed_dim) if global_pool == "sequence" else None
        # Assignment does not work, since `head` is a property.
        self._modules["head"] = nn.Linear(embed_dim, len(self.class_names))
        self._init_weights()

    def _init_weights(self) -> None:
        """Initialize the weights as timm does."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for tokens, std in ((self.cls_token, 1e-6), (self.pos_embed, 0.02)):
            if tokens is not None:
                nn.init.trunc_normal_(tokens, std=std)

    @property
    def head(self) -> nn.Module:
        """The final classification layer."""
        return cast("nn.Module", self._modules["head"])

    def accepts_size(self, height: int, width: int) -> bool:
        """Return True, or raise a ValueError for images that are not a multiple of a patch."""
        rows, columns = self.patch_embed.patch_size
        if height % rows or width % columns:
            raise ValueError(
                f"the image size {height} x {width} is not a multiple of the patch size "
                f"{rows} x {columns}: resize the images"
            )
        return True

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        return self.head(self.pool(*self.encode(images)))

    def pool(self, tokens: Float[Tensor, "b n w"], layout: TokenLayout) -> Float[Tensor, "b w"]:
        """Return the input of the head, given the tokens after the last layer."""
        if self.global_pool == "class":
            return self.norm(tokens[:, 0])
        patches = self.norm(tokens)
        pooled = patches.mean(1) if self.attn_pool is None else self.attn_pool(patches, layout)
        return self.fc_norm(pooled)

    def forward_features(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n w"]:
        """Return all tokens after the last layer and its norm, for normalized images."""
        return self.norm(self.encode(images)[0])

    def encode(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b n w"], TokenLayout]:
        """Return the tokens after the last layer, before its norm, and their layout."""
        features = self.patch_embed(images)
        layout = TokenLayout((features.shape[2], features.shape[3]), self.prefix_roles)
        x = features.flatten(2).mT
        if self.pos_embed is None:
            x = x + sincos_pos_embed(layout.grid, self.embed_dim, device=x.device)
        else:
            x = x + self._grid_positions(layout.grid)
        if self.cls_token is not None:
            prefix = self.cls_token
            if self.pos_embed is not None:
                prefix = prefix + self.pos_embed[:, :1]
            x = torch.cat((prefix.expand(x.shape[0], -1, -1), x), 1)
        x = run_layers(
            self.blocks, x.contiguous(), layout, grad_checkpointing=self.grad_checkpointing
        )
        return x, layout

    def _grid_positions(self, grid: tuple[int, int]) -> Float[Tensor, "1 n w"]:
        """Return the learned position embeddings of a grid, interpolated if it has another size."""
        positions = cast("Tensor", self.pos_embed)[:, len(self.prefix_roles) :]
        # An exported graph serves all sizes, so it must not branch on whether this is its own grid.
        exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
        if exporting() or grid != self.grid_size:
            return resample_pos_embed(positions[0], self.grid_size, grid).unsqueeze(0)
        return positions
