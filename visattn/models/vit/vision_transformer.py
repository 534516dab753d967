"""Vision Transformer with configurable attention, position embedding, stem and pooling."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad

from visattn.blocks.tap import RecordRequest, Tap
from visattn.blocks.transformer.layer import PatchDropout, run_layers
from visattn.blocks.transformer.token_attention import TokenLayout
from visattn.functional.positions import ResampleRule, sincos_pos_embed
from visattn.io.messages import did_you_mean
from visattn.models.base import ParameterGroup
from visattn.models.configurable import ModelGraph, example_images
from visattn.models.saving.mapping import build_converted
from visattn.models.vit.parts import (
    FFNLayer,
    GlobalPool,
    LayerOptions,
    PosEmbedType,
    Stem,
    TransformerClassifier,
    check_pos_embed_type,
    create_layers,
    create_pool,
    create_stem,
    interpolate_pos_embed,
    layer_attn_types,
    prefix_token_roles,
    rotary_embeddings,
    to_2tuple,
)


class VisionTransformer(TransformerClassifier):
    """Vision Transformer (ViT).

    Images of any size that is a multiple of the patch size are accepted: learned position
    embeddings are interpolated, the others computed. `visattn.record` records the attention of all
    layers and knows which tokens are prefix tokens. State dict keys are those of timm where the
    modules are the same.

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
        ffn_layer: Feed-forward network: `mlp` (with GELU) or `swiglu`.
        attn_type: Kind of attention: `full`, `window`, `shifted`, `neighborhood` or `linear`; or
            several of them, which the layers cycle through.
        window_size: Side of a window or neighborhood in patches, or its height and width.
        pos_embed_type: Position embedding: `learned` or `sine` (added to tokens), `rotary` (RoPE),
            `relative` (a learned bias per offset, head and layer) or `none`.
        pos_embed_prefix: Whether the learned position embedding includes the prefix tokens.
        pos_interpolation: Interpolation of learned position embeddings for other image sizes: as in
            `timm`, `plain` as in Hugging Face's ViT, or as in `dino`.
        global_pool: Input of the head: the `class` token, the `mean` of the patch tokens, or their
            weighted mean with learned weights (`attention`, `sequence`).
        class_token: Whether there is a class token; None: only if `global_pool` is `class`.
        distilled: Whether there is a distillation token with its own head, as in DeiT; the logits
            are the mean of both heads.
        num_registers: Number of register tokens, 0 to 8, discarded before pooling.
        use_fc_norm: Whether the final norm is applied after pooling instead of before it; None:
            only if `global_pool` is `mean`.
        qkv_bias: Whether queries, keys and values have a bias.
        qk_norm: Whether queries and keys are normalized.
        lsa: Locality self-attention: learned temperature per head, and no attention of a token to
            itself.
        layer_scale: Initial value of LayerScale; None for no LayerScale.
        drop_path_rate: Stochastic depth rate of the last layer; it rises linearly from 0.
        patch_drop_rate: Fraction of patch tokens dropped during training.
        dynamic_img_pad: Whether images are padded at the bottom and right, with the mean color, to
            a multiple of the patch size; otherwise such images are refused.
        grad_checkpointing: Whether to recompute layers in the backward pass to save memory.
        norm_eps: Epsilon of the normalization layers.
        mean: Mean of each color channel, in [0, 1]; one value for gray images.
        std: Standard deviation of each color channel, in [0, 1].

    Raises:
        ValueError: If an option is unknown or does not fit the others.

    Example:
        >>> model = VisionTransformer(("cat", "dog"), img_size=(32, 32), patch_size=8, embed_dim=32,
        ...     depth=2, num_heads=2, num_registers=4)
        >>> model(torch.zeros(1, 3, 40, 24, dtype=torch.uint8)).shape
        torch.Size([1, 2])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929; Touvron et al. 2020, arXiv:2012.12877
        (distilled); Darcet et al. 2023, arXiv:2309.16588 (registers).
    """

    NO_WEIGHT_DECAY = ("cls_token", "dist_token", "reg_token", "pos_embed")

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
        ffn_layer: FFNLayer = "mlp",
        attn_type: str | Sequence[str] = "full",
        window_size: int | tuple[int, int] = 7,
        pos_embed_type: PosEmbedType = "learned",
        pos_embed_prefix: bool = True,
        pos_interpolation: ResampleRule = "timm",
        global_pool: GlobalPool = "class",
        class_token: bool | None = None,
        distilled: bool = False,
        num_registers: int = 0,
        use_fc_norm: bool | None = None,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        lsa: bool = False,
        layer_scale: float | None = None,
        drop_path_rate: float = 0.0,
        patch_drop_rate: float = 0.0,
        dynamic_img_pad: bool = False,
        grad_checkpointing: bool = False,
        norm_eps: float = 1e-6,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__(class_names, img_size, mean, std)
        self.patch_size = to_2tuple(patch_size, "patch_size")
        self.window_size = to_2tuple(window_size, "window_size")
        self.stem: Stem = stem
        self.stem_kwargs = dict(stem_kwargs or {})
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.mlp_ratio = mlp_ratio
        self.ffn_layer: FFNLayer = ffn_layer
        self.pos_embed_prefix = pos_embed_prefix
        self.pos_embed_type: PosEmbedType = pos_embed_type
        self.pos_interpolation: ResampleRule = pos_interpolation
        self.global_pool: GlobalPool = global_pool
        self.distilled = distilled
        self.qkv_bias = qkv_bias
        self.qk_norm = qk_norm
        self.lsa = lsa
        self.layer_scale = layer_scale
        self.drop_path_rate = drop_path_rate
        self.patch_drop_rate = patch_drop_rate
        self.dynamic_img_pad = dynamic_img_pad
        self.grad_checkpointing = grad_checkpointing
        self.norm_eps = norm_eps
        self.use_fc_norm = global_pool == "mean" if use_fc_norm is None else use_fc_norm
        self.prefix_roles = prefix_token_roles(
            global_pool, class_token, distilled=distilled, num_registers=num_registers
        )
        self.class_token = "class" in self.prefix_roles
        self._build(layer_attn_types(attn_type, depth))
        self._init_weights()

    def _build(self, attn_types: Sequence[str]) -> None:
        """Create the submodules."""
        dim = self.embed_dim
        hidden_dim = round(self.embed_dim * self.mlp_ratio)
        check_pos_embed_type(self.pos_embed_type, attn_types, self.patch_drop_rate)
        self.patch_embed = create_stem(
            self.stem, len(self.mean), dim, patch_size=self.patch_size, stem_kwargs=self.stem_kwargs
        )
        self.grid_size = self.patch_embed.grid_size(self.padded_size(*self.img_size))
        self.cls_token, self.dist_token, self.reg_token = (
            nn.Parameter(torch.zeros(1, count, dim)) if count else None
            for count in map(self.prefix_roles.count, ("class", "distillation", "register"))
        )
        num_patches = self.grid_size[0] * self.grid_size[1]
        count = num_patches + len(self.prefix_roles) * self.pos_embed_prefix
        learned = self.pos_embed_type == "learned"
        self.pos_embed = nn.Parameter(torch.zeros(1, count, dim)) if learned else None
        self.patch_dropout = PatchDropout(self.patch_drop_rate)
        layer_options = LayerOptions(
            embed_dim=dim,
            hidden_dim=hidden_dim,
            num_heads=self.num_heads,
            ffn_layer=self.ffn_layer,
            window_size=self.window_size,
            relative=self.pos_embed_type == "relative",
            layer_scale=self.layer_scale,
            drop_path_rate=self.drop_path_rate,
            norm_eps=self.norm_eps,
            attention={"qkv_bias": self.qkv_bias, "qk_norm": self.qk_norm, "lsa": self.lsa},
        )
        self.blocks = create_layers(attn_types, self.grid_size, layer_options)
        # There is one norm, before pooling or after it; the other is the identity, as in timm.
        norms = nn.Identity(), nn.LayerNorm(dim, self.norm_eps)
        self.norm, self.fc_norm = norms if self.use_fc_norm else norms[::-1]
        options = {"num_heads": self.num_heads, "norm_eps": self.norm_eps}
        self.attn_pool = create_pool(self.global_pool, dim, hidden_dim=hidden_dim, **options)
        self.set_head(dim)
        self.head_dist = nn.Linear(dim, len(self.class_names)) if self.distilled else None

    def _init_weights(self) -> None:
        """Initialize the weights as timm does."""
        self.init_linear_layers()
        for tokens, std in (
            (self.cls_token, 1e-6),
            (self.reg_token, 1e-6),
            (self.dist_token, 0.02),
            (self.pos_embed, 0.02),
        ):
            if tokens is not None:
                nn.init.trunc_normal_(tokens, std=std)

    def export_graphs(self) -> list[ModelGraph]:
        """Return the graph of the logits and of the attention of the class token.

        Raises:
            ValueError: If there is no class token, or the map would cover padding.
        """
        if not self.class_token:
            raise ValueError(
                "the model must have a class token, whose attention is exported; this one pools by "
                f"{self.global_pool!r}: use visattn overlay --method rollout"
            )
        sides = zip(self.img_size, self.patch_embed.patch_size, strict=True)
        if any(length % side for length, side in sides):
            raise ValueError(
                f"img_size must be a multiple of the patch size, got {self.img_size}: the map "
                "would cover the padding, too"
            )
        axes = ["image", "layer", "head", "y", "x"]
        metadata = {
            "class_names": list(self.class_names),
            "map": {"output": "attention", "axes": axes, "grid": list(self.grid_size)},
        }
        images = example_images(self.img_size)
        return [ModelGraph(_ClassRows(self), {"images": images}, ("logits", "attention"), metadata)]

    @classmethod
    def from_timm(
        cls, model: nn.Module | str, *, class_names: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Convert a timm model with its weights; see `vit_from_timm`."""
        from visattn.models.vit.conversion import vit_from_timm  # imports timm

        return build_converted(cls, *vit_from_timm(model, class_names, **options))

    @classmethod
    def from_torchvision(
        cls, model: nn.Module | str, *, class_names: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Convert a torchvision model with its weights; see `vit_from_torchvision`."""
        from visattn.models.vit.conversion import vit_from_torchvision  # imports timm

        return build_converted(cls, *vit_from_torchvision(model, class_names, **options))

    @classmethod
    def from_dinov2(
        cls, state: Mapping[str, Tensor], *, class_names: Sequence[str], **options: Any
    ) -> Self:
        """Build a model from an original DINOv2 state dict; see `vit_from_dinov2`."""
        from visattn.models.vit.conversion import vit_from_dinov2  # imports timm

        return build_converted(cls, *vit_from_dinov2(state, class_names, **options))

    def to_timm(self) -> nn.Module:
        """Return timm's model with these weights.

        Raises:
            ValueError: If timm lacks options that this model uses; all of them are listed.
        """
        from visattn.models.vit.conversion import vit_to_timm  # imports timm

        return vit_to_timm(self)

    def to_torchvision(self) -> nn.Module:
        """Return torchvision's model with these weights.

        Raises:
            ValueError: If torchvision lacks options that this model uses; all of them are listed.
        """
        from visattn.models.vit.conversion import vit_to_torchvision  # imports timm

        return vit_to_torchvision(self)

    def parameter_groups(self) -> Mapping[ParameterGroup, list[nn.Parameter]]:
        """Return the parameters of the backbone, of blocks (none) and of one or both heads."""
        groups = dict(super().parameter_groups())
        second_head = [] if self.head_dist is None else list(self.head_dist.parameters())
        ids = {id(parameter) for parameter in second_head}
        groups["backbone"] = [weight for weight in groups["backbone"] if id(weight) not in ids]
        return {**groups, "head": groups["head"] + second_head}

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        pooled = self.pool(*self.encode(images))
        logits = self.head(pooled[:, 0])
        return logits if self.head_dist is None else (logits + self.head_dist(pooled[:, 1])) / 2

    def pool(
        self, tokens: Float[Tensor, "b n w"], layout: TokenLayout
    ) -> Float[Tensor, "b heads w"]:
        """Return the input of each head, given the tokens after the last layer."""
        if self.global_pool == "class":
            return self.fc_norm(self.norm(tokens[:, : 1 + self.distilled]))
        patches = self.norm(tokens[:, layout.num_prefix_tokens :])
        pooled = patches.mean(1) if self.attn_pool is None else self.attn_pool(patches, layout)
        return self.fc_norm(pooled).unsqueeze(1)

    def encode(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b n w"], TokenLayout]:
        """Return the tokens after the last layer, before its norm, and their layout."""
        x, layout = self.patch_dropout(*self._embed(images))
        x = run_layers(self.blocks, x, layout, grad_checkpointing=self.grad_checkpointing)
        return x, layout

    def _embed(self, images: Tensor) -> tuple[Float[Tensor, "b n w"], TokenLayout]:
        """Return the tokens before the first layer, with their position embedding."""
        height, width = self.padded_size(images.shape[2], images.shape[3])
        padding = (height - images.shape[2], width - images.shape[3])
        if self.dynamic_img_pad:
            images = pad(images, (0, padding[1], 0, padding[0]))
        features = self.patch_embed(images)
        layout = self._layout((features.shape[2], features.shape[3]), padding, features.device)
        x = features.flatten(2).transpose(1, 2)
        prefix_embed = None
        if self.pos_embed is not None:
            prefix_embed, grid_embed = interpolate_pos_embed(
                self.pos_embed, self.grid_size, layout.grid, rule=self.pos_interpolation
            )
            x = x + grid_embed
        elif self.pos_embed_type == "sine":
            x = x + sincos_pos_embed(layout.grid, self.embed_dim, device=x.device)
        if not self.prefix_roles:
            return x.contiguous(), layout
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        prefix = torch.cat([token for token in tokens if token is not None], 1)
        if prefix_embed is not None and self.pos_embed_prefix:
            prefix = prefix + prefix_embed
        return torch.cat((prefix.expand(x.shape[0], -1, -1), x), 1), layout

    def _layout(
        self, grid: tuple[int, int], padding: tuple[int, int], device: torch.device
    ) -> TokenLayout:
        rotation = None
        if self.pos_embed_type == "rotary":
            rotation = rotary_embeddings(
                grid,
                self.embed_dim // self.num_heads,
                num_prefix_tokens=len(self.prefix_roles),
                device=device,
            )
        notes = {
            "pos_embed_type": self.pos_embed_type,
            "pos_interpolation": self.pos_interpolation,
            "padding": padding,
        }
        return TokenLayout(grid, self.prefix_roles, rotation=rotation, notes=notes)


class _ClassRows(nn.Module):
    """A ViT with the attention of its class token as a second output."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: UInt8[Tensor, "b c y x"]) -> tuple[Tensor, Tensor]:
        """Return logits `[b, k]` and attention `[b, layer, head, y, x]`."""
        with self._class_rows() as rows:
            logits = self.model(images)
        return logits, torch.stack(rows, 1).unflatten(-1, self.model.grid_size)

    @contextmanager
    def _class_rows(self) -> Iterator[list[Tensor]]:
        """Yield a list that receives the rows of each layer; `record` cannot be traced."""
        rows: list[Tensor] = []
        num_prefix_tokens = len(self.model.prefix_roles)
        request = RecordRequest("class")

        def collect(_: nn.Module, __: Any, weights: Tensor) -> None:
            rows.append(weights[:, :, 0, num_prefix_tokens:])

        taps = [cast("Tap", cast("Any", layer).attn.tap) for layer in self.model.blocks]
        handles = [tap.register_forward_hook(collect) for tap in taps]
        for tap in taps:
            tap.requests.append(request)
        try:
            yield rows
        finally:
            for tap, handle in zip(taps, handles, strict=True):
                handle.remove()
                tap.requests.remove(request)


_CIFAR: Mapping[str, Any] = {"img_size": (32, 32), "patch_size": 4}
_COMPACT: Mapping[str, Any] = {
    "embed_dim": 256,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "qkv_bias": False,
}


def _conv_tokenizer(num_layers: int) -> dict[str, Any]:
    """Return the arguments that all compact convolutional transformers (CCT) share."""
    return {
        "img_size": (32, 32),
        "stem": "overlapping",
        "stem_kwargs": {"num_layers": num_layers, "kernel_size": 3},
        "global_pool": "sequence",
    }


VIT_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
    "huge": {"embed_dim": 1280, "depth": 32, "num_heads": 16, "patch_size": 14},
    "cifar_192_12": {**_CIFAR, "embed_dim": 192, "depth": 12, "num_heads": 3},
    "cifar_256_7": {**_CIFAR, "embed_dim": 256, "depth": 7, "num_heads": 4},
    "cifar_384_7": {**_CIFAR, "embed_dim": 384, "depth": 7, "num_heads": 6},
    "cifar_384_12": {**_CIFAR, "embed_dim": 384, "depth": 12, "num_heads": 6},
    "cifar_512_6": {**_CIFAR, "embed_dim": 512, "depth": 6, "num_heads": 8},
    "cifar_192_9": {**_CIFAR, "embed_dim": 192, "depth": 9, "num_heads": 12, "mlp_ratio": 2.0},
    "sl_vit": {
        **_CIFAR,
        "embed_dim": 192,
        "depth": 9,
        "num_heads": 12,
        "mlp_ratio": 2.0,
        "stem": "shifted",
        "lsa": True,
    },
    "vit_lite_7_4": {**_CIFAR, **_COMPACT, "depth": 7},
    "vit_lite_6_4": {**_CIFAR, **_COMPACT, "depth": 6},
    "cct_7_3x1": {**_COMPACT, **_conv_tokenizer(1), "depth": 7},
    "cct_6_3x1": {**_COMPACT, **_conv_tokenizer(1), "depth": 6, "pos_embed_type": "sine"},
    "cct_2_3x2": {
        **_COMPACT,
        **_conv_tokenizer(2),
        "embed_dim": 128,
        "depth": 2,
        "num_heads": 2,
        "mlp_ratio": 1.0,
    },
}
"""Arguments that differ from the defaults of `VisionTransformer`. `tiny` to `huge` are the sizes of
the ViT and DeiT papers for images of 224 pixels; `cifar_DIM_DEPTH` have 4-pixel patches on images
of 32 pixels; `cifar_192_9` is the ViT of the SL-ViT paper and `sl_vit` the same with shifted patch
tokenization and locality self-attention; `vit_lite_DEPTH_PATCH` and `cct_DEPTH_KERNELxCONVOLUTIONS`
are those of the compact transformers paper. `cct_6_3x1` has fixed positions: sines of row and
column, where the authors have sines along the token sequence; residual branches start from the
tokens, where those of the authors start from the normalized tokens."""


def create_vit(name: str, class_names: Sequence[str], **options: Any) -> VisionTransformer:
    """Create a Vision Transformer from a preset.

    Args:
        name: One of `VIT_PRESETS`.
        class_names: Names of the classes, in the order of the logits.
        **options: Arguments of `VisionTransformer`; they override those of the preset.

    Raises:
        ValueError: If the preset is unknown or an option is invalid.

    Example:
        >>> model = create_vit("cifar_192_9", ("cat", "dog"), stem="shifted", lsa=True, depth=1)
        >>> model.embed_dim, model.grid_size
        (192, (8, 8))

    Source:
        Touvron et al. 2020, arXiv:2012.12877, table 1 (tiny, small); Dosovitskiy et al. 2020,
        arXiv:2010.11929, table 1; Lee et al. 2021, arXiv:2112.13492 (cifar_192_9, sl_vit); Hassani
        et al. 2021, arXiv:2104.05704 (vit_lite, cct).
    """
    if name not in VIT_PRESETS:
        raise ValueError(f"unknown preset {name!r}; {did_you_mean(name, VIT_PRESETS)}")
    return VisionTransformer(class_names, **{**VIT_PRESETS[name], **options})
