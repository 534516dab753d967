"""Attribution maps of models on images of any size."""

import gc
import weakref
from collections.abc import Callable
from typing import Any, get_args

import pytest
import timm
import torch
from random_numbers import photo
from torch import nn

import visattn as va
from visattn.attribution.methods import METHODS
from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.resnet import AttentionResNet
from visattn.models.vit import VisionTransformer
from visattn.pipelines.explainer import explain, methods_for
from visattn.results.kinds import SPECIAL_TOKENS, WordMethod

CLASSES = ("cat", "dog", "cow")
QUICK: dict[str, dict[str, Any]] = {
    "rise": {"num_masks": 3},
    "smoothgrad": {"num_samples": 2},
    "integrated_gradients": {"n_steps": 3},
    "occlusion": {"sliding_window_size": 24},
}


def cnn() -> AttentionResNet:
    torch.manual_seed(0)
    return AttentionResNet(CLASSES, depth=8, stem_width=8, img_size=(32, 48))


def vit() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(
        CLASSES, img_size=(24, 40), patch_size=8, embed_dim=16, depth=2, num_heads=2
    )


def captioner() -> Captioner:
    torch.manual_seed(0)
    words = (*SPECIAL_TOKENS, "red", "blue", "dog")
    return ShowAttendTell(words, SmallEncoder((24, 40), channels=8), hidden_size=11)


@pytest.mark.parametrize("make", [cnn, vit])
def test_every_supported_method_returns_a_placed_map(make: Any) -> None:
    model, image = make(), photo()
    names = methods_for(model)
    assert len(names) >= 10
    for name in names:
        [heatmap] = explain(model, image, name, **QUICK.get(name, {}))
        assert heatmap.values.ndim == 2
        assert heatmap.geometry is not None
        assert heatmap.geometry.image_size == (61, 83)
        assert heatmap.geometry.input_size == model.img_size
        assert heatmap.kind == METHODS[name].kind
        assert heatmap.info.signed == METHODS[name].signed
        assert (heatmap.info.method, heatmap.info.model) == (
            name,
            type(model).__name__,
        )
        assert heatmap.resize_to_image().shape == (61, 83)


def test_captioners_have_one_map_per_word() -> None:
    model = captioner()
    assert methods_for(model) == list(get_args(WordMethod))
    [expected] = va.caption(model, photo(), max_length=3)
    for name in methods_for(model):
        [heatmap] = explain(model, photo(), name, max_length=3)
        assert heatmap.labels == expected.words
        assert heatmap.values.shape == (len(expected.words), 3, 5)
        own, its = (each.geometry for each in (heatmap, expected.maps))
        assert own is not None
        assert own == its
        assert heatmap.info.more["caption"] == expected.text
    assert explain(model, photo(), max_length=3)[0].labels == expected.words


def test_an_empty_map_does_not_fail_its_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """It is returned and drawn as empty, with the reason, and their number is reported."""
    model = cnn()
    with torch.no_grad():
        model.fc.weight[1] = 0
    maps = explain(model, [photo(), photo()], "gradcam", torch.tensor([0, 1]))
    assert [each.info.empty for each in maps] == ["", "the map is zero everywhere"]
    assert "gradcam gives an empty map for 1 of 2 images" in capsys.readouterr().err
    assert va.figure(maps, [photo(), photo()]).axes
    nn.init.constant_(model.fc.weight, torch.nan)
    [undefined] = explain(model, photo(), "gradcam", 0)
    assert undefined.info.empty == "the map has NaN or infinity"


def test_features_without_class_scores_have_methods_that_need_no_class() -> None:
    bare = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=0)
    assert methods_for(bare) == ["attention", "rollout", "eigencam", "kpcacam", "itti_koch"]
    for name in methods_for(bare):
        [heatmap] = explain(bare, photo(), name)
        assert (heatmap.info.target, heatmap.info.score) == (None, None)


def test_a_model_is_analyzed_again_when_it_changes_and_never_kept() -> None:
    model: Any = timm.create_model("test_vit", num_classes=3).eval()
    runs: list[int] = []
    model.register_forward_pre_hook(lambda *_: runs.append(1))
    changes: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "an attribute": lambda: vars(model).update(global_pool="avg"),
        "a module": lambda: setattr(model, "head", nn.Linear(64, 3)),
        "weights": lambda: model.head.weight.data.mul_(0.5),
    }
    assert explain(model, photo(), "attention", 1)[0].info.more["rows"] == "class"
    for name, change in changes.items():
        change()
        runs.clear()
        [heatmap] = explain(model, photo(), "attention", 1)
        assert heatmap.info.more["rows"] == ("class" if name == "nothing" else "patches")
        assert (len(runs) == 1) == (name == "nothing"), name
    kept = weakref.ref(model)
    model = None
    gc.collect()
    assert kept() is None


def test_layer_may_be_any_module() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(320, 3))
    for layer in ("0", model[0]):
        [heatmap] = explain(model, photo(), "gradcam", 1, input_size=32, layers=layer)
        assert (heatmap.site, heatmap.info.layer) == ("0", "0")
        assert heatmap.info.options["layers"] == "0"
    [heatmap] = explain(model, photo(), "gradcam", 1, input_size=32, layers="1#1")
    assert (heatmap.info.layer, heatmap.info.more["run"]) == ("1", 1)
    ours = vit()
    [known] = explain(ours, photo(), "attention", layers=0)
    assert known.info.layer == "blocks.0.attn.tap"
    for layer in ("blocks.0", ours.blocks[0], "blocks.0.attn.tap"):
        [heatmap] = explain(ours, photo(), "attention", layers=layer)
        assert torch.equal(heatmap.values, known.values)
    with pytest.raises(ValueError, match=r"got 'blocks', which contains 2: blocks\.0\.attn"):
        explain(ours, photo(), "attention", layers="blocks")


def test_lists_of_methods_and_classes_give_the_maps_of_single_calls() -> None:
    model, images = vit(), [photo(61 + 7 * seed, 83, seed) for seed in range(3)]
    methods, classes = ["rollout", "relevance", "gradcam"], ["dog", 0]
    maps = explain(model, images, methods, classes, batch_size=2, residual=0.3)
    for image, of_image in zip(images, maps, strict=True):
        for method, of_method in zip(methods, of_image, strict=True):
            options: dict[str, Any] = {"residual": 0.3} if method == "rollout" else {}
            for target, each in zip(classes, of_method, strict=True):
                [alone] = explain(model, image, method, target, **options)
                torch.testing.assert_close(each.values, alone.values, atol=1e-6, rtol=1e-4)
                if method != "rollout":
                    assert each.info.class_name == alone.info.class_name
    assert maps[0][0][0] is maps[0][0][1]  # rollout explains no class
    assert explain(model, images, "rollout")[1].info.image == maps[1][0][0].info.image
    figure = va.figure(maps, images, width=9.5)
    assert figure.get_figwidth() == 9.5


def test_the_images_of_a_batch_may_have_other_classes() -> None:
    model, photos = cnn(), [photo(), photo(seed=1)]
    single = {
        name: [explain(model, photos, method, name) for method in ("gradcam", "layercam")]
        for name in CLASSES
    }
    batch_sizes: list[int] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    handle = first.register_forward_hook(lambda _, args, __: batch_sizes.append(len(args[0])))
    rows = explain(model, photos, ["gradcam", "layercam"], [["cow", "cat", "dog"], ["dog"]])
    handle.remove()
    # after the analysis, for each method, both photos, and twice the one that has more classes
    assert batch_sizes[-6:] == [2, 1, 1] * 2
    for image, names in enumerate((("cow", "cat", "dog"), ("dog",))):
        for number, maps in enumerate(rows[image]):
            assert [each.info.class_name for each in maps] == list(names)
            for each, name in zip(maps, names, strict=True):
                expected = single[name][number][image]
                torch.testing.assert_close(each.values, expected.values, rtol=1e-4, atol=1e-6)
                assert each.info.score == pytest.approx(expected.info.score, rel=1e-4)


def test_the_method_that_fits_is_chosen_and_names_are_found_in_any_spelling() -> None:
    glimpses = RecurrentAttentionModel(
        CLASSES, (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=2
    )
    assert explain(glimpses, photo(), "glimpses", policy="raster")[0].info.policy == "raster"
    models = {"rollout": vit(), "gradcam": cnn(), "glimpses": glimpses}
    made = {explain(model, photo())[0].info.method for model in models.values()}
    assert made == {*models}
    [layered] = explain(vit(), photo(), layers="blocks.1")
    [mean] = explain(vit(), photo(), layers=[0, "blocks.1.attn"])
    assert (layered.info.method, mean.info.method) == ("gradcam", "attention")
    [[one, other]] = explain(cnn(), photo(), ["Grad-CAM++", "Integrated Gradients"], n_steps=2)
    assert (one.info.method, other.info.method) == ("gradcam++", "integrated_gradients")
