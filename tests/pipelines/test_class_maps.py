"""Grad-CAM of several classes in several layers."""

import pytest
import timm
import torch

from visattn.models import AttentionResNet, VisionTransformer
from visattn.pipelines.class_maps import class_layer_maps
from visattn.pipelines.explainer import Explainer
from visattn.recording.frozen import frozen

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
def test_rows_are_the_most_probable_classes_in_layers_from_first_to_last(name: str) -> None:
    explainer = Explainer(models()[name], img_size=(64, 64) if name == "timm" else None)
    batch = explainer.prepare(PHOTO)
    rows = class_layer_maps(explainer, batch, num_classes=3)
    assert 1 < len(rows) <= 16
    with frozen(explainer.model), torch.no_grad():  # it is in training
        shares = explainer.analyze(batch).scores(batch.inputs)[0].softmax(0)
    for row in rows:
        assert [each.info.target for each in row] == shares.argsort(descending=True)[:3].tolist()
        for actual in row:
            assert actual.info.probability == pytest.approx(float(shares[actual.info.target]))
            target, layer = actual.info.target, actual.info.layer
            [wanted] = explainer.map(batch, "gradcam", target, layer=layer)
            torch.testing.assert_close(actual.values, wanted.values)
    sites = [row[0].site for row in rows]
    assert [
        each.site for each in explainer.analyze(batch).info.feature_layers if each.site in sites
    ] == sites


def test_a_model_without_class_scores_has_none() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    explainer = Explainer(model, img_size=(16, 16), dense=True)
    assert class_layer_maps(explainer, explainer.prepare(PHOTO)) == []
