"""A vocabulary, a grid and captions of several lengths for small captioners."""

from collections.abc import Callable
from typing import Any

import torch
from random_numbers import numbers
from torch import Tensor

from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import Captioner, TeacherForcedOutput
from visattn.results.kinds import SPECIAL_TOKENS, START

WORDS = (*SPECIAL_TOKENS, *"abcdefghi")
GRID = (2, 5)
SIZES: dict[str, Any] = {"embed_dim": 11, "hidden_size": 17, "attention_dim": 7}


def captioner(kind: Callable[..., Any], *, sharp: bool = False, **options: Any) -> Any:
    """Return a small captioner without dropout; untrained attention is almost uniform."""
    torch.manual_seed(0)
    encoder = SmallEncoder((16, 40), channels=12)
    model = kind(WORDS, encoder, **{**SIZES, "dropout": 0.0, **options})
    with torch.no_grad():
        model.decoder.attention.scorer.vector.mul_(19 if sharp else 1)
    return model.double()


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    """Captions of 5, 3, 3 and 1 words, padded."""
    captions = torch.randint(4, 13, (4, 5), generator=torch.Generator().manual_seed(seed))
    captions[:, 0] = START
    captions[1:3, 3:], captions[3, 1:] = 0, 0
    return captions, torch.tensor([5, 3, 3, 1])


def assert_equal_to_a_loop(
    model: Captioner,
    loop: Callable[[Any, Tensor, list[int]], tuple[Tensor, ...]],
    owners: list[int] | None,
) -> TeacherForcedOutput:
    """Compare packed teacher forcing with a loop over words, in values and gradients.

    `loop` returns the logits, weights and gates of the words of one caption of one image.
    """
    captions, lengths = batch()
    features = numbers(4, 12, *GRID).requires_grad_()
    read = model.teacher_force(
        features, captions, lengths, None if owners is None else torch.tensor(owners)
    )
    fast_sum, plain_sum = torch.zeros(2, dtype=torch.float64).unbind()
    for row, length in enumerate(lengths.tolist()):
        own = read.rows == row
        assert torch.equal(read.steps[own], torch.arange(length))
        packed = (read.logits[own], read.attention.weights[own], read.attention.gate[own])
        image = features[row if owners is None else owners[row]]
        expected = loop(model, image, captions[row, :length].tolist())
        for seed, (fast, slow) in enumerate(zip(packed, expected, strict=True)):
            torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
            weight = numbers(*slow.shape, seed=seed)
            fast_sum = fast_sum + (fast * weight).sum()
            plain_sum = plain_sum + (slow * weight).sum()
    decoder: Any = model.decoder
    learned = [features, *decoder.parameters()]
    for fast, slow in zip(
        torch.autograd.grad(fast_sum, learned), torch.autograd.grad(plain_sum, learned), strict=True
    ):
        torch.testing.assert_close(fast, slow, rtol=1e-7, atol=1e-9)
        assert slow.abs().sum() > 0
    return read
