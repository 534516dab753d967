"""Grad-CAM of single words of a caption."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from visattn.attribution.cam import grad_cam
from visattn.attribution.words import word_attributions
from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.pipelines.caption_words import captioner_run
from visattn.pipelines.explainer import explain
from visattn.results.kinds import SPECIAL_TOKENS, START


def captioner() -> Captioner:
    torch.manual_seed(0)
    words = (*SPECIAL_TOKENS, *"abcdefg")
    model = ShowAttendTell(words, SmallEncoder((24, 40), channels=8), hidden_size=11)
    return model.double().eval()


def gradcam_of_words(words: list[int], features: torch.Tensor) -> torch.Tensor:
    run = captioner_run(captioner(), features, words)
    return word_attributions(run, ["gradcam"])["gradcam"].unflatten(-1, (3, 5))


def test_maps_match_grad_cam_of_each_log_probability() -> None:
    model, words = captioner(), [7, 4, 9, 4, 5]
    features = torch.rand(1, 8, 3, 5, dtype=torch.float64)
    maps = gradcam_of_words(words, features)
    assert maps.shape == (5, 3, 5)
    for index, word in enumerate(words):
        leaf = features.clone().requires_grad_()
        state = model.start(leaf)
        logits = torch.zeros(0)
        for previous in [START, *words[:index]]:
            logits, state, _ = model.step(state, torch.tensor([[previous]]))
        [gradient] = torch.autograd.grad(logits[0, 0].log_softmax(-1)[word], [leaf])
        torch.testing.assert_close(maps[index], grad_cam(features, gradient)[0])


def test_explain_heeds_the_batch_size_and_empty_maps_of_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, photos = captioner().float(), [np.zeros((24, 40, 3), np.uint8)] * 3
    sizes: list[int] = []
    encode = model.encoder.forward

    def counted(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        return encode(images)

    monkeypatch.setattr(model.encoder, "forward", counted)
    maps = explain(model, photos, "words", batch_size=2)
    assert sizes == [2, 1]
    empty = [replace(each, values=torch.zeros_like(each.values)) for each in maps]
    monkeypatch.setattr("visattn.pipelines.caption_words.explain_words", lambda *_, **__: empty)
    kept = explain(model, photos, "words")
    assert [each.info.empty for each in kept] == ["the map is zero everywhere"] * 3
