"""Show, Attend and Tell: captions with soft or hard attention.

    before each word, for features a of the grid and hidden state h of the LSTM

    alpha = softmax(v . tanh(W_a a + W_q h))                   where to look
    z = beta * sum alpha_i a_i, with beta = sigmoid(w . h)     what is there, scaled by a gate
    h = LSTM([word; z], h)
    logits = W_o tanh(W_h h + word + W_z z)                    deep output

Source:
    Xu et al. 2015, arXiv:1502.03044.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gumbel_softmax, one_hot

from visattn.blocks.additive import AdditiveAttention
from visattn.blocks.base import check_choice
from visattn.functional.captions import WordPacking, sample_categorical
from visattn.models.base import ImageEncoder
from visattn.models.captioning.captioner import (
    AttentionStep,
    Captioner,
    Places,
    RecurrentDecoder,
    RecurrentState,
    TeacherForcedOutput,
    feature_projection,
)
from visattn.models.configurable import options_of


@dataclass(frozen=True)
class ShowAttendTellState(RecurrentState):
    """State of the decoder."""

    uniforms: Float[Tensor, "b t"] | None = None
    """A random number in [0, 1) per word, from which hard attention samples its position."""


class SoftAttention(nn.Module):
    """Soft attention: the expected feature under additive attention, scaled by a gate.

    If `sample_temperature` is set, training uses relaxed samples of positions instead (see
    `RelaxedPlaces`).

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 4 to 6 and 13; the gate beta is the scalar of
        section 4.2.1.
    """

    places: Places | None = None

    def __init__(self, feature_dim: int, hidden_size: int, attention_dim: int) -> None:
        super().__init__()
        self.scorer = AdditiveAttention(
            feature_dim, query_dim=hidden_size, attention_dim=attention_dim
        )
        self.gate = nn.Linear(hidden_size, 1)
        self.sample_temperature: float | None = None

    def project_keys(self, features: Float[Tensor, "b n c"]) -> Float[Tensor, "b n d"]:
        """Return the part of the scores that does not depend on the word."""
        return self.scorer.key(features)

    def forward(self, state: ShowAttendTellState) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        """Return the context vector z and the attention of each hypothesis."""
        weights = self.alpha(state)
        if self.training and self.sample_temperature is not None:
            # Clamped: an underflow would give an infinite logarithm and a NaN gradient.
            logits = weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
            weights = gumbel_softmax(logits, self.sample_temperature)
        return self.read(weights, state)

    def alpha(self, state: ShowAttendTellState) -> Float[Tensor, "b k n"]:
        """Return the attention weights."""
        return self.scorer.scores(state.hidden, state.keys).softmax(-1)

    def read(
        self, weights: Float[Tensor, "b k n"], state: ShowAttendTellState
    ) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        """Return the weighted sum of the features, scaled by the gate."""
        weights = self.scorer.tap(weights)
        beta = self.gate(state.hidden).sigmoid()
        return beta * (weights @ state.features), AttentionStep(weights, beta.squeeze(-1))


class HardAttention(SoftAttention):
    """Hard attention: the feature of one position, under the probabilities of soft attention.

    It has the parameters of `SoftAttention`, so their weights are interchangeable. In training, the
    state has the random numbers; otherwise `places` selects the position.

    Source:
        Xu et al. 2015, arXiv:1502.03044, section 4.1, with the gate of section 4.2.1.
    """

    places = "argmax"

    def forward(self, state: ShowAttendTellState) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        """Return the context vector z and the attention of each hypothesis."""
        alpha = self.alpha(state)
        context, step = self.read(self.choose(alpha, state), state)
        return context, step._replace(probabilities=alpha)

    def choose(
        self, alpha: Float[Tensor, "b k n"], state: ShowAttendTellState
    ) -> Float[Tensor, "b k n"]:
        """Return weight 1 at the selected position, without a gradient; or alpha itself."""
        if state.uniforms is not None:
            chosen = sample_categorical(alpha.detach(), state.uniforms[:, state.num_words, None])
        elif self.places == "expectation":
            return alpha
        elif self.places == "sample":
            chosen = sample_categorical(alpha, torch.rand(alpha.shape[:-1], device=alpha.device))
        else:
            chosen = alpha.argmax(-1)
        return one_hot(chosen, alpha.shape[-1]).to(alpha.dtype)


class ShowAttendTellDecoder(RecurrentDecoder):
    """LSTM decoder that attends to the grid before it reads a word.

    `attention` builds the attention from the number of feature channels, the hidden size and
    `attention_dim`; for the other options see `ShowAttendTell`.

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 1 to 3 and 7. The projection, with layer norm
        and ReLU, is not in the paper.
    """

    def __init__(
        self,
        num_words: int,
        in_channels: int,
        attention: Callable[[int, int, int], nn.Module],
        *,
        embed_dim: int = 128,
        hidden_size: int = 256,
        attention_dim: int = 128,
        dropout: float = 0.1,
        feature_proj_dim: int | None = None,
        feature_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if feature_dropout and feature_proj_dim is None:
            raise ValueError(
                f"feature_dropout={feature_dropout} needs a feature projection: set "
                "feature_proj_dim, or feature_dropout to 0"
            )
        feature_dim = feature_proj_dim or in_channels
        self.feature_proj = (
            feature_projection(in_channels, feature_proj_dim, feature_dropout)
            if feature_proj_dim
            else nn.Identity()
        )
        self.embedding = nn.Embedding(num_words, embed_dim)
        self.attention: Any = attention(feature_dim, hidden_size, attention_dim)
        self.lstm = nn.LSTMCell(embed_dim + feature_dim, hidden_size)
        self.init_hidden = _init_mlp(feature_dim, hidden_size)
        self.init_cell = _init_mlp(feature_dim, hidden_size)
        self.output_hidden = nn.Linear(hidden_size, embed_dim)
        self.output_context = nn.Linear(feature_dim, embed_dim, bias=False)
        self.output = nn.Linear(embed_dim, num_words)
        self.dropout = nn.Dropout(dropout)

    def start(self, features: Float[Tensor, "b c y x"]) -> ShowAttendTellState:
        """Return the state before the first word, computed from the mean feature."""
        self.attention.scorer.tap.grid = tuple(features.shape[-2:])
        positions = self.feature_proj(features.flatten(2).mT.contiguous())
        mean = positions.mean(1, keepdim=True)
        return ShowAttendTellState(
            positions,
            self.attention.project_keys(positions),
            self.init_hidden(mean),
            self.init_cell(mean),
        )

    def attend(
        self, state: ShowAttendTellState, word: Float[Tensor, "b k e"]
    ) -> tuple[ShowAttendTellState, Float[Tensor, "b k c"], AttentionStep]:
        """Attend with the hidden state, then feed word and context vector to the LSTM."""
        context, attention = self.attention(state)
        return state.read(self.lstm, torch.cat((word, context), -1)), context, attention

    def predict(
        self,
        hidden: Float[Tensor, "*b h"],
        word: Float[Tensor, "*b e"],
        context: Float[Tensor, "*b c"],
    ) -> Float[Tensor, "*b v"]:
        """Return the logits of the next word from the deep output layer."""
        output = torch.tanh(self.output_hidden(hidden) + word + self.output_context(context))
        return self.output(self.dropout(output))


def _init_mlp(in_dim: int, out_dim: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_dim, out_dim), nn.Tanh(), nn.Linear(out_dim, out_dim), nn.Tanh()
    )


class ShowAttendTell(Captioner):
    """Show, Attend and Tell with soft or hard attention.

    Before each word, additive attention scores every position of the grid against the hidden state
    of the LSTM. The context vector is the expected feature with soft attention, and the feature of
    one position with hard attention, scaled by a gate. The next word is predicted from the new
    hidden state, the previous word and the context vector.

    Both have the same parameters. `HardAttentionTask` trains hard attention.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        attention: `soft` or `hard`.
        places: How hard attention selects the position of a word outside of training: the most
            probable one (`argmax`, the default), a sampled one (`sample`), or all of them, as with
            soft attention (`expectation`). The attribute `places` can be set later.
        embed_dim: Dimension of the word embeddings.
        hidden_size: Hidden size of the LSTM.
        attention_dim: Hidden dimension of the additive attention.
        dropout: Dropout rate on word embeddings and before the vocabulary.
        feature_proj_dim: Dimension to which features are projected, once per image; None for no
            projection.
        feature_dropout: Dropout rate on features before the projection.

    Raises:
        ValueError: If there is feature dropout without a projection, or an option is unknown.

    Example:
        >>> import torch
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red", "blue"), encoder, hidden_size=11).eval()
        >>> features = encoder(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
        >>> output = model.search(features, max_length=7)
        >>> output.attention_steps.weights.shape[-1]  # a grid of 3×5 positions
        15

    Source:
        Xu et al. 2015, arXiv:1502.03044. Dropout is applied to embeddings and before the
        vocabulary; the projection, with layer norm and ReLU, is not in the paper.
    """

    attention_site = "decoder.attention.scorer.tap"

    @options_of(ShowAttendTellDecoder)
    def __init__(
        self,
        words: Sequence[str],
        encoder: ImageEncoder,
        *,
        attention: Literal["soft", "hard"] = "soft",
        places: Places | None = None,
        **options: Any,
    ) -> None:
        super().__init__(words, encoder)
        check_choice("attention", attention, ("soft", "hard"))
        module = HardAttention if attention == "hard" else SoftAttention
        self.decoder = ShowAttendTellDecoder(len(words), encoder.channels, module, **options)
        if attention == "hard":
            self.places = places or "argmax"  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def places(self) -> Places | None:
        """How hard attention selects the position of a word; None with soft attention."""
        return self.decoder.attention.places

    @places.setter
    def places(self, places: Places) -> None:
        check_choice("places", places, get_args(Places))
        self.decoder.attention.places = places

    def rollout(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"],
        uniforms: Float[Tensor, "r t"],
    ) -> TeacherForcedOutput:
        """Read whole captions with one sampled position per word, as hard attention trains.

        The arguments are those of `teacher_force`, with a caption repeated for several rollouts,
        and a random number in [0, 1) per word, which determines its position.
        """
        return self.decoder.teacher_force(
            features, captions, lengths, image_indices, uniforms=uniforms
        )
