"""Vision Transformer: image patches become tokens that attend to each other.

image --stem--> patches [b w v u] --flatten, + positions--> tokens [b n w], n = v u
  --prepend the class token--> [b 1+n w] --layers--> norm, pool --head--> logits
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize, pad, pixel_unshuffle
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

import visattn.functional as F
from visattn.blocks.tap import Tap
from visattn.functional.positions import sincos_pos_embed
from visattn.models.base import ImageClassifier

Stem = Literal["patch", "conv", "shifted", "overlapping"]
Pattern = Literal["full", "neighborhood", "strided", "linformer", "lsh"]
PosEmbedType = Literal["learned", "sine"]
GlobalPool = Literal["class", "mean", "sequence"]

# With these, each token attends to about thirty others.
_KERNEL = 5  # side of the neighborhood
_RANK = 32  # number of Linformer's mixtures
_CHUNK, _ROUNDS = 16, 2  # tokens per chunk and number of rounds of LSH
_EPS = 1e-6  # epsilon of layer norms, as in timm


def feed_forward(dim: int, hidden_dim: int) -> nn.Sequential:
    """Return two linear layers with a GELU between them.

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1.
    """
    layers = (nn.Linear(dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, dim))
    return nn.Sequential(OrderedDict(zip(("fc1", "act", "fc2"), layers, strict=True)))


class Attention(nn.Module):
    """Multi-head self-attention of the tokens of an image: class tokens, then a grid.

    The output comes from a fused kernel. Weights are computed only for a recorder, and only the
    rows that it requests.

    Args:
        dim: Token dimension.
        num_heads: Number of heads; it divides `dim`.
        attention: To which tokens a patch attends, as in `VisionTransformer`.
        num_tokens: Number of tokens; `linformer` and `lsh` have weights for it.
        qkv_bias: Whether queries, keys and values have a bias.
        lsa: Locality self-attention, as in `VisionTransformer`.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; locality: Lee et al. 2021,
        arXiv:2112.13492, section 3.2. Parameter names as in timm.
    """

    NO_WEIGHT_DECAY = ("temperature",)
    directions: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        attention: Pattern = "full",
        num_tokens: int = 0,
        qkv_bias: bool = True,
        lsa: bool = False,
    ) -> None:
        super().__init__()
        if lsa and attention != "full":
            raise ValueError(f"lsa needs full attention, got {attention}")
        width = dim // num_heads
        self.num_heads = num_heads
        self.attention = attention
        self.qkv = nn.Linear(dim, dim * (2 if attention == "lsh" else 3), bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), width**-0.5)) if lsa else None
        self.tap = Tap("tokens")
        if attention == "linformer":
            self.mixing = nn.Parameter(torch.randn(_RANK, num_tokens) * num_tokens**-0.5)
            self.tap.unsupported = "its keys are mixtures of tokens"
        if attention == "lsh":
            directions = torch.randn(_ROUNDS, width, max(1, num_tokens // _CHUNK))
            self.register_buffer("directions", directions)

    def forward(self, x: Float[Tensor, "b n w"], grid: tuple[int, int]) -> Float[Tensor, "b n w"]:
        """Return the attention output of each token."""
        parts = self.qkv(x).unflatten(-1, (-1, self.num_heads, x.shape[2] // self.num_heads))
        queries, *keys, values = parts.permute(2, 0, 3, 1, 4)  # each b h n d
        key = keys[0] if keys else normalize(queries, dim=-1)
        queries = queries if self.temperature is None else queries * self.temperature
        weights = self._record(queries, key, values, grid) if self.tap.wanted else None
        if weights is not None and self.tap.differentiable:
            output = weights @ values
        else:
            output = self.attend(queries, key, values, grid)[0]
        return self.proj(output.transpose(1, 2).flatten(2))

    def attend(
        self,
        queries: Float[Tensor, "b h n d"],
        keys: Float[Tensor, "b h n d"],
        values: Float[Tensor, "b h n d"],
        grid: tuple[int, int],
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n m"] | None]:
        """Return the output of all heads, and the weights if requested."""
        if self.attention == "full":
            return F.dot_product_attention(queries, keys, values, **self._locality(queries))
        if self.attention == "linformer":
            return F.linformer_attention(queries, keys, values, self.mixing)
        first = queries.shape[2] - grid[0] * grid[1]
        q, k, v = (part[:, :, first:] for part in (queries, keys, values))
        if self.attention == "neighborhood":
            output, weights = F.neighborhood_attention(
                q, k, v, grid, kernel_size=_KERNEL, need_weights=need_weights
            )
        elif self.attention == "strided":
            output, weights = F.strided_attention(q, k, v, grid, need_weights=need_weights)
        else:
            buckets = F.lsh_buckets(q, self.directions)
            output, weights = F.lsh_attention(
                q, v, buckets, chunk_size=_CHUNK, need_weights=need_weights
            )
        if first:  # a class token attends to all tokens
            read, rows = F.dot_product_attention(
                queries[:, :, :first], keys, values, need_weights=need_weights
            )
            output = torch.cat((read, output), 2)
            if rows is not None:
                weights = torch.cat((rows, pad(cast("Tensor", weights), (first, 0))), 2)
        return output, weights

    def _locality(
        self, queries: Float[Tensor, "b h n d"], rows: slice | list[int] = slice(None)
    ) -> dict[str, Any]:
        """Return the options of LSA: a learned scale, and a mask of the diagonal."""
        if self.temperature is None:
            return {}
        itself = torch.eye(queries.shape[2], dtype=torch.bool, device=queries.device)
        return {"scale": 1.0, "mask": ~itself[rows]}

    def _record(
        self,
        queries: Float[Tensor, "b h n d"],
        keys: Float[Tensor, "b h n d"],
        values: Float[Tensor, "b h n d"],
        grid: tuple[int, int],
    ) -> Float[Tensor, "b g r n"]:
        """Pass the rows and heads that a recorder requests through the tap."""
        count, request = queries.shape[2], self.tap.request
        self.tap.grid = grid
        self.tap.roles = ("class",) * (count - grid[0] * grid[1])
        self.tap.fulfilled = request
        heads = request.head_indices(self.num_heads)
        rows = request.query_indices(self.tap.roles, count)
        if self.attention == "full":
            weights = F.dot_product_attention_weights(
                queries[:, heads][:, :, rows], keys[:, heads], **self._locality(queries, rows)
            )
        else:
            everything = self.attend(queries, keys, values, grid, need_weights=True)[1]
            weights = cast("Tensor", everything)[:, heads][:, :, rows]
        return self.tap(weights)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"num_heads={self.num_heads}, attention={self.attention}"


class EncoderLayer(nn.Module):
    """Pre-norm transformer encoder layer.

    Args:
        dim: Token dimension.
        num_heads: Number of heads.
        hidden_dim: Hidden dimension of the MLP.
        drop_path: Probability of dropping a branch of an image in training.
        options: Further arguments of `Attention`.

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, equations 2 and 3; stochastic depth: Huang et al.
        2016, arXiv:1603.09382, scaled in training as dropout is. Parameter names as in timm.
    """

    def __init__(
        self, dim: int, num_heads: int, hidden_dim: int, *, drop_path: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, _EPS), nn.LayerNorm(dim, _EPS)
        self.attn = Attention(dim, num_heads, **options)
        self.mlp = feed_forward(dim, hidden_dim)
        self.drop_path = drop_path

    def forward(self, x: Float[Tensor, "b n w"], grid: tuple[int, int]) -> Float[Tensor, "b n w"]:
        """Return the updated tokens."""
        x = x + self._drop(self.attn(self.norm1(x), grid))
        return x + self._drop(self.mlp(self.norm2(x)))

    def _drop(self, branch: Float[Tensor, "b n w"]) -> Float[Tensor, "b n w"]:
        if not self.training or not self.drop_path:
            return branch
        kept = 1 - self.drop_path
        return branch * (branch.new_empty(branch.shape[0], 1, 1).bernoulli_(kept) / kept)


def _patch_stem(channels: int, dim: int, patch: tuple[int, int]) -> nn.Module:
    """Return a linear projection of each patch, equation 1 of the ViT."""
    return nn.Sequential(OrderedDict(proj=nn.Conv2d(channels, dim, patch, patch)))


def _conv_stem(channels: int, dim: int, patch: tuple[int, int]) -> nn.Module:
    """Return stride-2 convolutions, one for each factor of two of the patch size.

    Each has twice as many channels as the one before, the last one dim / 2.

    Source:
        Xiao et al. 2021, arXiv:2106.14881, section 4; the channels follow from `dim`.
    """
    halvings = patch[0].bit_length() - 1
    if patch != (2**halvings,) * 2:
        raise ValueError(f"a convolutional stem needs patches of 2, 4, 8, ... pixels, got {patch}")
    widths = [channels, *(dim >> step for step in range(halvings, 0, -1))]
    stack = nn.Sequential()
    for before, after in pairwise(widths):
        stack.append(nn.Conv2d(before, after, 3, 2, padding=1, bias=False))
        stack.extend((nn.BatchNorm2d(after), nn.ReLU()))
    return nn.Sequential(OrderedDict(stack=stack, proj=nn.Conv2d(widths[-1], dim, 1)))


def _overlapping_stem(channels: int, dim: int, _: tuple[int, int]) -> nn.Module:
    """Return the convolutional tokenizer of compact transformers, which halves the image.

    Source:
        Hassani et al. 2021, arXiv:2104.05704, section 3.3, with one layer (CCT-7/3x1).
    """
    conv = nn.Conv2d(channels, dim, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    layer = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    return nn.Sequential(OrderedDict(conv_layers=nn.Sequential(layer)))


class ShiftedPatches(nn.Module):
    """Shifted patch tokenization: patches of the image and of four copies, half a patch away.

    Source:
        Lee et al. 2021, arXiv:2112.13492, section 3.1, and the authors' code: along all four
        diagonals, zeros from outside, layer norm before the projection.
    """

    def __init__(self, channels: int, dim: int, patch: tuple[int, int]) -> None:
        super().__init__()
        if patch[0] != patch[1]:
            raise ValueError(f"shifted patches must be square, got {patch}")
        self.side = patch[0]
        self.norm = nn.LayerNorm(5 * channels * self.side**2)
        self.proj = nn.Linear(5 * channels * self.side**2, dim)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the patches on their grid."""
        # Negative padding crops: each copy is shifted.
        moves = ((1, 1), (1, -1), (-1, 1), (-1, -1))
        steps = [(self.side // 2 * down, self.side // 2 * right) for down, right in moves]
        copies = [pad(images, (dx, -dx, dy, -dy)) for dy, dx in steps]
        pixels = pixel_unshuffle(torch.cat((images, *copies), 1), self.side).permute(0, 2, 3, 1)
        return self.proj(self.norm(pixels)).permute(0, 3, 1, 2)


_STEMS = {
    "patch": _patch_stem,
    "conv": _conv_stem,
    "shifted": ShiftedPatches,
    "overlapping": _overlapping_stem,
}


class SequencePool(nn.Module):
    """Sequence pooling: softmax-weighted mean of the patches, with learned scores.

    Source:
        Hassani et al. 2021, arXiv:2104.05704, section 3.2.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.tap = Tap("tokens", single_query=True)

    def forward(self, x: Float[Tensor, "b n w"], grid: tuple[int, int]) -> Float[Tensor, "b w"]:
        """Return one vector per image."""
        weights = self.score(x).squeeze(-1).softmax(-1)
        self.tap.grid = grid
        return (self.tap(weights).unsqueeze(1) @ x).squeeze(1)


class VisionTransformer(ImageClassifier):
    """Vision Transformer (ViT).

    Images may have any size that is a multiple of the patch size, except with `linformer`: learned
    position embeddings are interpolated, others are computed. `visattn.record` records the
    attention of all layers. Weights have timm's keys where the modules are the same.

    Args:
        class_names: Names of the classes, in the order of the logits.
        img_size: Default height and width of the input images, in pixels.
        patch_size: Side of a patch in pixels, or its height and width.
        stem: Patch embedding: `patch`, a linear projection of each patch; `conv`, a stack of
            small convolutions; `shifted`, a projection of the patch and four shifted copies (SPT);
            or `overlapping`, the convolutional tokenizer of compact transformers, which ignores
            `patch_size`.
        embed_dim: Embedding dimension.
        depth: Number of layers.
        num_heads: Number of attention heads; must divide `embed_dim`.
        mlp_ratio: Ratio of the MLP's hidden dimension to `embed_dim`.
        attention: To which tokens a patch attends: `full`, to all; `neighborhood`, to the 5 × 5
            patches around it; `strided`, to its row and its column; `lsh`, to those of its hash
            bucket (Reformer); `linformer`, to 32 mixtures of all tokens, which have no map. The
            class token always attends to all.
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
        `lsa`); Hassani et al. 2021, arXiv:2104.05704 (`overlapping`, `sequence`). For `attention`
        see `visattn.functional.efficient`.
    """

    NO_WEIGHT_DECAY = ("cls_token", "pos_embed")

    def __init__(
        self,
        class_names: Sequence[str],
        *,
        img_size: tuple[int, int] = (224, 224),
        patch_size: int | tuple[int, int] = 16,
        stem: Stem = "patch",
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        attention: Pattern = "full",
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
        chosen = (stem, attention, pos_embed_type, global_pool)
        for value, kind in zip(chosen, (Stem, Pattern, PosEmbedType, GlobalPool), strict=True):
            if value not in get_args(kind):
                raise ValueError(f"{value!r} must be one of {', '.join(get_args(kind))}")
        sides = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)
        self.patch_size = sides
        self.embed_dim = embed_dim
        self.grad_checkpointing = grad_checkpointing
        self.global_pool = global_pool
        self.patch_embed = _STEMS[stem](len(self.mean), embed_dim, sides)
        self.steps = (2, 2) if stem == "overlapping" else sides
        self.check_size(self.img_size)
        self.grid_size = (-(-img_size[0] // self.steps[0]), -(-img_size[1] // self.steps[1]))
        self.cls_token = (
            nn.Parameter(torch.zeros(1, 1, embed_dim)) if global_pool == "class" else None
        )
        count = (global_pool == "class") + self.grid_size[0] * self.grid_size[1]
        learned = pos_embed_type == "learned"
        self.pos_embed = nn.Parameter(torch.zeros(1, count, embed_dim)) if learned else None
        self.blocks = nn.ModuleList(
            EncoderLayer(
                embed_dim, num_heads, round(embed_dim * mlp_ratio), attention=attention,
                num_tokens=count, qkv_bias=qkv_bias, lsa=lsa,
                drop_path=drop_path_rate * index / max(1, depth - 1),
            )
            for index in range(depth)
        )  # fmt: skip
        # The norm is before the pooling, or after the mean; the other is the identity, as in timm.
        norms = nn.LayerNorm(embed_dim, _EPS), nn.Identity()
        self.norm, self.fc_norm = norms[::-1] if global_pool == "mean" else norms
        self.attn_pool = SequencePool(embed_dim) if global_pool == "sequence" else None
        self.head = nn.Linear(embed_dim, len(self.class_names))
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

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        return self.head(self.pool(*self.encode(images)))

    def encode(
        self, images: Float[Tensor, "b c y x"]
    ) -> tuple[Float[Tensor, "b n w"], tuple[int, int]]:
        """Return the tokens after the last layer, before its norm, and the grid of the patches."""
        self.check_size((images.shape[2], images.shape[3]))
        patches = self.patch_embed(images)
        grid = (patches.shape[2], patches.shape[3])
        x = patches.flatten(2).mT + self._grid_positions(grid, images.device)
        if self.cls_token is not None:
            token = self.cls_token
            token = token if self.pos_embed is None else token + self.pos_embed[:, :1]
            x = torch.cat((token.expand(x.shape[0], -1, -1), x), 1)
        x = x.contiguous()
        for block in self.blocks:
            if self.grad_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, grid, use_reentrant=False)
            else:
                x = block(x, grid)
        return x, grid

    def check_size(self, size: tuple[int, int]) -> None:
        """Check that the image size is a multiple of the patch size."""
        if self.steps == self.patch_size and (size[0] % self.steps[0] or size[1] % self.steps[1]):
            raise ValueError(
                f"the image size {size[0]} x {size[1]} is not a multiple of the patch size "
                f"{self.steps[0]} x {self.steps[1]}: resize the images"
            )

    def _grid_positions(
        self, grid: tuple[int, int], device: torch.device
    ) -> Float[Tensor, "#b n w"]:
        """Return the position embeddings of a grid; learned ones are interpolated as in timm."""
        if self.pos_embed is None:
            return sincos_pos_embed(grid, self.embed_dim, device=device)[None]
        cells = self.pos_embed[:, self.pos_embed.shape[1] - self.grid_size[0] * self.grid_size[1] :]
        # An exported graph serves all sizes, so it must not branch on the grid size.
        exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
        if not exporting() and grid == self.grid_size:
            return cells
        image = cells.float().mT.unflatten(2, self.grid_size)
        image = interpolate(image, grid, mode="bicubic", antialias=True)
        return image.flatten(2).mT.to(cells.dtype)

    def pool(self, tokens: Float[Tensor, "b n w"], grid: tuple[int, int]) -> Float[Tensor, "b w"]:
        """Return the input of the head, given the tokens after the last layer."""
        if self.global_pool == "class":
            return self.norm(tokens[:, 0])
        patches = self.norm(tokens)
        pooled = patches.mean(1) if self.attn_pool is None else self.attn_pool(patches, grid)
        return self.fc_norm(pooled)
