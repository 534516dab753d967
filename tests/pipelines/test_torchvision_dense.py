"""Detectors and segmentation models of torchvision and Hugging Face on photos of odd shapes."""

import io
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from image_text_models import tiny_detector
from PIL import Image
from torch import Tensor, nn
from torchvision.models.segmentation import FCN, LRASPP, DeepLabV3
from torchvision.models.segmentation.deeplabv3 import DeepLabHead
from torchvision.models.segmentation.fcn import FCNHead

import visattn as va
from tests.helpers.torchvision_dense import detector

# size of the upright photo, the bright square, and the EXIF orientation of the file
PHOTOS: dict[str, tuple[tuple[int, int], tuple[int, int, int, int], int]] = {
    "panorama": ((61, 181), (120, 10, 140, 30), 1),
    "portrait": ((151, 91), (50, 101, 80, 131), 6),
    "odd": ((97, 131), (17, 53, 47, 83), 1),
}


def photo(name: str) -> bytes:
    size, (left, top, right, bottom), orientation = PHOTOS[name]
    pixels = np.random.default_rng(0).integers(0, 40, (*size, 3), np.uint8)
    pixels[top:bottom, left:right] = 255
    stored = np.rot90(pixels, 1 if orientation == 6 else 0)
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


def share_near(heatmap: va.AttentionMap, name: str, margin: int = 14) -> float:
    """Share of the map on the bright square and a margin around it."""
    size, (left, top, right, bottom), _ = PHOTOS[name]
    values = heatmap.resize_to_image().clamp(min=0)
    assert tuple(values.shape) == size
    assert not bool(values.isnan().any())
    near = values[max(top - margin, 0) : bottom + margin, max(left - margin, 0) : right + margin]
    return float(near.sum() / values.sum())


@pytest.mark.parametrize("kind", ["RetinaNet", "FCOS", "SSD", "FasterRCNN", "MaskRCNN"])
def test_maps_of_detectors_that_resize_inside_lie_on_the_marked_square(kind: str) -> None:
    model = detector(kind)
    for name, (_, square, _) in PHOTOS.items():
        for method in ("layercam", "input_gradient"):
            [heatmap] = va.explain(model, photo(name), method, va.BoxTarget(None, 2))
            box = heatmap.info.thing.box
            middle = [(box[side] + box[side + 2]) / 2 for side in (0, 1)]
            assert square[0] - 8 < middle[0] < square[2] + 8, (name, method, box)
            assert square[1] - 8 < middle[1] < square[3] + 8, (name, method, box)
            assert share_near(heatmap, name) > 0.85, (name, method)


@pytest.mark.parametrize(
    ("kind", "method", "options"),
    [
        ("FCOS", "occlusion", {"sliding_window_size": 30, "stride": 15}),
        ("FasterRCNN", "occlusion", {"sliding_window_size": 30, "stride": 15}),
        ("SSD", "rise", {"num_masks": 100, "grid_size": 6}),
        ("RetinaNet", "rise", {"num_masks": 100, "grid_size": 6}),
    ],
)
def test_perturbation_of_detectors_finds_the_marked_square(
    kind: str, method: str, options: Any
) -> None:
    box: Any = tuple(map(float, PHOTOS["portrait"][1]))
    target = va.BoxTarget(box, 2)
    [heatmap] = va.explain(detector(kind), photo("portrait"), method, target, **options)
    values = heatmap.resize_to_image()
    row, column = divmod(int(values.argmax()), values.shape[1])
    left, top, right, bottom = PHOTOS["portrait"][1]
    assert left - 15 <= column < right + 15
    assert top - 15 <= row < bottom + 15


def test_boxes_without_area_do_not_make_maps_of_nan() -> None:
    class Degenerate(nn.Module):
        def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
            boxes = torch.tensor([[5.0, 5.0, 5.0, 5.0], [2.0, 3.0, 20.0, 30.0]])
            scores = [torch.stack((image.mean() + 9, image[:, :8].mean())) for image in images]
            return [
                {"boxes": boxes, "scores": each, "labels": torch.tensor([1, 1])} for each in scores
            ]

    [heatmap] = va.explain(
        Degenerate(), photo("odd"), "input_gradient", va.BoxTarget(None), class_names=("a", "b")
    )
    assert heatmap.geometry is not None
    size, input_size = heatmap.geometry.image_size, heatmap.geometry.input_size
    scale = max(size) / max(input_size)
    assert heatmap.info.thing.box[2] == pytest.approx(20 * scale, rel=0.05)


class _Features(nn.Module):
    """Features of stride 4, as the backbones of torchvision's segmentation models return them."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.body = nn.Sequential(
            nn.Conv2d(3, 7, 3, 2, 1), nn.ReLU(), nn.Conv2d(7, 11, 3, 2, 1), nn.ReLU()
        )

    def forward(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        features = self.body(images)
        return OrderedDict((name, features) for name in self.names)


@pytest.mark.parametrize("kind", ["FCN", "LRASPP", "DeepLabV3", "SegFormer"])
def test_a_pixel_of_segmentation_models_is_explained_near_it(kind: str) -> None:
    torch.manual_seed(0)
    segformer = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
        decoder_hidden_size=32, num_labels=3,  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    make: dict[str, Any] = {
        "FCN": lambda: FCN(_Features("out"), FCNHead(11, 3)),
        "LRASPP": lambda: LRASPP(_Features("low", "high"), 11, 11, 3),
        "DeepLabV3": lambda: DeepLabV3(_Features("out"), DeepLabHead(11, 3, [2])),
        "SegFormer": lambda: transformers.SegformerForSemanticSegmentation(segformer),
    }
    model = make[kind]().eval()
    for name, (size, (left, top, right, bottom), _) in PHOTOS.items():
        target = va.PixelTarget(1, (left + right) // 2, (top + bottom) // 2)
        for method in ("hirescam", "input_gradient"):
            [heatmap] = va.explain(model, photo(name), method, target, input_size=(96, 128))
            area = (right - left + 28) * (bottom - top + 28) / (size[0] * size[1])
            assert share_near(heatmap, name) > 1.5 * area, (name, method)


@pytest.mark.parametrize("kind", ["Detr", "ConditionalDetr", "DeformableDetr"])
def test_boxes_and_queries_of_hugging_face_detectors_have_maps(kind: str) -> None:
    model = tiny_detector(kind)
    for name in ("panorama", "portrait"):
        for target in (va.BoxTarget(None), va.QueryTarget(2)):
            for method in ("hirescam", "input_gradient"):
                [heatmap] = va.explain(model, photo(name), method, target, input_size=(160, 224))
                assert heatmap.resize_to_image().shape == PHOTOS[name][0]
        [heatmap] = va.explain(
            model,
            photo(name),
            "rise",
            va.BoxTarget(None),
            input_size=(160, 224),
            num_masks=4,
        )
        assert heatmap.info.score > 0


def test_biases_of_a_dense_network_are_explained() -> None:
    target = va.PixelTarget(1, 20, 20)
    model = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.GELU(), nn.Conv2d(5, 3, 1))
    [heatmap] = va.explain(model, photo("odd"), "fullgrad", target, input_size=(96, 128))
    assert heatmap.values.shape == (96, 128)
