"""Model analysis: correct metadata, cached, and without side effects."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from windows import swin_windows

from visattn import Explainer, explain, methods_for
from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.vit import VisionTransformer
from visattn.recording.model_info import FeatureLayer
from visattn.recording.probe import ObservedTokens
from visattn.recording.subject import analyze_model


def vit(**options: Any) -> Any:
    torch.manual_seed(3)
    small = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": (48, 80), "num_classes": 5}
    return timm.create_model("deit_tiny_distilled_patch16_224", **small, **options)


def test_visattn_classifiers_have_class_names_and_take_normalized_images() -> None:
    model = VisionTransformer(
        ("cat", "dog"), img_size=(24, 40), patch_size=8, embed_dim=12, depth=1, num_heads=2,
        global_pool="sequence",
        mean=(0.4,), std=(0.3,),
    ).eval()  # fmt: skip
    subject = analyze_model(model)
    assert subject.class_names == ("cat", "dog")
    assert subject.info.library == "visattn"
    assert (subject.info.mean, subject.info.pooling) == ((0.4,), "attention")
    assert [(layer.site, layer.single_query) for layer in subject.info.attention_layers] == [
        ("blocks.0.attn.tap", False), ("attn_pool.tap", True)
    ]  # fmt: skip
    x = torch.randn(2, 1, 24, 40)
    assert torch.equal(subject.scores(x), model.classify(x))


NETWORKS = {
    "torchvision": (lambda: torchvision.models.mobilenet_v3_small(), "features", (2, 3)),
    "in place": (lambda: torchvision.models.densenet121(), "features.denseblock4", (2, 3)),
    "timm": (lambda: timm.create_model("test_resnet"), "layer4", (2, 3)),
    "visattn": (lambda: TimmClassifier(("a", "b"), "test_resnet", block="se", img_size=(64, 96)),
        "backbone.layer4", (2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_feature_layers_of_cnns_are_not_overwritten_in_place(name: str) -> None:
    build, site, grid = NETWORKS[name]
    info = analyze_model(build(), (64, 96)).info
    assert info.feature_layers[-1] == FeatureLayer(site, "b c y x", grid)
    assert info.attention_layers == ()
    assert info.attention_error == "it has no attention among tokens"
    assert info.pooling == "none"


def test_a_model_is_probed_once_for_each_size() -> None:
    model = vit(dynamic_img_size=True)
    inputs: list[Tensor] = []
    model.patch_embed.register_forward_hook(lambda _, args, __: inputs.append(args[0]))
    explainer = Explainer(model)
    first = explainer.analyze()
    assert explainer.analyze().info is first.info
    # gradients; a photo with noise, to place the tokens
    assert [len(x) for x in inputs] == [1, 4]
    photo = np.zeros((60, 80, 3), np.uint8)
    assert len(explainer.explain([photo], "rollout")) == 1
    assert [len(x) for x in inputs] == [1, 4, 1]
    tensor = torch.zeros(1, 3, 64, 80)
    assert explainer.explain(tensor, "rollout")[0].values.shape == (4, 5)
    assert len(inputs) == 6
    reference = weakref.ref(model)
    del model, first, explainer
    inputs.clear()
    gc.collect()
    assert reference() is None


def test_windows_survive_half_precision() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"depths": (2,), "num_heads": (2,), "embed_dim": 96}
    model: Any = timm.create_model(
        "swin_tiny_patch4_window7_224", **options, window_size=(3, 5), img_size=(60, 100)
    )
    for dtype in (torch.float32, torch.bfloat16):
        [[first], [shifted]] = analyze_model(model.to(dtype)).probe.layouts.values()
        assert isinstance(first, ObservedTokens)
        assert isinstance(shifted, ObservedTokens)
        assert (first.layer.grid, shifted.layer.grid) == ((15, 25), (15, 25))
        for layout, shift in ((first, (0, 0)), (shifted, (1, 2))):
            assert layout.windows is not None
            assert torch.equal(layout.windows, swin_windows((15, 25), (3, 5), shift))


class TwoOutputs(nn.Module):
    """Returns its embedding too, or two heads."""

    def __init__(self, *, heads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.conv = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU())
        self.embed, self.fc = nn.Linear(5, 7), nn.Linear(5 if heads else 7, 11)

    def forward(self, x: Tensor) -> Any:
        pooled = self.conv(x).mean((2, 3))
        embedding = self.embed(pooled)
        return embedding, self.fc(pooled if self.heads else embedding)


def test_the_explained_class_is_one_of_the_scores_not_of_the_features() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    model = TwoOutputs(heads=False).eval()
    batch = Explainer(model, input_size=(24, 32)).prepare(photo).inputs
    scores = model(batch)[1].detach()
    [heatmap] = explain(model, photo, "input_gradient", input_size=(24, 32))
    assert heatmap.info.more["scores"] == "[1]"
    assert heatmap.info.target == int(scores.argmax())
    assert heatmap.info.score == pytest.approx(float(scores.max()), abs=1e-5)
    expected = explain(
        model, photo, "input_gradient", lambda out: out[1].amax(1), input_size=(24, 32)
    )
    torch.testing.assert_close(heatmap.values, expected[0].values)
    heads = TwoOutputs(heads=True).eval()
    without_target = ["eigencam", "kpcacam", "itti_koch"]
    assert methods_for(heads, input_size=(24, 32)) == without_target
    names = [f"class {index}" for index in range(11)]  # as many as one of them has columns
    [named] = explain(heads, photo, "gradcam", input_size=(24, 32), class_names=names)
    assert named.info.more["scores"] == "[1]"
    assert named.info.class_name == names[int(heads(batch)[1].argmax())]
    with pytest.raises(ValueError, match="several tensors that may be class scores"):
        explain(heads, photo, "gradcam", input_size=(24, 32), class_names=names[:5])


def test_features_are_not_explained_as_classes() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    model: Any = torchvision.models.resnet18()
    model.fc = nn.Identity()
    message = (
        r"no classifier, and returns 512 features .*\(normalization follows .*\); .*output\[:, 3"
    )
    with pytest.raises(ValueError, match=message):
        explain(model, photo, "gradcam", 400, input_size=64)
    [heatmap] = explain(model, photo, "gradcam", lambda out: out[:, 400], input_size=64)
    assert heatmap.info.layer == "layer4"
    names = [f"concept {index}" for index in range(512)]  # the user's word that they are scores
    [heatmap] = explain(model, photo, "gradcam", 400, input_size=64, class_names=names)
    assert heatmap.info.class_name == "concept 400"
    squeezed = torchvision.models.squeezenet1_1(num_classes=7).eval()  # it says how many classes
    assert analyze_model(nn.Sequential(squeezed), 64).info.output.error == ""
