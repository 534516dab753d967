"""Which places a word rests on: the gradient of that word alone, given those before it."""

from typing import Any

import torch

from visattn.functional.attribution.cam import grad_cam
from visattn.models.captioner import SPECIALS, START, Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import SmallEncoder
from visattn.pipelines.explain_words import word_activations


def captioner() -> Captioner[Any]:
    torch.manual_seed(0)
    words = (*SPECIALS, *"abcdefg")
    model = ShowAttendTell(words, SmallEncoder((24, 40), channels=8), hidden=11)
    return model.double().eval()


def test_each_word_has_the_gradient_of_its_own_log_probability() -> None:
    model, words = captioner(), [7, 4, 9, 4, 5]
    features = torch.rand(1, 8, 3, 5, dtype=torch.float64)
    found = word_activations(model, features, words)
    assert found.shape == (5, 3, 5)
    for at, word in enumerate(words):
        leaf = features.clone().requires_grad_()
        state = model.start(leaf)
        logits = torch.zeros(0)
        for before in [START, *words[:at]]:
            logits, state, _ = model.step(state, torch.tensor([[before]]))
        [gradient] = torch.autograd.grad(logits[0, 0].log_softmax(-1)[word], [leaf])
        torch.testing.assert_close(found[at], grad_cam(features, gradient)[0])


def test_a_caption_of_one_word_has_one_map() -> None:
    found = word_activations(captioner(), torch.rand(1, 8, 3, 5, dtype=torch.float64), [6])
    assert found.shape == (1, 3, 5)
