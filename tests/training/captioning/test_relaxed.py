"""Soft attention that is trained on relaxed samples of places."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.models import ShowAttendTell
from visattn.models.base import SmallEncoder
from visattn.training import RelaxedPlaces

WORDS = ["<pad>", "<start>", "<end>", "<unknown>", "a", "cross"]


def captioner(**options: Any) -> ShowAttendTell:
    torch.manual_seed(0)
    encoder = SmallEncoder((32, 32), channels=8)
    sizes = {"embed_dim": 6, "hidden_size": 8, "attention_dim": 6, "dropout": 0.0}
    return ShowAttendTell(WORDS, encoder, **sizes, **options)


def read_weights(model: ShowAttendTell) -> Tensor:
    """Return the weights with which the places of two captions are read; with a gradient."""
    torch.manual_seed(1)
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    captions = torch.tensor([[1, 4, 5, 2], [1, 5, 4, 2]])
    output = model.teacher_force(model.encoder(images), captions, torch.tensor([4, 4]))
    output.logits.sum().backward()
    return output.attention.weights


def test_places_are_sampled_from_the_start_on_and_in_training_alone() -> None:
    model = captioner()
    task: Any = SimpleNamespace(model=model)
    callback = RelaxedPlaces(start=0.75, temperature=0.1)
    expected = read_weights(model)
    for step, samples in ((0, False), (74, False), (75, True), (99, True)):
        trainer: Any = SimpleNamespace(global_step=step, estimated_stepping_batches=100)
        callback.on_train_batch_start(trainer, task, None, step)
        weights = read_weights(model)
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
        assert torch.equal(weights, expected) != samples
        if samples:  # nearly one place, and not the same for each word
            assert weights.amax(-1).median() > 0.9 > expected.max()
            assert len(weights.argmax(-1).unique()) > 1
    evaluated = read_weights(model.eval())
    callback.on_fit_end(trainer, task)
    assert torch.equal(read_weights(model), evaluated)
    assert torch.equal(read_weights(model.train()), expected)


def test_gradients_pass_through_the_sample_of_a_map_that_has_underflowed() -> None:
    model = captioner()
    with torch.no_grad():
        model.decoder.attention.scorer.vector.mul_(1e4)
    model.decoder.attention.sample_temperature = 0.7
    read_weights(model)
    gradients = [p.grad for p in model.encoder.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
    other: Any = SimpleNamespace(model=captioner(attention="hard"))
    nothing: Any = None
    with pytest.raises(ValueError, match="soft attention.*ShowAttendTell with HardAttention"):
        RelaxedPlaces().setup(nothing, other, "fit")
