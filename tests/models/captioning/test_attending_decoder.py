"""Another attention module plugs into the decoder without touching the LSTM."""

from functools import partial

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from visattn.models.captioning.attending_decoder import (
    AttendingDecoder,
    AttendingDecoderState,
    SoftAttention,
)
from visattn.models.captioning.captioner import AttentionStep

CAPTIONS, LENGTHS = torch.tensor([[1, 4, 5, 6], [1, 6, 4, 0]]), torch.tensor([4, 3])


class ArgmaxAttention(SoftAttention):
    """Reads the single place with the largest soft attention weight."""

    def forward(self, state: AttendingDecoderState) -> tuple[Float[Tensor, "b k c"], AttentionStep]:
        _, soft = super().forward(state)
        weights = one_hot(soft.weights.argmax(-1), soft.weights.shape[-1]).to(soft.weights)
        return weights @ state.annotations, AttentionStep(weights, torch.ones_like(soft.gate))

    def attend_projected(
        self, projected: Float[Tensor, "r q"], state: AttendingDecoderState
    ) -> tuple[Float[Tensor, "r c"], AttentionStep]:
        _, soft = super().attend_projected(projected, state)
        weights = one_hot(soft.weights.argmax(-1), soft.weights.shape[-1]).to(soft.weights)
        context = (weights.unsqueeze(1) @ state.annotations).squeeze(1)
        return context, AttentionStep(weights, torch.ones_like(soft.gate))


@pytest.mark.parametrize("attention", [SoftAttention, ArgmaxAttention])
def test_attention_module_is_exchangeable(attention: type[SoftAttention]) -> None:
    torch.manual_seed(0)
    decoder = AttendingDecoder(
        8, 5, partial(attention, attention_dim=7), embed_dim=11, hidden_size=13, dropout=0.0
    ).double()
    features = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    forced = decoder.teacher_force(features, CAPTIONS, LENGTHS)
    one_place = (forced.attention.weights == 1).sum(-1) == 1
    assert bool(one_place.all()) == (attention is ArgmaxAttention)
    state = decoder.start(features)
    for step in range(4):
        logits, state, weights = decoder.step(state, CAPTIONS[:, step, None])
        now = forced.steps == step
        rows = forced.rows[now]
        torch.testing.assert_close(forced.logits[now], logits[rows, 0])
        torch.testing.assert_close(forced.attention.weights[now], weights.weights[rows, 0])
