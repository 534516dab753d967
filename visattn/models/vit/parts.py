"""Building blocks of `VisionTransformer`: stems, layers, pooling, prefix tokens, positions."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.transformer.layer import EncoderLayer, FeedForward, SwiGLU
from visattn.blocks.transformer.pooling import AttentionPool, SequencePool
from visattn.blocks.transformer.stems import (
    ConvStem,
    ConvTokenizer,
    PatchEmbedding,
    ShiftedPatchEmbedding,
)
from visattn.blocks.transformer.token_attention import AttentionType, TokenAttention, TokenLayout
from visattn.functional.positions import ResampleRule, resample_pos_embed, rotary_cos_sin
from visattn.models.base import ImageClassifier

Stem = Literal["patch", "conv", "shifted", "overlapping"]
StemLayer = PatchEmbedding | ConvStem | ShiftedPatchEmbedding | ConvTokenizer
GlobalPool = Literal["class", "mean", "attention", "sequence"]
PosEmbedType = Literal["learned", "sine", "rotary", "relative", "none"]
FFNLayer = Literal["mlp", "swiglu"]

_STEMS: dict[str, Any] = {
    "patch": PatchEmbedding,
    "conv": ConvStem,
    "shifted": ShiftedPatchEmbedding,
    "overlapping": ConvTokenizer,
}
_MAX_REGISTERS = 8


def interpolate_pos_embed(
    pos_embed: Float[Tensor, "1 n c"],
    source_grid: tuple[int, int],
    grid: tuple[int, int],
    *,
    rule: ResampleRule,
) -> tuple[Float[Tensor, "1 p c"], Float[Tensor, "1 m c"]]:
    """Return the position embeddings of the prefix tokens and of a grid of another size.

    Args:
        pos_embed: Position embeddings of the prefix tokens, if they have any, and of the grid.
        source_grid: Height and width of the grid that they were learned on.
        grid: Height and width of the grid to interpolate to.
        rule: As `pos_interpolation` of `VisionTransformer`.

    Example:
        >>> learned = torch.ones(1, 5, 3)
        >>> prefix, patches = interpolate_pos_embed(learned, (2, 2), (2, 3), rule="timm")
        >>> prefix.shape, patches.shape
        (torch.Size([1, 1, 3]), torch.Size([1, 6, 3]))
    """
    num_prefix_tokens = pos_embed.shape[1] - source_grid[0] * source_grid[1]
    prefix = pos_embed[:, :num_prefix_tokens]
    patches = pos_embed[:, num_prefix_tokens:]
    # An exported graph serves all sizes, so it must not branch on whether this is the source grid.
    exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    if exporting() or grid != source_grid:
        patches = resample_pos_embed(patches[0], source_grid, grid, rule=rule).unsqueeze(0)
    return prefix, patches


def rotary_embeddings(
    grid: tuple[int, int],
    head_dim: int,
    *,
    num_prefix_tokens: int,
    device: torch.device | None = None,
) -> tuple[Float[Tensor, "1 1 n d"], Float[Tensor, "1 1 n d"]]:
    """Return cosines and sines of rotary position embeddings; prefix tokens are not rotated.

    Example:
        >>> cosines, sines = rotary_embeddings((1, 2), 4, num_prefix_tokens=1)
        >>> cosines[0, 0, 0], sines[0, 0, :, 1]
        (tensor([1., 1.]), tensor([0.0000, 0.0000, 0.8415]))
    """
    cosines, sines = rotary_cos_sin(grid, head_dim, device=device)
    prefix_shape = (num_prefix_tokens, head_dim // 2)
    cosines = torch.cat((cosines.new_ones(prefix_shape), cosines))
    return cosines[None, None], torch.cat((sines.new_zeros(prefix_shape), sines))[None, None]


def padded_size(
    height: int, width: int, *, patch_size: tuple[int, int], pad: bool
) -> tuple[int, int]:
    """Return the image size after padding to a multiple of the patch size; without, check it.

    Example:
        >>> padded_size(30, 32, patch_size=(16, 16), pad=True)
        (32, 32)
    """
    patch_height, patch_width = patch_size
    if pad:
        return (
            -(-height // patch_height) * patch_height,
            -(-width // patch_width) * patch_width,
        )
    if height % patch_height or width % patch_width:
        raise ValueError(
            f"the image size {height} x {width} is not a multiple of the patch size "
            f"{patch_height} x {patch_width}: set dynamic_img_pad=True, or resize the images"
        )
    return height, width


def create_stem(
    stem: Stem,
    in_channels: int,
    embed_dim: int,
    *,
    patch_size: tuple[int, int],
    stem_kwargs: Mapping[str, Any] | None = None,
) -> StemLayer:
    """Return the module that maps images to a grid of patch tokens."""
    check_choice("stem", stem, get_args(Stem))
    if min(patch_size) < 1 or min(in_channels, embed_dim) < 1:
        raise ValueError(
            "patch_size, in_channels and embed_dim must be at least 1, got "
            f"{patch_size}, {in_channels} and {embed_dim}"
        )
    patch_kwargs = {} if stem == "overlapping" else {"patch_size": patch_size}
    try:
        return _STEMS[stem](in_channels, embed_dim, **patch_kwargs, **(stem_kwargs or {}))
    except TypeError as error:
        raise ValueError(f"the stem {stem!r} does not take these arguments: {error}") from error


def layer_attn_types(attn_type: str | Sequence[str], depth: int) -> tuple[str, ...]:
    """Return the attention type of each layer; several types are cycled through."""
    types = (attn_type,) if isinstance(attn_type, str) else tuple(attn_type)
    for name in types:
        check_choice("attn_type", name, get_args(AttentionType))
    if not 1 <= len(types) <= depth:
        raise ValueError(
            f"attn_type must be 1 to {depth} types, at most one per layer, got {len(types)}"
        )
    return tuple(types[index % len(types)] for index in range(depth))


@dataclass(frozen=True)
class LayerOptions:
    """What all encoder layers of a model have in common; as in `VisionTransformer`."""

    embed_dim: int
    hidden_dim: int
    """Hidden size of the feed-forward network."""
    num_heads: int
    ffn_layer: FFNLayer
    window_size: tuple[int, int]
    relative: bool
    """Whether layers learn relative position biases."""
    layer_scale: float | None
    drop_path_rate: float
    norm_eps: float
    attention: Mapping[str, bool]
    """Further options of `TokenAttention`."""


def create_layers(
    attn_types: Sequence[str], grid_size: tuple[int, int], options: LayerOptions
) -> nn.ModuleList:
    """Return the encoder layers; the stochastic depth rate rises linearly with depth."""
    check_choice("ffn_layer", options.ffn_layer, get_args(FFNLayer))
    ffn_class = FeedForward if options.ffn_layer == "mlp" else SwiGLU
    layers = nn.ModuleList()
    for index, attn_type in enumerate(attn_types):
        extent = grid_size if attn_type == "full" else options.window_size
        attention = TokenAttention(
            options.embed_dim,
            num_heads=options.num_heads,
            attn_type=attn_type,  # pyright: ignore[reportArgumentType]
            window_size=options.window_size,
            max_relative_position=(extent[0] - 1, extent[1] - 1) if options.relative else None,
            norm_eps=options.norm_eps,
            **options.attention,
        )
        layer = EncoderLayer(
            options.embed_dim,
            attention,
            ffn_class(options.embed_dim, options.hidden_dim),
            layer_scale=options.layer_scale,
            drop_path=options.drop_path_rate * index / max(1, len(attn_types) - 1),
            norm_eps=options.norm_eps,
        )
        layers.append(layer)
    return layers


def create_pool(
    global_pool: GlobalPool, embed_dim: int, *, num_heads: int, hidden_dim: int, norm_eps: float
) -> AttentionPool | SequencePool | None:
    """Return the pooling module, or None if pooling has no parameters."""
    check_choice("global_pool", global_pool, get_args(GlobalPool))
    if global_pool == "attention":
        return AttentionPool(
            embed_dim, num_heads=num_heads, hidden_dim=hidden_dim, norm_eps=norm_eps
        )
    return SequencePool(embed_dim) if global_pool == "sequence" else None


def prefix_token_roles(
    global_pool: GlobalPool, class_token: bool | None, *, distilled: bool, num_registers: int
) -> tuple[str, ...]:
    """Return the roles of the prefix tokens, in order."""
    has_class_token = global_pool == "class" if class_token is None else class_token
    if global_pool == "class" and not has_class_token:
        raise ValueError("global_pool='class' needs a class token: set class_token to None or True")
    if distilled and global_pool != "class":
        raise ValueError(
            "distilled=True needs global_pool='class', because the distillation token is used "
            f"beside the class token; got {global_pool!r}"
        )
    if not 0 <= num_registers <= _MAX_REGISTERS:
        raise ValueError(f"num_registers must be 0 to {_MAX_REGISTERS}, got {num_registers}")
    return (
        ("class",) * has_class_token + ("distillation",) * distilled + ("register",) * num_registers
    )


def check_pos_embed_type(
    pos_embed_type: PosEmbedType, attn_types: Sequence[str], patch_drop_rate: float
) -> None:
    """Check the position embedding type, and that patch dropout suits all layers."""
    check_choice("pos_embed_type", pos_embed_type, get_args(PosEmbedType))
    local = sorted({"window", "shifted", "neighborhood"} & set(attn_types))
    if patch_drop_rate and (local or pos_embed_type == "relative"):
        option = f"attn_type={local[0]!r}" if local else "pos_embed_type='relative'"
        raise ValueError(
            f"{option} needs all patches of the grid, so it cannot be combined with "
            f"patch_drop_rate={patch_drop_rate}: set one of the two back to its default"
        )


class TransformerClassifier(ImageClassifier):
    """What classifiers of tokens share: a linear head, and images of any multiple of a patch."""

    norm: nn.Module
    """Norm after the last layer."""
    patch_embed: StemLayer
    dynamic_img_pad: bool

    @property
    def head(self) -> nn.Module:
        """The final classification layer."""
        return cast("nn.Module", self._modules["head"])

    def set_head(self, dim: int) -> None:
        """Create the head, for which assignment does not work, since `head` is a property."""
        self._modules["head"] = nn.Linear(dim, len(self.class_names))

    def init_linear_layers(self) -> None:
        """Initialize linear layers as timm does."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def accepts_size(self, height: int, width: int) -> bool:
        """Return True, or raise a ValueError that explains why the size is not accepted."""
        self.padded_size(height, width)
        return True

    def padded_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of images after padding, if it is allowed."""
        return padded_size(
            height, width, patch_size=self.patch_embed.patch_size, pad=self.dynamic_img_pad
        )

    def forward_features(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n w"]:
        """Return all tokens after the last layer and its norm, for normalized images."""
        return self.norm(self.encode(images)[0])

    @abstractmethod
    def encode(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b n w"], TokenLayout]:
        """Return the tokens after the last layer, before its norm, and their layout.

        Raises:
            ValueError: If the image size is not a multiple of the patch size and padding is off.
        """


def to_2tuple(size: int | Sequence[int], name: str) -> tuple[int, int]:
    """Return height and width; a single number stands for both.

    Example:
        >>> to_2tuple(3, "patch_size"), to_2tuple([2, 4], "patch_size")
        ((3, 3), (2, 4))
    """
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"{name} must be a height and a width of at least 1, got {size}")
    return int(sides[0]), int(sides[1])
