"""Transformer captioner and its decoder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from visattn.blocks.base import FastDropout, check_choice
from visattn.functional.captions import WordPacking, pack_words
from visattn.functional.positions import sincos_pos_embed
from visattn.models.base import ImageEncoder
from visattn.models.captioning.attending_decoder import feature_projection
from visattn.models.captioning.captioner import (
    AttentionStep,
    Captioner,
    MapChoice,
    TeacherForcedOutput,
    WordSite,
)
from visattn.models.captioning.decoder_layer import (
    CaptionDecoderLayer,
    GridAttentionOutput,
    GridEncoder,
    KeyValues,
    PackedWords,
)
from visattn.models.configurable import options_of

_MAPS = ("last", "mean", "all")


@dataclass(frozen=True)
class TransformerDecoderState:
    """Keys and values of the places of an image, and those of the words of its hypotheses."""

    memory: tuple[KeyValues, ...]
    """Keys and values `[b, h, n, d]` of the places, for each layer."""
    cache: tuple[KeyValues | None, ...]
    """Keys and values `[b, k, h, t, d]` of the words before, for each layer; None at the start."""
    num_words: int = 0
    """Number of words read."""

    def reorder_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        images = torch.arange(len(parents), device=parents.device).unsqueeze(1)
        return replace(self, cache=_select(self.cache, (images, parents)))

    def select_images(self, index: Tensor | slice) -> Self:
        """Return the state of the images chosen by index, boolean mask or slice."""
        memory = tuple(KeyValues(layer.keys[index], layer.values[index]) for layer in self.memory)
        return replace(self, memory=memory, cache=_select(self.cache, index))


def _select(
    cache: Sequence[KeyValues | None], index: Tensor | slice | tuple[Tensor, Tensor]
) -> tuple[KeyValues | None, ...]:
    return tuple(
        None if layer is None else KeyValues(layer.keys[index], layer.values[index])
        for layer in cache
    )


class TransformerDecoder(nn.Module):
    """Pre-norm transformer decoder that attends to the feature grid in each layer.

    The logits are the products of the output, after a square linear layer, and the word embeddings.

    For the options see `TransformerCaptioner`.

    Example:
        >>> decoder = TransformerDecoder(11, 8, (3, 5), embed_dim=12, num_heads=3)
        >>> state = decoder.start(torch.zeros(2, 8, 3, 5))
        >>> logits, state, attention = decoder.step(state, torch.ones(2, 1, dtype=torch.long))
        >>> logits.shape, attention.weights.shape
        (torch.Size([2, 1, 11]), torch.Size([2, 1, 15]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762; pre-norm: Xiong et al. 2020, arXiv:2002.04745.
    """

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
        maps: MapChoice = "last",
    ) -> None:
        super().__init__()
        _check_sizes(embed_dim, num_heads, num_layers, encoder_layers)
        self.embed_dim = embed_dim
        self.grid_size = grid_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.maps = maps
        self.feature_proj = feature_projection(in_channels, embed_dim, feature_dropout)
        self.grid_positions = nn.Parameter(torch.empty(grid_size[0] * grid_size[1], embed_dim))
        self.grid_encoder = GridEncoder(embed_dim, num_heads, encoder_layers, mlp_ratio=mlp_ratio)
        self.embedding = nn.Embedding(num_words, embed_dim)
        layers = [
            CaptionDecoderLayer(embed_dim, num_heads, mlp_ratio=mlp_ratio, dropout=dropout)
            for _ in range(num_layers)
        ]
        self.layers = cast("Sequence[CaptionDecoderLayer]", nn.ModuleList(layers))
        self.norm = nn.LayerNorm(embed_dim)
        self.output_proj = nn.Linear(embed_dim, embed_dim)
        self.output_bias = nn.Parameter(torch.zeros(num_words))
        self.dropout = FastDropout(dropout)
        self._init_weights()

    @property
    def maps(self) -> MapChoice:
        """Weights of a word."""
        return self._maps

    @maps.setter
    def maps(self, maps: MapChoice) -> None:
        _check_maps(maps, self.num_layers, self.num_heads)
        self._maps: MapChoice = maps if isinstance(maps, str) else (maps[0], maps[1])  # or a list

    def _init_weights(self) -> None:
        """Xavier-uniform matrices; embeddings have unit length at the input, on average."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=self.embed_dim**-0.5)
        nn.init.trunc_normal_(self.grid_positions, std=0.02)

    def start(self, features: Float[Tensor, "b c y x"]) -> TransformerDecoderState:
        """Return the state before the first word, with one hypothesis per image."""
        places = self.feature_proj(features.flatten(2).transpose(1, 2)) + self.grid_positions
        places = self.grid_encoder(places, self.grid_size)
        memory: list[KeyValues] = []
        for layer in self.layers:
            layer.cross_attn.tap.grid = self.grid_size
            memory.append(layer.cross_attn.project_keys(places))
        return TransformerDecoderState(tuple(memory), (None,) * len(self.layers))

    def step(
        self, state: TransformerDecoderState, token: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k v"], TransformerDecoderState, AttentionStep]:
        """Read one word per hypothesis; return next-word logits, the new state and attention."""
        positions = self._positions(state.num_words + 1, token.device)
        x = self._embed(token, positions[state.num_words])
        cache: list[KeyValues] = []
        outputs: list[GridAttentionOutput] = []
        for layer, memory, cached in zip(self.layers, state.memory, state.cache, strict=True):
            output, extended = layer.step(x, memory, cached)
            x = output.output
            cache.append(extended)
            outputs.append(output)
        state = replace(state, cache=tuple(cache), num_words=state.num_words + 1)
        return self._logits(x), state, self._attention(outputs)

    def teacher_force(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> TeacherForcedOutput:
        """Read whole captions; equal to `step` after `step`.

        Linear layers run on the words without padding; keys and values of the places are computed
        once per image and shared by all of its captions.
        """
        packing = pack_words(lengths, image_indices)
        rows = packing.rows
        steps = packing.steps
        words = PackedWords.from_packing(packing, len(features))
        positions = self._positions(len(packing.counts), captions.device)
        x = self._embed(captions[rows, steps], positions[steps])
        outputs: list[GridAttentionOutput] = []
        for layer, memory in zip(self.layers, self.start(features).memory, strict=True):
            outputs.append(layer(x, memory, words))
            x = outputs[-1].output
        return TeacherForcedOutput(self._logits(x), self._attention(outputs), rows, steps)

    def _positions(self, count: int, device: torch.device) -> Float[Tensor, "count c"]:
        """Return the position embeddings of the first words."""
        # The second half of the embedding of a grid encodes the column.
        embedded = sincos_pos_embed((1, count), 2 * self.embed_dim, device=device)
        return embedded[:, self.embed_dim :]

    def _embed(
        self, tokens: Int[Tensor, "*w"], positions: Float[Tensor, "*#w c"]
    ) -> Float[Tensor, "*w c"]:
        return self.dropout(self.embedding(tokens) * self.embed_dim**0.5 + positions)

    def _logits(self, x: Float[Tensor, "*w c"]) -> Float[Tensor, "*w v"]:
        return linear(self.output_proj(self.norm(x)), self.embedding.weight, self.output_bias)

    def _attention(self, outputs: Sequence[GridAttentionOutput]) -> AttentionStep:
        """Return the weights that `maps` chooses."""
        weights = outputs[-1].weights
        gate = weights.new_ones(weights.shape[:-2])  # there is none
        if not isinstance(self.maps, str):
            layer, head = self.maps
            return AttentionStep(outputs[layer].weights[..., head, :], gate)
        if self.maps == "last":
            return AttentionStep(weights.mean(-2), gate)
        heads = torch.stack([layer.weights for layer in outputs], -3)
        return AttentionStep(heads.mean((-3, -2)), gate, heads if self.maps == "all" else None)


def _check_maps(maps: MapChoice, num_layers: int, num_heads: int) -> None:
    """Raise a ValueError if a decoder of this size has no such maps."""
    if isinstance(maps, str):
        check_choice("maps", maps, _MAPS)
    elif not (0 <= maps[0] < num_layers and 0 <= maps[1] < num_heads):
        raise ValueError(
            f"maps must be {', '.join(_MAPS)}, or a layer from 0 to {num_layers - 1} and a head "
            f"from 0 to {num_heads - 1}, got {maps[0]} and {maps[1]}"
        )


def _check_sizes(embed_dim: int, num_heads: int, num_layers: int, encoder_layers: int) -> None:
    if min(num_heads, num_layers) < 1 or encoder_layers < 0:
        raise ValueError(
            "num_heads and num_layers must be at least 1 and encoder_layers at least 0, got "
            f"{num_heads}, {num_layers} and {encoder_layers}"
        )
    if embed_dim % num_heads or embed_dim % 2:
        raise ValueError(
            f"embed_dim must be even and divisible by num_heads, got {embed_dim} and {num_heads}"
        )


class TransformerCaptioner(Captioner[TransformerDecoderState]):
    """Transformer decoder over the feature grid.

    Each layer attends to the words before, with cached keys and values, and to the projected
    features. A word has a map per layer and head; `maps` chooses what is shown and supervised.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        embed_dim: Dimension of words and places.
        num_layers: Number of decoder layers.
        num_heads: Number of heads; it divides `embed_dim`.
        mlp_ratio: Hidden size of the feed-forward layers, as a multiple of `embed_dim`.
        dropout: Dropout rate of word embeddings and of the output of each sublayer.
        feature_dropout: Dropout rate on features before their projection.
        encoder_layers: Number of self-attention layers on the projected grid.
        maps: Weights of a word: mean over the heads of the `last` layer, `mean` over all layers
            and heads; `all` is the mean, with the weights of each head as `heads`; or those of one
            head, `(layer, head)`, indices from 0. It may be set later, too.

    Raises:
        ValueError: If `num_heads` does not divide `embed_dim`, or there are no such maps.

    Example:
        >>> import torch
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder, words = SmallEncoder((24, 40), channels=8), (*SPECIAL_TOKENS, "red", "blue")
        >>> model = TransformerCaptioner(words, encoder, embed_dim=12, num_heads=3, maps="all")
        >>> features = encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> steps = model.eval().search(features, max_length=1, min_length=1).attention_steps
        >>> steps.weights.shape[3:], steps.heads.shape[3:]  # 3 layers, 3 heads, 3×5 places
        (torch.Size([15]), torch.Size([3, 3, 15]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762. Deviations: pre-norm layers; the output is tied to
        the word embeddings through a square linear layer; grid positions are learned.
    """

    @options_of(TransformerDecoder)
    def __init__(self, words: Sequence[str], encoder: ImageEncoder, **options: Any) -> None:
        super().__init__(words, encoder)
        self.decoder = TransformerDecoder(
            len(words), encoder.channels, encoder.grid_size, **options
        )

    @property
    def maps(self) -> MapChoice:
        """Weights of a word that are shown and supervised."""
        return self.decoder.maps

    @maps.setter
    def maps(self, maps: MapChoice) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.decoder.maps = maps

    @property
    def attention_site(self) -> str:
        """Name of the module whose attention the maps of words show."""
        if self.maps in ("mean", "all"):
            return "decoder.layers"
        layer = self.decoder.num_layers - 1 if self.maps == "last" else self.maps[0]
        return f"decoder.layers.{layer}.cross_attn.tap"

    def word_sites(self) -> list[WordSite]:
        """Return the attention to the words before and to the image, of each layer."""
        return [
            WordSite(f"decoder.layers.{index}.{name}", attention.attn_drop, cross=cross)
            for index, layer in enumerate(self.decoder.layers)
            for name, attention, cross in (
                ("self_attn", layer.self_attn, False),
                ("cross_attn", layer.cross_attn, True),
            )
        ]

    def head_attention(self) -> tuple[int, int] | None:
        """Return the number of layers and heads with `maps="all"`."""
        decoder = self.decoder
        return (decoder.num_layers, decoder.num_heads) if self.maps == "all" else None
