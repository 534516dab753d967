"""From models and images of any size to placed maps that say how they were made."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import visattn as va
from visattn.attribution.methods import METHODS
from visattn.models.captioner import SPECIALS, Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import SmallEncoder
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.pipelines.explanation import explain, methods_for

CLASSES = ("cat", "dog", "cow")
QUICK: dict[str, dict[str, Any]] = {
    "rise": {"masks": 3},
    "smoothgrad": {"samples": 2},
    "integrated_gradients": {"steps": 3},
    "occlusion": {"window": 24},
}


def photo(rows: int = 61, columns: int = 83, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


def cnn() -> AttentionResNet:
    torch.manual_seed(0)
    return AttentionResNet(CLASSES, depth=8, width=8, size=(32, 48))


def vit() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(CLASSES, size=(24, 40), patch=8, width=16, depth=2, heads=2)


def captioner() -> Captioner[Any]:
    torch.manual_seed(0)
    words = (*SPECIALS, "red", "blue", "dog")
    return ShowAttendTell(words, SmallEncoder((24, 40), channels=8), hidden=11)


@pytest.mark.parametrize("make", [cnn, vit])
def test_all_that_fits_a_model_gives_a_placed_map(make: Any) -> None:
    model, image = make(), photo()
    names = methods_for(model)
    assert len(names) >= 10
    for name in names:
        [found] = explain(model, image, name, keep_empty=True, **QUICK.get(name, {}))
        assert found.values.ndim == 2
        assert found.geometry is not None
        assert found.geometry.image_size == (61, 83)
        assert found.geometry.input_size == model.size
        assert found.kind == METHODS[name].kind
        assert found.made["signed"] == METHODS[name].signed
        assert (found.made["method"], found.made["model"]) == (name, type(model).__name__)
        assert found.on_image().shape == (61, 83)


def test_what_was_explained_is_noted() -> None:
    model = cnn()
    one, other = explain(model, [photo(), photo(seed=1)], "input_gradient", ["dog", 2])
    assert (one.made["class"], one.made["target"]) == ("dog", 1)
    assert (other.made["class"], other.made["target"]) == ("cow", 2)
    assert one.made["options"] == {"signed": False}
    [best] = explain(model, photo(), "input_gradient", signed=True)
    assert best.made["signed"]
    with torch.no_grad():
        framed = torch.from_numpy(_seen(photo(), best)).permute(2, 0, 1)[None]
        scores = model.eval()(framed)[0]
    assert best.made["target"] == int(scores.argmax())
    assert best.made["score"] == pytest.approx(float(scores.max()), abs=1e-5)


def _seen(image: np.ndarray, found: va.AttentionMap) -> np.ndarray:
    from visattn.data.images.reader import LoadedImage
    from visattn.data.images.resize import ResizeSpec, frame

    assert found.geometry is not None
    return (
        frame(LoadedImage(image), ResizeSpec(found.geometry.input_size))[0].permute(1, 2, 0).numpy()
    )


def test_a_batch_is_its_images_one_by_one() -> None:
    model = vit()
    images = [photo(61 + 7 * seed, 83 - 5 * seed, seed) for seed in range(5)]
    together = explain(model, images, "relevance", [0, 1, 2, 1, 0], batch=2)
    for number, (found, image) in enumerate(zip(together, images, strict=True)):
        [alone] = explain(model, image, "relevance", [0, 1, 2, 1, 0][number])
        torch.testing.assert_close(found.values, alone.values, atol=1e-6, rtol=1e-4)
        assert found.geometry == alone.geometry


def test_the_model_comes_back_as_it_was() -> None:
    model = vit().train()
    state = torch.get_rng_state()
    for name in ("rollout", "relevance", "smoothgrad"):
        explain(model, photo(), name, **QUICK.get(name, {}))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


def test_models_of_timm_are_explained_on_the_middle_that_they_saw() -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=5)
    [found] = explain(model, photo(200, 300), "rollout", 3)
    assert (found.made["target"], found.made["class"]) == (3, "")
    shown = found.on_image()
    assert shown.isnan().any()
    assert shown[100, 150].isfinite()


def test_images_may_come_through_a_transform() -> None:
    from torchvision.transforms import v2

    steps = [v2.ToImage(), v2.Resize((32, 48)), v2.ToDtype(torch.float32, scale=True)]
    [found] = explain(cnn(), photo(), "input_gradient", transform=v2.Compose(steps))
    assert found.geometry is not None
    assert found.geometry.seen() == (0, 0, 83, 61)


def test_captioners_are_explained_word_by_word() -> None:
    model = captioner()
    assert methods_for(model) == ["words", "word_gradcam"]
    [told] = va.caption(model, photo(), max_length=3)
    for name in methods_for(model):
        [found] = explain(model, photo(), name, max_length=3)
        assert found.labels == told.words
        assert found.values.shape == (len(told.words), 3, 5)
        assert found.geometry == told.maps.geometry
        assert found.made["caption"] == told.text
    with pytest.raises(ValueError, match=r"rollout does not fit a SoftAtt.*; what fits is words"):
        explain(model, photo())


def test_glimpse_models_show_their_glimpses_too() -> None:
    model = RecurrentAttentionModel(CLASSES, (24, 24), (0.5,), (0.5,), glimpse=5, glimpses=3)
    assert methods_for(model)[0] == "glimpses"
    [found] = explain(model, photo(), "glimpses", policy="raster")
    assert found.values.shape == (3, 24, 24)
    assert found.made["policy"] == "raster"
    [pixels] = explain(model, photo(), "input_gradient", keep_empty=True)
    assert pixels.values.shape == (24, 24)


def test_maps_of_nothing_are_errors_or_kept_with_the_reason() -> None:
    model = cnn()
    nn.init.zeros_(model.fc.weight)
    with pytest.raises(ValueError, match=r"nothing to see on 2 of 2 images; .* zero everywhere"):
        explain(model, [photo(), photo()], "gradcam")
    kept = explain(model, photo(), "gradcam", keep_empty=True)
    assert "zero everywhere" in kept[0].made["empty"]
    nn.init.constant_(model.fc.weight, torch.nan)
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        explain(model, photo(), "gradcam", 0)


def test_what_makes_no_sense_is_refused() -> None:
    model = cnn()
    with pytest.raises(ValueError, match=r"no method 'gradcan'; did you mean .*gradcam"):
        explain(model, photo(), "gradcan")
    with pytest.raises(ValueError, match=r"rollout does not fit .*; what fits is gradcam, "):
        explain(model, photo())
    with pytest.raises(ValueError, match="words does not fit a AttentionResNet"):
        explain(model, photo(), "words")
    with pytest.raises(ValueError, match="has no option 'leyer'; it takes layer=-1"):
        explain(model, photo(), "gradcam", leyer=2)
    with pytest.raises(ValueError, match="one for each of the 1 images, got 2"):
        explain(model, photo(), "gradcam", [0, 1])
    with pytest.raises(ValueError, match="counted from 0 to 2, got target 3"):
        explain(model, photo(), "gradcam", 3)
    with pytest.raises(ValueError, match="got batch=0"):
        explain(model, photo(), "gradcam", batch=0)
    with pytest.raises(ValueError, match="takes neither target nor transform"):
        explain(captioner(), photo(), "words", 3)


class Flat(nn.Module):
    """A network for images of 32 x 32, which returns scores, features and a dense map."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU())
        self.head = nn.Linear(5 * 8 * 8, 3)

    def forward(self, x: Tensor) -> Any:
        features = self.features(x)
        return {"dense": features, "features": features.mean((2, 3)), "out": self.scored(features)}

    def scored(self, features: Tensor) -> Tensor:
        return self.head(features.flatten(1))


class Dense(Flat):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Conv2d(5, 5, 1)

    def scored(self, features: Tensor) -> Tensor:
        return self.classifier(features)


def test_a_model_of_any_size_is_explained_if_the_size_is_said() -> None:
    from torchvision.transforms import v2

    steps = [v2.ToImage(), v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True)]
    with pytest.raises(ValueError, match=r"it runs on 32 x 32: visattn.explain\(.*size=32\)"):
        explain(Flat(), photo(), "gradcam")
    assert "gradcam" in methods_for(Flat(), size=32)
    ways: list[dict[str, Any]] = [
        {"size": 32},
        {"size": (32, 32)},
        {"transform": v2.Compose(steps)},
    ]
    for way in ways:
        [found] = explain(Flat(), photo(), "gradcam", "dog", classes=CLASSES, **way)
        assert found.geometry is not None
        assert (found.geometry.input_size, tuple(found.values.shape)) == ((32, 32), (8, 8))
        assert (found.made["class"], found.made["scores"]) == ("dog", "out")
    with pytest.raises(ValueError, match="the transform gives images of 32 x 32 pixels, got size"):
        explain(Flat(), photo(), "gradcam", size=64, transform=v2.Compose(steps))


def test_functions_are_given_what_the_model_returns() -> None:
    model, seen = Flat(), []

    def target(output: Any) -> Tensor:
        seen.append(sorted(output))
        return output["out"][:, 2]

    for name in ("gradcam", "input_gradient", "occlusion"):
        options = {"window": 16, "of": "scores"} if name == "occlusion" else {}
        [by_class] = explain(model, photo(), name, 2, size=32, **options)
        options.pop("of", None)
        [found] = explain(model, photo(), name, target, size=32, **options)
        torch.testing.assert_close(found.values, by_class.values)
        assert (found.made["target"], found.made["function"]) == (None, "target")
        assert "of" not in found.made["options"]
    assert set(map(tuple, seen)) == {("dense", "features", "out")}
    with pytest.raises(ValueError, match="a target function is given what the model returns"):
        explain(model, photo(), "occlusion", target, size=32, of="scores")
    with pytest.raises(
        ValueError, match=r"one number for each image, .* a dict: .* returned \[1, 3"
    ):
        explain(model, photo(), "gradcam", lambda output: output["out"], size=32)
    with pytest.raises(ValueError, match="for each of the 1 images, got 3"):
        explain(model, photo(), "gradcam", lambda output: output["out"][0], size=32)


def test_without_class_scores_only_what_needs_none_is_promised() -> None:
    model, pixels = Dense(), ["itti_koch", "spectral_residual"]
    assert methods_for(model, size=32) == pixels
    with pytest.raises(ValueError, match=r"target=lambda output: output\['out'\]\[:, 3\].mean"):
        explain(model, photo(), "gradcam", 1, size=32)

    def target(output: Any) -> Tensor:
        return output["out"][:, 3].mean((1, 2))

    assert methods_for(model, size=32, target=target)[0] == "gradcam"
    [found] = explain(model, photo(), "gradcam", target, size=32)
    assert found.values.shape == (8, 8)
    bare = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=0)
    assert methods_for(bare) == ["attention", "rollout", *pixels]
    for name in methods_for(bare):
        [found] = explain(bare, photo(), name)
        assert (found.made["target"], found.made["score"]) == (None, None)


class Streams(Flat):
    """Two streams of features side by side, each pooled by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse, self.sum = nn.Conv2d(3, 5, 8, 8), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Any:
        streams = (self.features(x), self.coarse(x))
        return self.sum(torch.cat([stream.mean((2, 3)) for stream in streams], 1))


def test_where_no_layer_can_be_chosen_one_may_be_named() -> None:
    model = Streams()
    with pytest.raises(ValueError, match=r"side by side .*; name one of its modules with layer=;"):
        explain(model, photo(), "gradcam", 1, size=32)
    [found] = explain(model, photo(), "gradcam", 1, size=32, layer="coarse", keep_empty=True)
    assert (found.made["layer"], found.values.shape) == ("coarse", (4, 4))


def test_a_layer_is_any_module_and_is_noted() -> None:
    model = Flat()
    for layer in ("features.0", model.features[0]):
        [found] = explain(model, photo(), "gradcam", 1, size=32, layer=layer)
        assert (found.site, found.made["layer"]) == ("features.0", "features.0")
        assert found.made["options"]["layer"] == "features.0"
    [found] = explain(model, photo(), "gradcam", 1, size=32, layer="features.1#1")
    assert (found.made["layer"], found.made["run"]) == ("features.1", 1)
    ours = vit()
    [known] = explain(ours, photo(), "attention", layer=0)
    assert known.made["layer"] == "blocks.0.attn.tap"
    for layer in ("blocks.0", ours.blocks[0], "blocks.0.attn.tap"):
        [found] = explain(ours, photo(), "attention", layer=layer)
        assert torch.equal(found.values, known.values)
    with pytest.raises(ValueError, match=r"got 'blocks', of which it holds 2: blocks\.0\.attn"):
        explain(ours, photo(), "attention", layer="blocks")
