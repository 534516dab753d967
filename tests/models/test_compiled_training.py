"""The forward passes of training and an encoder compile as one graph, with equal results."""

from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.functional.captions import pack_words
from visattn.models.base import SmallEncoder
from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.results.kinds import SPECIAL_TOKENS, START

pytestmark = pytest.mark.compile

WORDS = (*SPECIAL_TOKENS, *"abcdefghi")
RECURRENT: dict[str, Any] = {"embed_dim": 11, "hidden_size": 17, "attention_dim": 7}
CAPTIONERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "soft": (ShowAttendTell, RECURRENT),
    "adaptive": (KnowingWhenToLook, RECURRENT),
    "transformer": (TransformerCaptioner, {"embed_dim": 22, "num_heads": 11, "num_layers": 2}),
}


def whole_graph(function: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="eager")


@pytest.mark.parametrize("kind", CAPTIONERS)
def test_teacher_forcing_and_its_gradient(kind: str) -> None:
    create, options = CAPTIONERS[kind]
    encoder = SmallEncoder((16, 40), channels=12).eval()
    model = create(WORDS, encoder, **options, dropout=0.0)
    captions = torch.randint(4, 13, (4, 5), generator=torch.Generator().manual_seed(1))
    captions[:, 0] = START
    images = torch.tensor([1, 0, 0, 1])
    packing = pack_words(torch.tensor([5, 3, 3, 1]), images)
    photos = torch.randint(256, (2, 3, 16, 40), dtype=torch.uint8)
    torch.testing.assert_close(whole_graph(encoder)(photos), encoder(photos))
    features = torch.randn(2, 12, 2, 5, requires_grad=True)
    gradients: list[Tensor] = []
    outputs = []
    for run in (whole_graph(model.teacher_force), model.teacher_force):
        outputs.append(run(features, captions, packing, images))
        (gradient,) = torch.autograd.grad(outputs[-1].logits.square().sum(), features)
        gradients.append(gradient)
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits)
    torch.testing.assert_close(outputs[0].attention.weights, outputs[1].attention.weights)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("rnn_type", ["rnn", "lstm", "gru"])
def test_rollouts(rnn_type: Any) -> None:
    model = RecurrentAttentionModel(
        "abc", (13, 17), [0.5], [0.3], num_glimpses=4, glimpse_size=5, hidden_size=11, what_dim=7,
        where_dim=5, rnn_type=rnn_type,
    )  # fmt: skip
    images, noise = torch.rand(2, 1, 13, 17), torch.randn(2, 3, 4, 2)
    starts = torch.rand(2, 3, 2) * 2 - 1
    options = {"num_rollouts": 3, "init_locations": starts, "noise": noise}
    rollout, expected = (
        run(images, **options) for run in (whole_graph(model.rollout), model.rollout)
    )
    torch.testing.assert_close(rollout.logits, expected.logits)
    torch.testing.assert_close(rollout.policy_means, expected.policy_means)
