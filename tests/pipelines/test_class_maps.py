"""Grad-CAM of several classes in several layers at once."""

import pytest
import timm
import torch

from visattn.models import AttentionResNet, VisionTransformer
from visattn.pipelines.class_maps import class_layer_maps
from visattn.pipelines.explainer import Explainer
from visattn.results.attention_map import AttentionMap

NAMES = ("cat", "dog", "owl", "bee")
PHOTO = (
    torch.randint(0, 256, (37, 53, 3), generator=torch.Generator().manual_seed(3)).byte().numpy()
)


def models() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    resnet = timm.create_model("resnet10t", num_classes=4, pretrained=False)
    return {
        "visattn resnet": AttentionResNet(NAMES, depth=8, stem_width=4),
        "vit": VisionTransformer(
            NAMES, img_size=(24, 40), patch_size=8, embed_dim=8, depth=3, num_heads=2
        ),
        "timm": resnet,
    }


@pytest.mark.parametrize("name", models())
def test_maps_equal_those_of_explain(name: str) -> None:
    explainer = Explainer(models()[name], img_size=(64, 64) if name == "timm" else None)
    batch = explainer.prepare(PHOTO)
    rows = class_layer_maps(explainer.analyze(batch), batch, num_classes=3)
    assert len(rows) > 1
    for row in rows:
        assert len(row) == 3
        shares = [each.info.probability or 0.0 for each in row]
        assert shares == sorted(shares, reverse=True)
        for actual in row:
            target, layer = actual.info.target, actual.info.layer
            assert isinstance(target, int)
            [wanted] = explainer.map(batch, "gradcam", target, layer=layer)
            same(actual, wanted)


def same(actual: AttentionMap, wanted: AttentionMap) -> None:
    top = max(float(wanted.values.max()), 1e-6)
    torch.testing.assert_close(actual.values / top, wanted.values / top, rtol=1e-4, atol=1e-4)
    assert actual.geometry == wanted.geometry
    assert actual.info.class_name == wanted.info.class_name


def test_the_model_is_returned_as_it_was() -> None:
    model = AttentionResNet(NAMES, depth=8, stem_width=4).train()
    explainer = Explainer(model)
    batch = explainer.prepare(PHOTO)
    class_layer_maps(explainer.analyze(batch), batch)
    assert model.training
    assert all(each.requires_grad and each.grad is None for each in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_class_scores_has_none() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    explainer = Explainer(model, img_size=(16, 16), dense=True)
    batch = explainer.prepare(PHOTO)
    assert class_layer_maps(explainer.analyze(batch), batch) == []
