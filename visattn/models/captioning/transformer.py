"""Transformer captioner: words attend to previous words, then to the grid of the image.

    grid     features -> projection + learned positions -> encoder layers
    words    embedding + sine positions -> L x [causal self-attention, attention to the grid, MLP]
    logits   products with the word embeddings

Source:
    Vaswani et al. 2017, arXiv:1706.03762; pre-norm: Xiong et al. 2020, arXiv:2002.04745.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from visattn.blocks.base import check_choice
from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention_weights
from visattn.functional.captions import WordPacking, pack_words
from visattn.functional.numerics import at_least_float32
from visattn.functional.positions import sincos_pos_embed
from visattn.models.base import ImageEncoder
from visattn.models.captioning.captioner import (
    AttentionStep,
    Captioner,
    MapChoice,
    TeacherForcedOutput,
    feature_projection,
)
from visattn.models.configurable import options_of
from visattn.models.vit import EncoderLayer, feed_forward


class KeyValues(NamedTuple):
    """Keys and values of one attention layer, split into heads."""

    keys: Float[Tensor, "*b h n d"]
    values: Float[Tensor, "*b h n d"]


@dataclass(frozen=True)
class TransformerState:
    """Keys and values of each layer, for the grid of an image and the words of hypotheses."""

    memory: tuple[KeyValues, ...]
    """`b h n d`, for the positions of the grid."""
    cache: tuple[KeyValues | None, ...]
    """`b k h t d`, for the previous words; None at the start."""
    num_words: int = 0
    """Number of words read so far."""

    def reorder_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        images = torch.arange(len(parents), device=parents.device).unsqueeze(1)
        return replace(self, cache=_select(self.cache, (images, parents)))

    def select_images(self, index: Tensor | slice) -> Self:
        """Return the state of the images chosen by index, boolean mask or slice."""
        memory, cache = _select(self.memory, index), _select(self.cache, index)
        return replace(self, memory=memory, cache=cache)


def _select(layers: Sequence[KeyValues | None], index: Any) -> Any:
    return tuple(each and KeyValues(each.keys[index], each.values[index]) for each in layers)


class CausalSelfAttention(nn.Module):
    """Causal multi-head self-attention of words.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = nn.Identity()  # the weights that are used pass here, as in timm

    def forward(
        self,
        x: Float[Tensor, "*b t c"],
        mask: Bool[Tensor, "*b 1 t t"] | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Float[Tensor, "*b t c"], KeyValues]:
        """Return the attention output, and keys and values of the new and the cached words."""
        query, keys, values = (_split(part, self.num_heads) for part in self.qkv(x).chunk(3, -1))
        if cache is not None:
            keys = torch.cat((cache.keys, keys), -2)
            values = torch.cat((cache.values, values), -2)
        weights = self.attn_drop(dot_product_attention_weights(query, keys, mask=mask))
        return self.proj(_merge(weights @ values)), KeyValues(keys, values)


class GridAttention(nn.Module):
    """Multi-head attention of words to the positions of the grid.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.tap = Tap("words")
        self.attn_drop = nn.Identity()  # the weights that are used pass here, as in timm

    def project_keys(self, grid: Float[Tensor, "b n c"]) -> KeyValues:
        """Return keys and values of the grid, computed once per image."""
        keys, values = self.key_value(grid).chunk(2, -1)
        return KeyValues(_split(keys, self.num_heads), _split(values, self.num_heads))

    def forward(
        self, x: Float[Tensor, "b m c"], memory: KeyValues
    ) -> tuple[Float[Tensor, "b m c"], Float[Tensor, "b m h n"]]:
        """Return the output and the weights of each word, in float32."""
        query = _split(self.query(x), self.num_heads)
        weights = dot_product_attention_weights(
            at_least_float32(query), at_least_float32(memory.keys)
        )
        weights = self.attn_drop(weights)
        attended = weights.to(memory.values.dtype) @ memory.values
        return self.proj(_merge(attended)), self.tap(weights.transpose(1, 2))


def _split(x: Float[Tensor, "*b n c"], num_heads: int) -> Float[Tensor, "*b h n d"]:
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def _merge(x: Float[Tensor, "*b h n d"]) -> Float[Tensor, "*b n c"]:
    return x.transpose(-3, -2).flatten(-2)


class CaptionDecoderLayer(nn.Module):
    """Pre-norm transformer decoder layer for words and the positions of a grid.

    The names of its submodules are keys of saved models, and `pipelines/caption_words.py` finds the
    attention by them.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
        self.self_attn = CausalSelfAttention(dim, num_heads)
        self.cross_attn = GridAttention(dim, num_heads)
        self.mlp = feed_forward(dim, round(mlp_ratio * dim))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b m c"], memory: KeyValues, mask: Bool[Tensor, "b 1 m m"]
    ) -> tuple[Float[Tensor, "b m c"], Float[Tensor, "b m h n"]]:
        """Return the updated words of all captions of each image, with weights over the grid."""
        attended, _ = self.self_attn(self.norm1(x), mask)
        return self._read_grid(x + self.dropout(attended), memory)

    def step(
        self, x: Float[Tensor, "b k c"], memory: KeyValues, cache: KeyValues | None
    ) -> tuple[Float[Tensor, "b k c"], Float[Tensor, "b k h n"], KeyValues]:
        """Return one updated word per hypothesis, with its weights and the extended cache."""
        attended, extended = self.self_attn(self.norm1(x).unsqueeze(2), cache=cache)
        return *self._read_grid(x + self.dropout(attended.squeeze(2)), memory), extended

    def _read_grid(
        self, x: Float[Tensor, "b m c"], memory: KeyValues
    ) -> tuple[Float[Tensor, "b m c"], Float[Tensor, "b m h n"]]:
        attended, weights = self.cross_attn(self.norm2(x), memory)
        x = x + self.dropout(attended)
        return x + self.dropout(self.mlp(self.norm3(x))), weights


class GridEncoder(nn.Module):
    """Pre-norm transformer encoder on the positions of the grid."""

    def __init__(self, dim: int, num_heads: int, num_layers: int, mlp_ratio: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(dim, num_heads, round(mlp_ratio * dim)) for _ in range(num_layers)
        )
        # One per layer, as in files of earlier versions; only the last one is used.
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_layers))

    def forward(
        self, grid: Float[Tensor, "b n c"], grid_size: tuple[int, int]
    ) -> Float[Tensor, "b n c"]:
        """Return the normalized output of the last layer; without layers, the grid."""
        if not self.layers:
            return grid
        for layer in self.layers:
            grid = layer(grid, grid_size)
        return self.norms[-1](grid)


class TransformerDecoder(nn.Module):
    """Transformer decoder that attends to the grid in each layer.

    The logits are dot products of the output, after a square linear layer, with the word
    embeddings.

    For the options see `TransformerCaptioner`.
    """

    maps: MapChoice = "last"

    def __init__(
        self,
        num_words: int,
        in_channels: int,
        grid_size: tuple[int, int],
        *,
        embed_dim: int = 256,
        num_layers: int = 3,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
        feature_dropout: float = 0.0,
        encoder_layers: int = 0,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.grid_size = grid_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.feature_proj = feature_projection(in_channels, embed_dim, feature_dropout)
        self.grid_positions = nn.Parameter(torch.empty(grid_size[0] * grid_size[1], embed_dim))
        self.grid_encoder = GridEncoder(embed_dim, num_heads, encoder_layers, mlp_ratio)
        self.embedding = nn.Embedding(num_words, embed_dim)
        layers = [
            CaptionDecoderLayer(embed_dim, num_heads, mlp_ratio, dropout) for _ in range(num_layers)
        ]
        self.layers = cast("Sequence[CaptionDecoderLayer]", nn.ModuleList(layers))
        self.norm = nn.LayerNorm(embed_dim)
        self.output_proj = nn.Linear(embed_dim, embed_dim)
        self.output_bias = nn.Parameter(torch.zeros(num_words))
        self.dropout = nn.Dropout(dropout)
        self._init_weights()

    def _init_weights(self) -> None:
        """Xavier-uniform matrices; embeddings have unit length at the input, on average."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=self.embed_dim**-0.5)
        nn.init.trunc_normal_(self.grid_positions, std=0.02)

    def start(self, features: Float[Tensor, "b c y x"]) -> TransformerState:
        """Return the state before the first word, with one hypothesis per image."""
        grid = self.feature_proj(features.flatten(2).mT) + self.grid_positions
        grid = self.grid_encoder(grid, self.grid_size)
        for layer in self.layers:
            layer.cross_attn.tap.grid = self.grid_size
        memory = tuple(layer.cross_attn.project_keys(grid) for layer in self.layers)
        return TransformerState(memory, (None,) * len(self.layers))

    def step(
        self, state: TransformerState, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], TransformerState, AttentionStep]:
        """Read one word per hypothesis; return next-word logits, the new state and attention."""
        x = self._embed(token, torch.full_like(token, state.num_words), state.num_words + 1)
        weights: list[Tensor] = []
        caches: list[KeyValues] = []
        for layer, memory, cache in zip(self.layers, state.memory, state.cache, strict=True):
            x, heads, extended = layer.step(x, memory, cache)
            weights.append(heads)
            caches.append(extended)
        state = replace(state, cache=tuple(caches), num_words=state.num_words + 1)
        return self._logits(x), state, self._attention(weights)

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> TeacherForcedOutput:
        """Read whole captions; equal to `step` after `step`.

        All words about an image are in one row, and share the keys and values of the grid.
        """
        packing = pack_words(lengths, image_indices)
        # Captions of 3, 3 and 1 words, the first and the last one about image 0; - is padding. A
        # word attends to the words of its caption up to itself.
        #
        #     packed   0 1 2 3 4 5 6     image 0   0 2 3 5     caption   0 2 0 0     step   0 0 1 2
        #                                image 1   1 4 6 -               1 1 1 -            0 1 2 -
        # Linear layers on packed words only would make a training step of `photo_captioner` 1.1
        # times as fast, which is not worth a second layout.
        count = len(features)
        row = packing.by_image(packing.rows, count, fill=-1)
        step = packing.by_image(packing.steps, count)
        token = packing.by_image(captions[packing.rows, packing.steps], count)
        mask = (row[:, :, None] == row[:, None]) & (step[:, None] <= step[:, :, None])
        x = self._embed(token, step, len(packing.counts))
        weights: list[Tensor] = []
        for layer, memory in zip(self.layers, self.start(features).memory, strict=True):
            x, heads = layer(x, memory, mask.unsqueeze(1))
            weights.append(packing.from_images(heads))
        logits = self._logits(packing.from_images(x))
        return TeacherForcedOutput(logits, self._attention(weights), packing.rows, packing.steps)

    def _embed(
        self, token: Int[Tensor, "b m"], step: Int[Tensor, "b m"], num_steps: int
    ) -> Float[Tensor, "b m c"]:
        # The second half of the embedding of a grid encodes the column.
        positions = sincos_pos_embed((1, num_steps), 2 * self.embed_dim, device=token.device)
        words = self.embedding(token) * self.embed_dim**0.5
        return self.dropout(words + positions[:, self.embed_dim :][step])

    def _logits(self, x: Float[Tensor, "*w c"]) -> Float[Tensor, "*w v"]:
        return linear(self.output_proj(self.norm(x)), self.embedding.weight, self.output_bias)

    def _attention(self, weights: Sequence[Float[Tensor, "*w h n"]]) -> AttentionStep:
        """Return the weights that `maps` selects; there is no gate."""
        gate = weights[-1].new_ones(weights[-1].shape[:-2])
        if not isinstance(self.maps, str):
            layer, head = self.maps
            return AttentionStep(weights[layer][..., head, :], gate)
        if self.maps == "last":
            return AttentionStep(weights[-1].mean(-2), gate)
        heads = torch.stack(tuple(weights), -3)
        return AttentionStep(heads.mean((-3, -2)), gate, heads if self.maps == "all" else None)


class TransformerCaptioner(Captioner):
    """Transformer decoder over the feature grid.

    Each layer attends to the previous words, with cached keys and values, and to the projected
    features. A word has a map per layer and head; `maps` selects which is shown and supervised.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        embed_dim: Dimension of words and grid.
        num_layers: Number of decoder layers.
        num_heads: Number of heads; it divides `embed_dim`.
        mlp_ratio: Hidden size of the feed-forward layers, as a multiple of `embed_dim`.
        dropout: Dropout rate of word embeddings and of the output of each sublayer.
        feature_dropout: Dropout rate on features before their projection.
        encoder_layers: Number of self-attention layers on the projected grid.
        maps: Weights of a word: mean over the heads of the `last` layer, `mean` over all layers
            and heads; `all` is the mean, with the weights of each head as `heads`; or those of one
            head, `(layer, head)`, indices from 0. It can be changed later.

    Raises:
        ValueError: If there are no such maps.

    Example:
        >>> import torch
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder, words = SmallEncoder((24, 40), channels=8), (*SPECIAL_TOKENS, "red", "blue")
        >>> model = TransformerCaptioner(words, encoder, embed_dim=12, num_heads=3, maps="all")
        >>> features = encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> steps = model.eval().search(features, max_length=1, min_length=1).attention_steps
        >>> steps.weights.shape[3:], steps.heads.shape[3:]  # 3 layers, 3 heads, 3×5 positions
        (torch.Size([15]), torch.Size([3, 3, 15]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762. Deviations: pre-norm layers; the output is tied to
        the word embeddings through a square linear layer; grid positions are learned.
    """

    @options_of(TransformerDecoder)
    def __init__(
        self,
        words: Sequence[str],
        encoder: ImageEncoder,
        *,
        maps: MapChoice = "last",
        **options: Any,
    ) -> None:
        super().__init__(words, encoder)
        self.decoder = TransformerDecoder(
            len(words), encoder.channels, encoder.grid_size, **options
        )
        self.maps = maps  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def attention_site(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Name of the module whose attention the maps of words show."""
        if self.maps in ("mean", "all"):
            return "decoder.layers"
        layer = self.decoder.num_layers - 1 if self.maps == "last" else self.maps[0]
        return f"decoder.layers.{layer}.cross_attn.tap"

    @property
    def maps(self) -> MapChoice:
        """Weights of a word that are shown and supervised."""
        return self.decoder.maps

    @maps.setter
    def maps(self, maps: MapChoice) -> None:
        layers, heads = self.decoder.num_layers, self.decoder.num_heads
        if isinstance(maps, str):
            check_choice("maps", maps, ("last", "mean", "all"))
        elif not (0 <= maps[0] < layers and 0 <= maps[1] < heads):
            raise ValueError(
                f"maps must be last, mean, all, or a layer from 0 to {layers - 1} and a head from "
                f"0 to {heads - 1}, got {maps[0]} and {maps[1]}"
            )
        self.decoder.maps = maps if isinstance(maps, str) else (maps[0], maps[1])  # or a list
