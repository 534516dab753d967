"""Hard attention of a captioner: each word reads one place of the grid, chosen or sampled."""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from visattn.blocks.additive import SelectWeights
from visattn.functional.captions import sample_categorical
from visattn.models.captioner import Places, TeacherForcedOutput
from visattn.models.captioning.attending_decoder import AttendingDecoderState, SoftAttention


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
    the state brings a `PlaceSampler`.

    Args:
        feature_dim: Number of feature channels.
        hidden_size: Hidden size of the LSTM.
        attention_dim: Dimension in which features and hidden state are compared.
        places: How the places are selected; see `select_places`.

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
        return super().selection(state) or self._select

    def _select(self, weights: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        return select_places(weights, self.places)


class PlaceSampler:
    """Selection of a rollout: chooses the place of each word, and records what training needs.

    Args:
        choose: Maps the attention weights of the rows and the step to the places of the rows.
        soft: Rows that read the expectation instead of a place; none if None.

    Example:
        >>> sampler = PlaceSampler.from_uniforms(torch.tensor([[0.5]]))
        >>> state = AttendingDecoderState(*torch.zeros(4, 1, 2, 3).unbind())
        >>> sampler(torch.tensor([[0.25, 0.75]]), state)
        tensor([[0., 1.]])
    """

    def __init__(
        self,
        choose: Callable[[Float[Tensor, "*b n"], int], Int[Tensor, "*b"]],
        *,
        soft: Bool[Tensor, " r"] | None = None,
    ) -> None:
        self.choose, self.soft = choose, soft
        self.places: list[Tensor] = []
        """The places of each step, one per row; without a meaning in soft rows."""
        self._probabilities: list[Tensor] = []
        self._hidden: list[Tensor] = []

    @classmethod
    def from_uniforms(
        cls, uniforms: Float[Tensor, "r t"], *, soft: Bool[Tensor, " r"] | None = None
    ) -> Self:
        """Return a sampler that samples each place with a given number in [0, 1)."""
        return cls(
            lambda weights, step: sample_categorical(weights, uniforms[: len(weights), step]),
            soft=soft,
        )

    @classmethod
    def from_places(cls, places: Int[Tensor, "r t"]) -> Self:
        """Return a sampler that repeats places that were sampled before."""
        return cls(lambda weights, step: places[: len(weights), step])

    def __call__(
        self, weights: Float[Tensor, "*b n"], state: AttendingDecoderState
    ) -> Float[Tensor, "*b n"]:
        """Return weight 1 at the place of each row, or the weights of the soft rows."""
        places = self.choose(weights.detach(), len(self.places))
        self.places.append(places)
        self._probabilities.append(weights)
        self._hidden.append(state.hidden.detach())
        selected = one_place(places, weights)
        if self.soft is None:
            return selected
        return selected.where(~self.soft[: len(weights), None], weights)

    @property
    def probabilities(self) -> Float[Tensor, "*p n"]:
        """The probabilities of the places before each word, packed."""
        return torch.cat(self._probabilities)

    @property
    def log_probs(self) -> Float[Tensor, "*p"]:
        """The log-probability of each sampled place, packed; without a meaning in soft rows."""
        chosen = self.probabilities.gather(-1, torch.cat(self.places).unsqueeze(-1)).squeeze(-1)
        return chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log()

    @property
    def hidden(self) -> Float[Tensor, "*p h"]:
        """The hidden state from which each place was sampled, packed, without a gradient."""
        return torch.cat(self._hidden)


class PlaceRollouts(NamedTuple):
    """Teacher forcing with sampled places, packed."""

    output: TeacherForcedOutput
    """Logits, and the weights with which the places were read."""
    probabilities: Float[Tensor, "p n"]
    """Probabilities of the places."""
    place_log_probs: Float[Tensor, " p"]
    """Log-probability of each sampled place; 0, without a gradient, in soft rows."""
    hidden: Float[Tensor, "p h"]
    """Hidden state before each word, without a gradient."""

    def pad(self, values: Float[Tensor, " p"], num_rollouts: int) -> Float[Tensor, "r m t"]:
        """Return packed values by caption, rollout and word, with 0 for padding."""
        rows, steps = self.output.rows, self.output.steps
        padded = values.new_zeros(int(rows.max()) + 1, int(steps.max()) + 1)
        return padded.index_put((rows, steps), values).unflatten(0, (-1, num_rollouts))
