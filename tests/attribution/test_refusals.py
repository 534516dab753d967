"""What methods and targets refuse, and what they say."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dense_models import CLASSES, Segmenter
from small_models import images, small_cnn
from torch import nn

import visattn as va
from visattn import BoxTarget, Geometry, PixelTarget, QueryTarget, RegionTarget
from visattn.attribution.methods import METHODS, get_method
from visattn.attribution.targets import Score, resolve_target
from visattn.models import VisionTransformer
from visattn.recording.subject import analyze_model, describe_model

WHOLE = Geometry.identity((24, 40))
CROP = WHOLE.cropped(0, 8, (24, 24))
SCORES = torch.arange(12.0).view(3, 4)
PHOTO = np.zeros((30, 40, 3), np.uint8)
CNN = small_cnn()
BLIND = replace(CNN, forward=lambda x: (CNN.model(x), x.mean((2, 3)))[1])
NAMELESS = replace(CNN, class_names=())
SEGMENTER = describe_model(Segmenter(), (24, 40), CLASSES)


def map_of(name: str, subject: Any = CNN, **options: Any) -> Callable[[], Any]:
    return lambda: METHODS[name].function(subject, images(), Score((0,)), **options)


def of_vit(name: str, **options: Any) -> Callable[[], Any]:
    def call() -> Any:
        size: Any = {"img_size": (9, 12), "patch_size": 3, "embed_dim": 8, "num_heads": 2}
        model = VisionTransformer(CLASSES, depth=2, **size)
        x = torch.rand(1, 3, 9, 12)
        return METHODS[name].function(analyze_model(model), x, Score((0,)), **options)

    return call


def value_of(target: Any, output: Any = None, geometry: Geometry = WHOLE) -> Callable[[], Any]:
    output = torch.zeros(1, 3, 6, 10) if output is None else output
    return lambda: target.bind(SEGMENTER, [geometry])(output)


def target_of(target: Any, subject: Any = CNN) -> Callable[[], Any]:
    return lambda: resolve_target(target, subject)(SCORES)


CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: get_method("rolout"), "got 'rolout'; did you mean .*rollout"),
    (lambda: get_method("zzz"), "choose from attention, rollout"),
    (map_of("gradcam", layers="head"), "must name a module of small, got 'head'; choose from 0, 1"),
    (map_of("gradcam", layers=2), "got 2; the 2 layers with an index are 0, 2"),
    (map_of("gradcam", layers="2#2"), r"a call of the module, 2#1 to 2#1; got 2#2"),
    (map_of("gradcam", BLIND), "must depend on the layer, but it does not depend on 2 of"),
    (map_of("occlusion", sliding_window_size=3, stride=4), "or windows leave gaps"),
    (of_vit("rollout", heads=2), "indices below 2, got 2"),
    (of_vit("attention", layers=2), "one of the 2 attention layers that the scores"),
    (lambda: va.explain(nn.Sequential(nn.Flatten(), nn.Linear(300, 2)), PHOTO, "rollout",
                        input_size=10), "no attention among tokens"),
    (target_of(4), "must be a class index, 0 to 3; got 4"),
    (target_of(-1), "0 to 3; got -1"),
    (target_of(9, NAMELESS), "0 to 3; got 9"),
    (target_of("dg"), "one of the 4 classes of small, got 'dg'; did you mean dog"),
    (target_of("dog", NAMELESS), "class names of small are unknown"),
    (target_of([0, 1]), "each of 3 images, or one for all; got 2"),
    (target_of(lambda scores: scores.sum()), r"one number for each image, .* got a tensor \[\]"),
    (lambda: resolve_target(lambda scores: scores[:2, 0], CNN, [WHOLE] * 3)(SCORES),
     "one number for each of 3 images, got 2"),
    (value_of(PixelTarget("cta", 3, 3)), "did you mean cat"),
    (value_of(PixelTarget("cat", 40, 3)), "does not see the pixel x=40"),
    (value_of(PixelTarget(0, 35, 3), geometry=CROP), r"it sees \(8, 0, 32, 24\) of the photo; use"),
    (value_of(BoxTarget((50, 0, 60, 9))), "does not see the box"),
    (value_of(BoxTarget((9, 0, 3, 9))), "left, top, right, bottom"),
    (value_of(RegionTarget(None)), "needs a class, a mask, or both"),
    (value_of(RegionTarget(1, torch.ones(3, 3))), "one value per pixel of the photo"),
    (value_of(RegionTarget(1, torch.zeros(24, 40))), "does not see any pixel of the mask"),
    (value_of(RegionTarget("dog")), "no pixel is predicted as dog; the predicted classes are sky"),
    (value_of(PixelTarget(0, 1, 1), [1]), "segmentation model"),
    (value_of(BoxTarget(None), torch.zeros(1, 2)), "output of a detector"),
    (value_of(QueryTarget(0), torch.zeros(1, 2)), r"logits \[b, q, k\]"),
    (value_of(QueryTarget(7, 0), torch.zeros(1, 4, 3)), "below 4, got 7"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), CASES, ids=map(str, range(len(CASES))))
def test_mistakes_are_refused(
    call: Callable[[], Any], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as outside of tests
    with pytest.raises(ValueError, match=match):
        call()
    assert not any(module._forward_hooks for module in CNN.model.modules())
