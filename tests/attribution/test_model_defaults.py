"""Colors that a model expects: of its library, or assumed."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from image_text_models import hugging_face_vit
from torch import nn
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.transforms import v2

from visattn import Explainer, explain
from visattn.recording.model_config import HALVES, IMAGENET, default_mean_std, stated_info
from visattn.recording.subject import analyze_model

PHOTO = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)


def vit() -> Any:
    torch.manual_seed(0)
    small: dict[str, Any] = {"depth": 1, "embed_dim": 24, "num_heads": 2, "num_classes": 4}
    return timm.create_model("vit_tiny_patch16_224", img_size=48, **small).eval()  # mean, std 0.5


def test_colors_are_those_of_imagenet_or_of_gray_photos_where_none_are_known() -> None:
    of_timm = timm.create_model("test_vit", pretrained_cfg_overlay={"mean": None, "std": None})
    gray = ((0.5,), (0.5,))
    cases = [(nn.Conv2d(1, 2, 1), gray), (nn.Conv2d(3, 2, 1), IMAGENET), (of_timm, IMAGENET)]
    for model, expected in cases:
        info, _ = stated_info(model)
        assert (info.mean, info.std) == expected


def test_a_wrapped_model_gets_assumed_colors_or_those_that_are_passed() -> None:
    net = vit()
    [bare] = explain(net, PHOTO, "gradcam", 1, resize_mode="squash")
    wrapper = nn.Sequential(nn.DataParallel(net))
    defaults = stated_info(wrapper)[0]
    assert (defaults.mean, defaults.colors) == (IMAGENET[0], "assumed: mean and std of ImageNet")
    explainer = Explainer(wrapper, input_size=48, resize_mode="squash", mean=0.5, std=0.5)
    [same] = explainer.explain(PHOTO, "gradcam", 1)
    assert same.info.score == pytest.approx(bare.info.score, abs=1e-3)


def test_a_model_that_normalizes_images_itself_gets_them_as_they_are() -> None:
    resizing = GeneralizedRCNNTransform(48, 64, [0.3] * 3, [0.2] * 3)
    inner = stated_info(nn.Sequential(resizing, nn.Conv2d(3, 5, 3)))[0]
    assert (inner.mean, inner.std, inner.mean_color) == ((0.0,) * 3, (1.0,) * 3, (0.3,) * 3)


def test_what_is_assumed_is_said() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    plain(torch.zeros(1, 3, 24, 32))
    [heatmap] = explain(plain, PHOTO, "input_gradient", 1, input_size=(24, 32))
    assert heatmap.info.more["preprocessing"] == {
        "size": [24, 32], "size_source": "argument", "resize": "crop", "interpolation": "bilinear",
        "mean": list(IMAGENET[0]), "std": list(IMAGENET[1]),
        "source": "assumed: mean and std of ImageNet",
    }  # fmt: skip
    assert analyze_model(plain, (24, 32)).info.colors == "assumed: mean and std of ImageNet"
    for model, source in (
        (hugging_face_vit(), "assumed: mean and std of published vit weights"),
        (vit(), "timm pretrained_cfg"),
        (torchvision.models.resnet18(), "assumed: mean and std of ImageNet"),
    ):
        defaults = stated_info(model)[0]
        assert defaults.colors == source
        assert defaults.mean == (IMAGENET if "ImageNet" in source else HALVES)[0]
    labels: dict[str, Any] = {"num_labels": 2}
    wrapper = transformers.TimmWrapperConfig(architecture="test_vit", **labels)
    timm_inside = stated_info(transformers.TimmWrapperForImageClassification(wrapper).eval())[0]
    assert (timm_inside.mean, timm_inside.colors) == (HALVES[0], "timm pretrained_cfg")


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


def test_a_model_of_blue_green_and_red_takes_tensors_of_its_processor() -> None:
    neck = [8, 8, 16, 16, 16, 32, 32]
    sizes: dict[str, Any] = {"hidden_sizes": [32] * 3, "neck_hidden_sizes": neck}
    config = transformers.MobileViTConfig(image_size=64, num_attention_heads=2, **sizes)
    model = transformers.MobileViTForImageClassification(config).eval()
    with pytest.raises(ValueError, match="expect BGR images .*tensors of its processor"):
        explain(model, PHOTO, "input_gradient", 1)
    crop = {"height": 64, "width": 64}
    processor = transformers.MobileViTImageProcessor(size={"shortest_edge": 64}, crop_size=crop)
    with pytest.raises(ValueError, match="has other steps than resize, crop and normalize"):
        explain(model, PHOTO, "input_gradient", 1, processor=processor)
    right = processor(PHOTO, return_tensors="pt")["pixel_values"]
    steps = v2.Compose([v2.Resize(64), v2.CenterCrop(64)])
    [heatmap] = explain(model, right, "input_gradient", 1, originals=[PHOTO], transform=steps)
    own = float(model(right).logits[0, 1].detach())
    assert heatmap.info.score == pytest.approx(own, abs=1e-4)
    assert heatmap.geometry is not None
    assert heatmap.geometry.image_size == PHOTO.shape[:2]
