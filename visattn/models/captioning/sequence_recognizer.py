"""Attention-based sequence recognizer: reads the digits or letters of an image one by one."""

from collections.abc import Sequence
from functools import partial

from visattn.blocks.luong import Alignment
from visattn.models.captioner import Captioner
from visattn.models.captioning.attending_decoder import AttendingDecoder, AttendingDecoderState
from visattn.models.captioning.column_attention import AttentionScore, ColumnAttention
from visattn.models.encoder import ImageEncoder


class SequenceRecognizer(Captioner[AttendingDecoderState]):
    """Recurrent decoder that attends to the image for each symbol, and predicts an end token.

    It is a captioner whose words are symbols, so that beam search, panels, pages and
    `visattn caption` work. Its attention has a choice of score functions and windows.

    Args:
        words: The symbols, after `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        score: Score function of the attention; see `ColumnAttention`.
        alignment: `global`, `monotonic` or `predictive`; see `ColumnAttention`.
        embed_dim: Dimension of the symbol embeddings.
        hidden_size: Hidden size of the LSTM.
        attention_dim: Dimension in which features and hidden state are compared.
        window_radius: Columns of the grid to each side of the center of a window.
        window_step: Columns between consecutive monotonic windows.
        dropout: Dropout rate on embeddings and before the output layer.
        feature_proj_dim: Dimension to which features are projected, once per image; None for no
            projection. `dot` needs it to be `hidden_size`.

    Raises:
        ValueError: If an option is unknown or out of range, or the score function is `dot` and
            the dimensions differ.

    Example:
        >>> import torch
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = SequenceRecognizer((*SPECIAL_TOKENS, *"0123456789"), encoder, score="general")
        >>> features = encoder.eval()(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> output = model.eval().search(features, max_length=5)
        >>> output.attention_steps.weights.shape[-1]  # a grid of 3×5 places
        15

    Source:
        Bahdanau et al. 2015, arXiv:1409.0473; Luong et al. 2015, arXiv:1508.04025; on images:
        Shi et al. 2016, arXiv:1603.03915. The decoder is that of `ShowAttendTell` without its gate.
    """

    def __init__(
        self,
        words: Sequence[str],
        encoder: ImageEncoder,
        *,
        score: AttentionScore = "additive",
        alignment: Alignment = "global",
        embed_dim: int = 64,
        hidden_size: int = 128,
        attention_dim: int = 128,
        window_radius: float = 3.0,
        window_step: float = 2.0,
        dropout: float = 0.0,
        feature_proj_dim: int | None = None,
    ) -> None:
        super().__init__(words, encoder)
        if score == "dot" and (feature_proj_dim or encoder.channels) != hidden_size:
            raise ValueError(
                f"score='dot' needs features of hidden_size={hidden_size} channels, got "
                f"{feature_proj_dim or encoder.channels}; set feature_proj_dim to {hidden_size}"
            )
        self.decoder = AttendingDecoder(
            len(words),
            encoder.channels,
            partial(
                ColumnAttention,
                grid_size=encoder.grid_size,
                score=score,
                alignment=alignment,
                window_radius=window_radius,
                window_step=window_step,
            ),
            embed_dim=embed_dim,
            hidden_size=hidden_size,
            attention_dim=attention_dim,
            dropout=dropout,
            feature_proj_dim=feature_proj_dim,
        )
