"""Grad-CAM of single words of a caption."""

from typing import Any

import torch

from visattn.functional.attribution.cam import grad_cam
from visattn.models.captioner import SPECIAL_TOKENS, START, Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import SmallEncoder
from visattn.pipelines.explain_words import word_gradcam_maps


def captioner() -> Captioner[Any]:
    torch.manual_seed(0)
    words = (*SPECIAL_TOKENS, *"abcdefg")
    model = ShowAttendTell(words, SmallEncoder((24, 40), channels=8), hidden_size=11)
    return model.double().eval()


def test_maps_match_grad_cam_of_each_log_probability() -> None:
    model, words = captioner(), [7, 4, 9, 4, 5]
    features = torch.rand(1, 8, 3, 5, dtype=torch.float64)
    maps = word_gradcam_maps(model, features, words)
    assert maps.shape == (5, 3, 5)
    for index, word in enumerate(words):
        leaf = features.clone().requires_grad_()
        state = model.start(leaf)
        logits = torch.zeros(0)
        for previous in [START, *words[:index]]:
            logits, state, _ = model.step(state, torch.tensor([[previous]]))
        [gradient] = torch.autograd.grad(logits[0, 0].log_softmax(-1)[word], [leaf])
        torch.testing.assert_close(maps[index], grad_cam(features, gradient)[0])


def test_caption_of_one_word_has_one_map() -> None:
    maps = word_gradcam_maps(captioner(), torch.rand(1, 8, 3, 5, dtype=torch.float64), [6])
    assert maps.shape == (1, 3, 5)
