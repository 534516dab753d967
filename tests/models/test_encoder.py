"""Encoders: feature grids and receptive fields; uint8 images are normalized inside."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from PIL import Image
from random_numbers import pixels
from torch import Tensor

from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import ImageClassifier, ImageEncoder, SmallEncoder
from visattn.models.glimpses.dram import DRAM
from visattn.models.resnet import AttentionResNet
from visattn.models.vit import VisionTransformer


class TwoStages(ImageEncoder):
    """An encoder for tests of shapes."""

    def __init__(self, *shapes: tuple[int, int, int]) -> None:
        super().__init__((8, 8), (0.5,) * 3, (0.5,) * 3)
        self.shapes, self.channels = shapes, sum(channels for channels, _, _ in shapes)
        self.grid_size = shapes[0][1:]

    @property
    def stage_shapes(self) -> tuple[tuple[int, int, int], ...]:
        return self.shapes

    def forward_features(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError


SMALL = st.integers(1, 5)
SIDES = st.integers(1, 7).map(lambda cells: 8 * cells)


@given(height=SIDES, width=SIDES)
def test_grid_size_matches_the_output(height: int, width: int) -> None:
    encoder = SmallEncoder((height, width), channels=12).eval()
    features = encoder(pixels(2, 3, height, width))
    assert features.shape == (2, encoder.channels, *encoder.grid_size)


@given(fine=st.tuples(SMALL, SMALL), times=st.tuples(SMALL, SMALL), seed=st.integers(0, 99))
def test_coarser_grid_is_repeated(fine: tuple[int, int], times: tuple[int, int], seed: int) -> None:
    rows, columns = fine[0] * times[0], fine[1] * times[1]
    encoder = TwoStages((3, rows, columns), (2, *fine))
    random = torch.Generator().manual_seed(seed)
    near, far = torch.rand(5, 3, rows, columns), torch.rand(5, 2, *fine, generator=random)
    joined = encoder.merge_stages((near, far))
    assert joined.shape == (5, 5, rows, columns)
    assert torch.equal(joined[:, :3], near)
    for y in range(rows):
        for x in range(columns):
            assert torch.equal(joined[:, 3:, y, x], far[:, :, y // times[0], x // times[1]])


def test_non_divisible_grids_are_interpolated() -> None:
    encoder = TwoStages((1, 5, 3), (1, 2, 1))
    joined = encoder.merge_stages((torch.zeros(1, 1, 5, 3), torch.tensor([[[[0.0], [10.0]]]])))
    # Middles of the 5 rows, 0.1 to 0.9, between those of the 2 rows, 0.25 and 0.75.
    expected = torch.tensor([0.0, 1.0, 5.0, 9.0, 10.0]).view(5, 1).expand(5, 3)
    torch.testing.assert_close(joined[0, 1], expected)


@pytest.mark.parametrize(("kernels", "side"), [((3, 3), 54), ((3, 1), 38), ((1, 1), 22)])
def test_receptive_field_is_symmetric_around_its_cell(kernels: tuple[int, int], side: int) -> None:
    encoder = SmallEncoder((104, 104), channels=4, coord_scale=False, kernels=kernels).eval()
    for parameter in encoder.parameters():
        torch.nn.init.ones_(parameter)  # every path counts, none cancels
    for step in (*encoder.stem, *encoder.refine):
        step.register_module(
            "1", torch.nn.Identity()
        )  # only normalization depends on the whole image
    image = torch.ones(1, 3, 104, 104, requires_grad=True)
    encoder.forward_features(image)[0][0, 0, 6, 6].backward()
    assert image.grad is not None
    gradient = image.grad[0, 0]
    rows = (gradient.sum(1) > 0).nonzero()[:, 0].tolist()
    middle = 6 * 8 + 4  # of the cell
    assert rows == list(range(middle - side // 2, middle + side // 2))
    torch.testing.assert_close(gradient, gradient.T)
    torch.testing.assert_close(gradient[rows], gradient[rows].flip(0))


def test_pyramid_of_the_small_encoder_ends_in_its_features() -> None:
    encoder = SmallEncoder((24, 40), channels=8).eval()
    images = pixels(2, 3, 24, 40)
    half, quarter, eighth = encoder.feature_pyramid(images)
    assert (half.shape, quarter.shape) == ((2, 2, 12, 20), (2, 4, 6, 10))
    torch.testing.assert_close(eighth, encoder(images))


CLASSES = ("cat", "dog", "hen")
COLORS: dict[str, Any] = {"mean": (0.3, 0.5, 0.7), "std": (0.2, 0.25, 0.3)}
MODELS: dict[str, Callable[[], ImageClassifier | ImageEncoder]] = {
    "small encoder": lambda: SmallEncoder((24, 40), channels=8, **COLORS),
    "timm encoder": lambda: TimmEncoder("test_resnet", img_size=(64, 96), **COLORS),
    "timm encoder in two parts": lambda: TimmEncoder(
        "test_resnet", img_size=(64, 96), unfreeze_from_stage=2, **COLORS
    ),
    "timm classifier": lambda: TimmClassifier(CLASSES, "test_resnet", img_size=(64, 96), **COLORS),
    "attention resnet": lambda: AttentionResNet(CLASSES, depth=8, stem_width=4, **COLORS),
    "vit": lambda: VisionTransformer(
        CLASSES, img_size=(24, 40), **COLORS, patch_size=8, embed_dim=12, depth=1, num_heads=3
    ),
    "glimpses": lambda: DRAM(
        CLASSES, (24, 40), COLORS["mean"], COLORS["std"], max_objects=1, hidden_size=8
    ),
    "gray glimpses": lambda: DRAM(CLASSES, (24, 40), [0.3], [0.2], max_objects=1, hidden_size=8),
}


def by_hand(images: Tensor, model: ImageClassifier | ImageEncoder) -> Tensor:
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (model.mean, model.std))
    return (images - mean * 255) / (std * 255)


@pytest.mark.parametrize("name", MODELS)
def test_normalized_floats_equal_uint8_and_take_gradients(name: str) -> None:
    torch.manual_seed(3)
    model = MODELS[name]().eval()
    uint8_images = pixels(2, len(model.mean), *model.img_size)
    floats = by_hand(uint8_images, model).requires_grad_()
    output = model(floats)
    torch.testing.assert_close(output, model(uint8_images))
    (gradient,) = torch.autograd.grad(output.square().sum(), floats)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert model(uint8_images).isfinite().all()
        assert model(floats).isfinite().all()
    half = model.bfloat16()
    assert half(uint8_images).dtype == half(floats.detach().bfloat16()).dtype == torch.bfloat16


def test_gray_models_convert_rgb_to_gray_as_pillow_does() -> None:
    model = MODELS["gray glimpses"]()
    images = pixels(2, 3, *model.img_size)
    gray = model.normalize(images)
    torch.testing.assert_close(model.normalize(by_hand(images, model)), gray, rtol=1e-4, atol=1e-5)
    levels = (gray * 0.2 + 0.3) * 255
    for level, image in zip(levels[:, 0], images, strict=True):
        expected = Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")
        assert (level.flatten() - torch.tensor(list(expected.tobytes()))).abs().max() <= 0.51
