"""Layers of transformer captioners: decoder layers, and encoder layers with memory slots."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.blocks.base import FastDropout
from visattn.blocks.tap import Tap
from visattn.blocks.transformer.layer import EncoderLayer, FeedForward, run_layers
from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.functional.attention import dot_product_attention, dot_product_attention_weights
from visattn.functional.captions import WordPacking
from visattn.functional.masks import causal_mask
from visattn.functional.numerics import at_least_float32


class GridEncoder(nn.Module):
    """Pre-norm transformer encoder on the places of a feature grid.

    For the options see `TransformerCaptioner`.

    Example:
        >>> encoder = GridEncoder(12, num_heads=3, num_layers=2)
        >>> encoder(torch.zeros(1, 6, 12), (2, 3)).shape
        torch.Size([1, 6, 12])
    """

    def __init__(
        self, dim: int, num_heads: int, num_layers: int, *, mlp_ratio: float = 4.0
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(
                dim,
                TokenAttention(dim, num_heads=num_heads),
                FeedForward(dim, round(mlp_ratio * dim)),
            )
            for _ in range(num_layers)
        )
        # One per layer, as earlier versions saved them: the last one is used.
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_layers))

    def forward(
        self, places: Float[Tensor, "b n c"], grid_size: tuple[int, int]
    ) -> Float[Tensor, "b n c"]:
        """Return the normalized output of the last layer; without layers, the places."""
        if not self.layers:
            return places
        return self.norms[-1](run_layers(self.layers, places, TokenLayout(grid_size)))


class KeyValues(NamedTuple):
    """Keys and values of one attention layer, split into heads."""

    keys: Float[Tensor, "*b h n d"]
    values: Float[Tensor, "*b h n d"]


@dataclass(frozen=True)
class PackedWords:
    """Places of packed words in arrays padded by caption and by image.

    Linear layers run on the p packed words. Self-attention needs the words of each caption beside
    each other; attention to the grid needs all words of an image, so that keys are not copied.
    """

    caption_index: Int[Tensor, " p"]
    caption_shape: tuple[int, int]
    """Number of captions and length of the longest one."""
    image_index: Int[Tensor, " p"]
    image_shape: tuple[int, int]
    """Number of images and the most words that an image has, in all of its captions."""

    @classmethod
    def from_packing(cls, packing: WordPacking, num_images: int) -> Self:
        """Create it from the packed order of the words."""
        # The example of `pack_words`, captions of 3, 3 and 1 words; the first and the last one
        # belong to image 0. Packed words 0 to 6 in both arrays, with - for padding:
        #
        #     by caption   0 3 5        by image   0 2 3 5
        #                  1 4 6                   1 4 6 -
        #                  2 - -
        longest = len(packing.counts)
        most = packing.words_per_image
        return cls(
            packing.rows * longest + packing.steps,
            (packing.counts[0], longest),
            packing.image_indices * most + packing.ranks,
            (num_images, most),
        )

    def pad_captions(self, packed: Float[Tensor, "p c"]) -> Float[Tensor, "r t c"]:
        """Return the words of each caption; padding is 0."""
        return _pad(packed, self.caption_index, self.caption_shape)

    def pack_captions(self, padded: Float[Tensor, "r t c"]) -> Float[Tensor, "p c"]:
        """Return packed words from arrays by caption."""
        return padded.flatten(0, 1).index_select(0, self.caption_index)

    def pad_images(self, packed: Float[Tensor, "p c"]) -> Float[Tensor, "b m c"]:
        """Return the words of each image; padding is 0."""
        return _pad(packed, self.image_index, self.image_shape)

    def pack_images(self, padded: Float[Tensor, "b m ..."]) -> Float[Tensor, "p ..."]:
        """Return packed words from arrays by image."""
        return padded.flatten(0, 1).index_select(0, self.image_index)


def _pad(
    packed: Float[Tensor, "p c"], index: Int[Tensor, " p"], shape: tuple[int, int]
) -> Float[Tensor, "b m c"]:
    padded = packed.new_zeros(math.prod(shape), packed.shape[-1])
    return padded.index_copy(0, index, packed).unflatten(0, shape)


class GridAttentionOutput(NamedTuple):
    """Output of attention to the grid, or of a layer with it, for packed words or hypotheses."""

    output: Float[Tensor, "*w c"]
    weights: Float[Tensor, "*w h n"]
    """Weights of each head over the places."""


class CausalSelfAttention(nn.Module):
    """Multi-head self-attention of each word to the words up to it.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = nn.Identity()  # the weights that are used pass here, as in timm

    def forward(self, x: Float[Tensor, "p c"], words: PackedWords) -> Float[Tensor, "p c"]:
        """Return the attention output of all words of a batch of captions."""
        parts = words.pad_captions(self.qkv(x)).chunk(3, -1)
        query, keys, values = (_split_heads(x, self.num_heads) for x in parts)
        # Captions are short: on a CPU this is several times faster than the fused kernel.
        mask = causal_mask(
            query.shape[-2], query.shape[-2], alignment="upper_left", device=x.device
        )
        weights = self.attn_drop(dot_product_attention_weights(query, keys, mask=mask))
        return self.proj(words.pack_captions(_merge_heads(weights @ values)))

    def step(
        self, x: Float[Tensor, "b k c"], cache: KeyValues | None
    ) -> tuple[Float[Tensor, "b k c"], KeyValues]:
        """Return the attention output of one word per hypothesis, and the extended cache."""
        parts = self.qkv(x).unsqueeze(-2).chunk(3, -1)
        query, keys, values = (_split_heads(x, self.num_heads) for x in parts)
        if cache is not None:
            keys = torch.cat((cache.keys, keys), -2)
            values = torch.cat((cache.values, values), -2)
        output, _ = dot_product_attention(query, keys, values)
        return self.proj(_merge_heads(output).squeeze(-2)), KeyValues(keys, values)


class GridAttention(nn.Module):
    """Multi-head attention of words to the places of a feature grid.

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

    def project_keys(self, places: Float[Tensor, "b n c"]) -> KeyValues:
        """Return keys and values of the places, computed once per image."""
        keys, values = self.key_value(places).chunk(2, -1)
        return KeyValues(_split_heads(keys, self.num_heads), _split_heads(values, self.num_heads))

    def forward(
        self, x: Float[Tensor, "*w c"], memory: KeyValues, words: PackedWords | None = None
    ) -> GridAttentionOutput:
        """Return the output and the weights of each word, which stay in float32.

        Args:
            x: Words, `[b, k, c]`, or packed.
            memory: Keys and values of the places.
            words: Places of packed words.
        """
        query = self.query(x)
        query = _split_heads(query if words is None else words.pad_images(query), self.num_heads)
        weights = dot_product_attention_weights(
            at_least_float32(query), at_least_float32(memory.keys)
        )
        weights = self.attn_drop(weights)
        attended = _merge_heads(weights.to(memory.values.dtype) @ memory.values)
        weights = weights.transpose(1, 2)
        if words is not None:
            attended, weights = words.pack_images(attended), words.pack_images(weights)
        return GridAttentionOutput(self.proj(attended), self.tap(weights))


class CaptionDecoderLayer(nn.Module):
    """Pre-norm transformer decoder layer for words and the places of a feature grid.

    For the options see `TransformerCaptioner`.
    """

    def __init__(
        self, dim: int, num_heads: int, *, mlp_ratio: float = 4.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
        self.self_attn = CausalSelfAttention(dim, num_heads)
        self.cross_attn = GridAttention(dim, num_heads)
        self.mlp = FeedForward(dim, round(mlp_ratio * dim))
        self.dropout = FastDropout(dropout)

    def forward(
        self, x: Float[Tensor, "p c"], memory: KeyValues, words: PackedWords
    ) -> GridAttentionOutput:
        """Return all words of a batch of captions, with weights over the places."""
        x = x + self.dropout(self.self_attn(self.norm1(x), words))
        return self._attend_grid(x, memory, words)

    def step(
        self, x: Float[Tensor, "b k c"], memory: KeyValues, cache: KeyValues | None
    ) -> tuple[GridAttentionOutput, KeyValues]:
        """Return one word per hypothesis, with its weights and the extended cache."""
        output, cache = self.self_attn.step(self.norm1(x), cache)
        return self._attend_grid(x + self.dropout(output), memory, None), cache

    def _attend_grid(
        self, x: Float[Tensor, "*w c"], memory: KeyValues, words: PackedWords | None
    ) -> GridAttentionOutput:
        attention = self.cross_attn(self.norm2(x), memory, words)
        x = x + self.dropout(attention.output)
        return attention._replace(output=x + self.dropout(self.mlp(self.norm3(x))))


def _split_heads(x: Float[Tensor, "*b n c"], num_heads: int) -> Float[Tensor, "*b h n d"]:
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def _merge_heads(x: Float[Tensor, "*b h n d"]) -> Float[Tensor, "*b n c"]:
    return x.transpose(-3, -2).flatten(-2)
