"""Show, Attend and Tell: captions with soft or hard attention."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from visattn.blocks.additive import SelectWeights
from visattn.blocks.base import check_choice
from visattn.functional.captions import WordPacking, sample_categorical
from visattn.models.base import ImageEncoder
from visattn.models.captioning.attending_decoder import (
    AttendingDecoder,
    AttendingDecoderState,
    SoftAttention,
)
from visattn.models.captioning.captioner import Captioner, Places, TeacherForcedOutput
from visattn.models.configurable import options_of


def select_places(weights: Float[Tensor, "*b n"], places: Places) -> Float[Tensor, "*b n"]:
    """Return the weights with which hard attention reads the places.

    Args:
        weights: Attention weights, the probabilities of the places.
        places: Weight 1 at the most probable place (`argmax`), at a place sampled with the global
            random generator (`sample`), or the probabilities themselves (`expectation`).

    Example:
        >>> select_places(torch.tensor([0.25, 0.75]), "argmax")
        tensor([0., 1.])
    """
    if places == "expectation":
        return weights
    if places == "argmax":
        return one_place(weights.argmax(-1), weights)
    uniforms = torch.rand(weights.shape[:-1], device=weights.device)
    return one_place(sample_categorical(weights, uniforms), weights)


def one_place(indices: Int[Tensor, "*b"], like: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Return weights of 1 at the indices and 0 elsewhere, without a gradient."""
    return one_hot(indices, like.shape[-1]).to(like.dtype)


class HardAttention(SoftAttention):
    """Hard attention: the feature of one place, under the probabilities of soft attention.

    It has the parameters of `SoftAttention`, so that the weights of one fit the other. In training
    the state brings a `PlaceSampler`; otherwise `select_places` selects.

    Source:
        Xu et al. 2015, arXiv:1502.03044, section 4.1, with the gate of section 4.2.1.
    """

    def __init__(
        self,
        feature_dim: int,
        hidden_size: int,
        attention_dim: int,
        places: Places = "argmax",
    ) -> None:
        super().__init__(feature_dim, hidden_size, attention_dim)
        self.places: Places = places

    def selection(self, state: AttendingDecoderState) -> SelectWeights:
        """Return the selection of the state, or the one of this module."""
        return super().selection(state) or partial(select_places, places=self.places)


class PlaceSampler:
    """Selection of a rollout: samples the place of each word, and records what training needs.

    Args:
        uniforms: A number in [0, 1) for each row and word, from which its place follows.

    Example:
        >>> sampler = PlaceSampler(torch.tensor([[0.5]]))
        >>> state = AttendingDecoderState(*torch.zeros(4, 1, 2, 3).unbind())
        >>> sampler(torch.tensor([[0.25, 0.75]]), state)
        tensor([[0., 1.]])
    """

    def __init__(self, uniforms: Float[Tensor, "r t"]) -> None:
        self.uniforms = uniforms
        self._places: list[Tensor] = []
        self._probabilities: list[Tensor] = []

    def __call__(
        self, weights: Float[Tensor, "*b n"], _: AttendingDecoderState
    ) -> Float[Tensor, "*b n"]:
        """Return weight 1 at the place of each row."""
        uniforms = self.uniforms[: len(weights), len(self._places)]
        places = sample_categorical(weights.detach(), uniforms)
        self._places.append(places)
        self._probabilities.append(weights)
        return one_place(places, weights)

    @property
    def probabilities(self) -> Float[Tensor, "*p n"]:
        """The probabilities of the places before each word, packed."""
        return torch.cat(self._probabilities)

    @property
    def log_probs(self) -> Float[Tensor, "*p"]:
        """The log-probability of each sampled place, packed."""
        chosen = self.probabilities.gather(-1, torch.cat(self._places).unsqueeze(-1)).squeeze(-1)
        return chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log()


class PlaceRollouts(NamedTuple):
    """Teacher forcing with sampled places, packed."""

    output: TeacherForcedOutput
    """Logits, and the weights with which the places were read."""
    probabilities: Float[Tensor, "p n"]
    """Probabilities of the places."""
    place_log_probs: Float[Tensor, " p"]
    """Log-probability of each sampled place."""

    def pad(self, values: Float[Tensor, " p"], num_rollouts: int) -> Float[Tensor, "r m t"]:
        """Return packed values by caption, rollout and word, with 0 for padding."""
        rows = self.output.rows
        steps = self.output.steps
        padded = values.new_zeros(int(rows.max()) + 1, int(steps.max()) + 1)
        return padded.index_put((rows, steps), values).unflatten(0, (-1, num_rollouts))


class ShowAttendTell(Captioner[AttendingDecoderState]):
    """Show, Attend and Tell with soft or hard attention.

    Before each word, additive attention scores every place of the grid against the hidden state of
    the LSTM. The context vector is the expected feature with soft attention, and the feature of one
    place with hard attention, scaled by a gate. The next word is predicted from the new hidden
    state, the previous word and the context vector.

    Both have the same parameters. `HardAttentionTask` trains hard attention.

    Args:
        words: The vocabulary; it begins with `SPECIAL_TOKENS`.
        encoder: Maps images to a grid of features.
        embed_dim: Dimension of the word embeddings.
        hidden_size: Hidden size of the LSTM.
        attention_dim: Dimension in which features and hidden state are compared.
        dropout: Dropout rate on word embeddings and before the vocabulary.
        feature_proj_dim: Dimension to which features are projected, once per image; None for no
            projection.
        feature_dropout: Dropout rate on features before the projection.
        attention: `soft` or `hard`.
        places: How hard attention selects the place of a word outside of training: the most
            probable one (`argmax`), a sampled one (`sample`), or all of them, as with soft
            attention (`expectation`). The attribute `places` can be set later.

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
        >>> output.attention_steps.weights.shape[-1]  # a grid of 3×5 places
        15

    Source:
        Xu et al. 2015, arXiv:1502.03044. Dropout sits on embeddings and before the vocabulary; the
        projection, with layer norm and ReLU, is not in the paper.
    """

    hidden_size: int

    @options_of(AttendingDecoder)
    def __init__(
        self,
        words: Sequence[str],
        encoder: ImageEncoder,
        *,
        attention: Literal["soft", "hard"] = "soft",
        places: Places = "argmax",
        **options: Any,
    ) -> None:
        super().__init__(words, encoder)
        check_choice("attention", attention, ("soft", "hard"))
        module = HardAttention if attention == "hard" else SoftAttention
        self.attention = attention
        self.decoder = AttendingDecoder(len(words), encoder.channels, module, **options)
        self.places = places  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def places(self) -> Places | None:
        """How hard attention selects the place of a word; None with soft attention."""
        return self.decoder.attention.places if self.attention == "hard" else None

    @places.setter
    def places(self, places: Places) -> None:
        check_choice("places", places, get_args(Places))
        self._places: Places = places
        if self.attention == "hard":
            self.decoder.attention.places = places

    def saved_arguments(self) -> dict[str, Any]:
        """Return the arguments that build this model as it is now; soft attention keeps places."""
        return super().saved_arguments() | {"places": self.places or self._places}

    def rollout(
        self,
        features: Float[Tensor, "b c y x"],
        captions: Int[Tensor, "r t"],
        lengths: Int[Tensor, " r"] | WordPacking,
        image_indices: Int[Tensor, " r"],
        sampler: PlaceSampler,
    ) -> PlaceRollouts:
        """Read whole captions with one place per word, as hard attention trains.

        The arguments are those of `teacher_force`, with a caption repeated for several rollouts,
        and a sampler that chooses the places, a new one for each call.
        """
        output = self.decoder.teacher_force(
            features, captions, lengths, image_indices, selection=sampler
        )
        return PlaceRollouts(output, sampler.probabilities, sampler.log_probs)
