"""Colors that a model expects: of its library, measured inside of a network, or assumed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from visattn.attribution.explained_model import analyze_model, describe_model
from visattn.attribution.model_defaults import HALVES, IMAGENET, default_mean_std, model_defaults
from visattn.pipelines import Explainer, explain

PHOTO = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)


class Around(nn.Module):
    """A network around others, which may change images before."""

    def __init__(
        self,
        *models: nn.Module,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        call: Callable[..., Any] = lambda models, x: models[0](x),
    ) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.before, self.call = before, call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.models, self.before(x))


def vit() -> Any:
    torch.manual_seed(0)
    small: dict[str, Any] = {
        "depth": 1,
        "embed_dim": 24,
        "num_heads": 2,
        "img_size": 48,
        "num_classes": 4,
    }
    return timm.create_model("vit_tiny_patch16_224", **small).eval()  # mean 0.5, std 0.5


def huggingface_vit() -> Any:
    options: dict[str, Any] = {
        "num_labels": 3,
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = transformers.ViTConfig(image_size=48, patch_size=16, **options)
    return transformers.ViTForImageClassification(config).eval()


def normalized(x: Tensor, mean: Any = IMAGENET[0], std: Any = IMAGENET[1]) -> Tensor:
    return (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def test_colors_are_assumed_for_one_or_three_channels() -> None:
    for channels, expected in ((1, ((0.5,), (0.5,))), (3, IMAGENET)):
        defaults = model_defaults(nn.Conv2d(channels, 2, 1))
        assert (defaults.mean, defaults.std) == expected


def test_models_of_timm_without_mean_and_std_take_those_of_imagenet() -> None:
    model = timm.create_model("test_vit", pretrained_cfg_overlay={"mean": None, "std": None})
    defaults = model_defaults(model)
    assert (defaults.mean, defaults.std) == IMAGENET


def test_a_wrapped_model_gets_the_pixels_that_it_expects() -> None:
    net = vit()
    [bare] = explain(net, PHOTO, "gradcam", 1, resize_mode="squash")
    pixels = Explainer(net, resize_mode="squash").prepare(PHOTO).inputs
    wrappers = {
        "as it is": Around(net),
        "deep": nn.Sequential(Around(nn.DataParallel(net))),
        "features": Around(net, call=lambda m, x: m[0].forward_head(m[0].forward_features(x))),
        "normalizing": Around(net, before=lambda x: normalized(x, *HALVES)),
        "to -1 and 1": Around(net, before=lambda x: 2 * x - 1),
        "of 255": Around(net, before=lambda x: x / 127.5 - 1),
        "renormalizing": Around(net, before=lambda x: 0.5 * x + 0.25),
    }
    for name, wrapper in wrappers.items():
        received: list[Tensor] = []
        handle = net.patch_embed.register_forward_pre_hook(lambda _, x, y=received: y.append(x[0]))
        [heatmap] = explain(wrapper, PHOTO, "gradcam", 1, resize_mode="squash")
        handle.remove()
        torch.testing.assert_close(received[-1], pixels, atol=1e-4, rtol=0, msg=name)
        assert heatmap.metadata["score"] == pytest.approx(bare.metadata["score"], abs=1e-3), name
        assert heatmap.metadata["preprocessing"]["size"] == [48, 48], name
    source = explain(wrappers["as it is"], PHOTO, "gradcam", 1)[0].metadata
    assert source["preprocessing"] == {
        "size": [48, 48], "size_source": "model", "resize": "crop", "interpolation": "bilinear",
        "mean": [0.5] * 3, "std": [0.5] * 3, "source": "timm pretrained_cfg of models.0",
    }  # fmt: skip
    inner = model_defaults(wrappers["normalizing"])
    assert (inner.mean, inner.std, inner.mean_color) == ((0.0,) * 3, (1.0,) * 3, HALVES[0])
    assert inner.source == "the network normalizes images"
    resizing = GeneralizedRCNNTransform(48, 64, [0.3] * 3, [0.2] * 3)
    detector = nn.Sequential(resizing, nn.Conv2d(3, 5, 3))
    inner = model_defaults(detector)
    assert (inner.mean, inner.std, inner.mean_color) == ((0.0,) * 3, (1.0,) * 3, (0.3,) * 3)


def test_several_inner_models_must_expect_the_same_colors() -> None:
    resnet = timm.create_model("resnet10t", num_classes=4).eval()  # of ImageNet

    def both(models: Any, x: Tensor) -> Tensor:
        return models[0](x) + models[1](x)

    differing = Around(vit(), resnet, call=both)
    message = "expect different colors .models.0: mean 0.5 .*; models.1: mean 0.485 .*transform="
    with pytest.raises(ValueError, match=message):
        explain(differing, PHOTO, "input_gradient", 1, img_size=48)
    assert "different colors" in str(analyze_model(differing, 48).info)
    steps = torchvision.transforms.Compose([
        torchvision.transforms.Resize((48, 48)), torchvision.transforms.ToTensor()
    ])  # fmt: skip
    [heatmap] = explain(differing, PHOTO, "input_gradient", 1, transform=steps)
    assert heatmap.metadata["preprocessing"]["source"] == "transform"

    def renormalized(models: Any, x: Tensor) -> Tensor:
        return models[0](x) + models[1](normalized(0.5 * x + 0.5))

    assert model_defaults(Around(vit(), resnet, call=renormalized)).mean == HALVES[0]
    assert model_defaults(Around(vit(), resnet)).mean == HALVES[0]  # the other one does not run
    for before in (lambda x: x.flip(1), lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1)):
        with pytest.raises(ValueError, match=r"changes the colors of images before models\.0"):
            explain(Around(vit(), before=before), PHOTO, "gradcam", 1)


def test_sizes_of_models_of_torchvision_are_known_inside_of_a_network() -> None:
    models: Any = torchvision.models
    inception = models.inception_v3(weights=None, init_weights=False, aux_logits=False)
    assert describe_model(Around(inception)).info.input_size == (299, 299)
    assert describe_model(Around(models.resnet18())).info.input_size == (224, 224)


def test_what_is_assumed_is_said() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    plain(torch.zeros(1, 3, 24, 32))
    [heatmap] = explain(plain, PHOTO, "input_gradient", 1, img_size=(24, 32))
    assert heatmap.metadata["preprocessing"] == {
        "size": [24, 32], "size_source": "argument", "resize": "crop", "interpolation": "bilinear",
        "mean": list(IMAGENET[0]), "std": list(IMAGENET[1]),
        "source": "assumed: mean and std of ImageNet",
    }  # fmt: skip
    assert "  colors     assumed: mean and std of ImageNet" in str(
        analyze_model(plain, (24, 32)).info
    )
    inner = Around(huggingface_vit(), call=lambda models, x: models[0](pixel_values=x).logits)
    for model, source in (
        (huggingface_vit(), "assumed: mean and std of published vit weights"),
        (inner, "assumed: mean and std of published vit weights of models.0"),
        (vit(), "timm pretrained_cfg"),
        (torchvision.models.resnet18(), "assumed: mean and std of ImageNet"),
    ):
        defaults = model_defaults(model)
        assert defaults.source == source
        assert defaults.mean == (IMAGENET if "ImageNet" in source else HALVES)[0]
    labels: dict[str, Any] = {"num_labels": 2}
    wrapper = transformers.TimmWrapperConfig(architecture="test_vit", **labels)
    timm_inside = model_defaults(transformers.TimmWrapperForImageClassification(wrapper).eval())
    assert (timm_inside.mean, timm_inside.source) == (HALVES[0], "timm pretrained_cfg")


def test_colors_of_published_weights_by_model_type() -> None:
    openai, unchanged = default_mean_std("clip"), default_mean_std("glpn")
    assert openai[0][0] == pytest.approx(0.48145466)
    assert unchanged == ((0.0,) * 3, (1.0,) * 3)
    for kind, expected in {
        "vit": HALVES, "vit_mae": IMAGENET, "vitpose_backbone": IMAGENET, "mobilenet_v1": HALVES,
        "mobilenet_v2": HALVES, "align": HALVES, "bit": HALVES, "beit": HALVES, "deit": IMAGENET,
        "swin": IMAGENET, "resnet": IMAGENET, "dinov2": IMAGENET, "clipseg": IMAGENET,
        "xclip": IMAGENET, "siglip_vision_model": HALVES, "clip_vision_model": openai,
        "owlvit": openai, "blip": openai, "efficientnet": IMAGENET,
    }.items():  # fmt: skip
        assert default_mean_std(kind) == expected, kind


def test_a_model_of_blue_green_and_red_needs_its_processor() -> None:
    sizes: dict[str, Any] = {
        "hidden_sizes": [32] * 3,
        "neck_hidden_sizes": [8, 8, 16, 16, 16, 32, 32],
    }
    config = transformers.MobileViTConfig(image_size=64, num_attention_heads=2, **sizes)
    model = transformers.MobileViTForImageClassification(config).eval()
    with pytest.raises(
        ValueError, match="weights of mobilevit take blue, green and red.*processor="
    ):
        explain(model, PHOTO, "input_gradient", 1)
    crop = {"height": 64, "width": 64}
    processor = transformers.MobileViTImageProcessor(size={"shortest_edge": 64}, crop_size=crop)
    right = processor(PHOTO, return_tensors="pt")["pixel_values"]
    ways: tuple[dict[str, Any], ...] = ({"processor": processor}, {"transform": processor})
    for options in ways:
        [heatmap] = explain(model, PHOTO, "input_gradient", 1, **options)
        own = float(model(right).logits[0, 1].detach())
        assert heatmap.metadata["score"] == pytest.approx(own, abs=1e-4)
