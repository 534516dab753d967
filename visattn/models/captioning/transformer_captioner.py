"""Transformer captioner: pre-norm decoder with cross-attention to the feature grid."""

from collections.abc import Sequence
from typing import Any

from visattn.models.base import options_of
from visattn.models.captioner import Captioner, MapChoice, WordSite
from visattn.models.captioning.transformer_decoder import (
    TransformerDecoder,
    TransformerDecoderState,
)
from visattn.models.encoder import ImageEncoder


class TransformerCaptioner(Captioner[TransformerDecoderState]):
    """Transformer decoder over the feature grid, with options of M2 and AoANet.

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
        pos_embed: Positions of words: `sincos` or `learned`.
        max_length: Number of positions; longer captions are refused.
        encoder_layers: Number of self-attention layers on the projected grid.
        memory_slots: Learned keys and values beside those of the places, in these layers (M2).
        meshed: Whether the decoder attends to all of these layers, with gates (M2), or to the last.
        attention_on_attention: Whether the attended vector is gated by the query (AoA); the mean
            gate of a word is its `gate`, which is 1 otherwise.
        maps: Weights of a word: mean over the heads of the `last` layer, `mean` over all layers
            and heads; `all` is the mean, with the weights of each head as `heads`; or those of one
            head, `(layer, head)`, indices from 0. It may be set later, too.

    Raises:
        ValueError: If `num_heads` does not divide `embed_dim`, an option is unknown, or there are
            memory slots or meshed attention without encoder layers.

    Example:
        >>> import torch
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
        >>> encoder, words = SmallEncoder((24, 40), channels=8), (*SPECIAL_TOKENS, "red", "blue")
        >>> model = TransformerCaptioner(words, encoder, embed_dim=12, num_heads=3, maps="all")
        >>> features = encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> steps = model.eval().search(features, max_length=1, min_length=1).attention_steps
        >>> steps.weights.shape[3:], steps.heads.shape[3:]  # 3 layers, 3 heads, 3×5 places
        (torch.Size([15]), torch.Size([3, 3, 15]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762; M2: Cornia et al. 2020, arXiv:1912.08226; AoA: Huang
        et al. 2019, arXiv:1908.06954. Deviations: pre-norm layers; the output is tied to the word
        embeddings through a square linear layer; grid positions are learned.
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
