"""Compiles the forward passes of training as one graph and compares the results.

Run as a program, since the shape checks of the tests cannot be traced: `compiled_training.py soft`.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from visattn.functional.captions import pack_words
from visattn.models.base import SmallEncoder
from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.results.kinds import SPECIAL_TOKENS, START

WORDS = (*SPECIAL_TOKENS, *"abcdefghi")
RECURRENT: dict[str, Any] = {"embed_dim": 11, "hidden_size": 17, "attention_dim": 7}
CAPTIONERS = {
    "soft": (ShowAttendTell, RECURRENT),
    "adaptive": (KnowingWhenToLook, RECURRENT),
    "transformer": (TransformerCaptioner, {"embed_dim": 22, "num_heads": 11, "num_layers": 2}),
}


def check_teacher_forcing(kind: str) -> None:
    """Compare compiled and eager teacher forcing and its gradient."""
    create, options = CAPTIONERS[kind]
    encoder = SmallEncoder((16, 40), channels=12)
    model: Any = create(WORDS, encoder, **options, dropout=0.0)
    captions = torch.randint(4, 13, (4, 5), generator=torch.Generator().manual_seed(1))
    captions[:, 0] = START
    images = torch.tensor([1, 0, 0, 1])
    packing = pack_words(torch.tensor([5, 3, 3, 1]), images)
    features = torch.randn(2, 12, 2, 5, requires_grad=True)
    compiled = torch.compile(model.teacher_force, fullgraph=True, backend="eager")
    gradients: list[Tensor] = []
    outputs = []
    for run in (compiled, model.teacher_force):
        outputs.append(run(features, captions, packing, images))
        (gradient,) = torch.autograd.grad(outputs[-1].logits.square().sum(), features)
        gradients.append(gradient)
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits)
    torch.testing.assert_close(outputs[0].attention.weights, outputs[1].attention.weights)
    torch.testing.assert_close(*gradients)


def check_rollout(rnn_type: Any) -> None:
    """Compare compiled and eager rollouts."""
    torch.manual_seed(0)
    model = RecurrentAttentionModel(
        "abc", (13, 17), [0.5], [0.3], num_glimpses=4, glimpse_size=5, hidden_size=11, what_dim=7,
        where_dim=5, rnn_type=rnn_type,
    )  # fmt: skip
    images, noise = torch.rand(2, 1, 13, 17), torch.randn(2, 3, 4, 2)
    starts = torch.rand(2, 3, 2) * 2 - 1
    options = {"num_rollouts": 3, "init_locations": starts, "noise": noise}
    compiled = torch.compile(model.rollout, fullgraph=True, backend="eager")
    rollout, expected = compiled(images, **options), model.rollout(images, **options)
    torch.testing.assert_close(rollout.logits, expected.logits)
    torch.testing.assert_close(rollout.policy_means, expected.policy_means)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name in CAPTIONERS:
            check_teacher_forcing(name)
        else:
            check_rollout(name)
        torch.compiler.reset()
        sys.stdout.write(f"{name}\n")
