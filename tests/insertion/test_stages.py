"""Ends of stages of many architectures."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torchvision
from host_models import UNet, convolved, hollow, image
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d, relu

from visattn.insertion.insertion import insert
from visattn.insertion.sites import select_sites
from visattn.insertion.trace import trace_model
from visattn.insertion.weights import remove

IMAGE = torch.zeros(1, 3, 64, 96)


class TimmUNet(nn.Module):
    """A timm encoder, and a decoder that joins its levels by functions."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.encoder: Any = timm.create_model(name, features_only=True)
        widths = self.encoder.feature_info.channels()
        pairs = zip(widths[:0:-1], widths[-2::-1], strict=True)
        self.decoder = nn.ModuleList(convolved(low + high, high) for low, high in pairs)
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        *skips, y = self.encoder(x)
        for block, skip in zip(self.decoder, skips[::-1], strict=True):
            y = block(torch.cat([interpolate(y, size=skip.shape[2:]), skip], 1))
        return interpolate(self.head(y), size=x.shape[2:])


class Nested(nn.Module):
    """A U-Net of nested levels; each joins its input with the output of its inner level."""

    def __init__(self, channels: int, inside: nn.Module | None, width: int) -> None:
        super().__init__()
        inner = [inside] if inside else []
        widths = 2 * width if inside else width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1),
            *inner,
            nn.ConvTranspose2d(widths, channels, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class Shared(nn.Module):
    """Functional activations, and one convolution for all stages."""

    def __init__(self, *, residual: bool) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 7, 3, padding=1), nn.Conv2d(7, 7, 3, padding=1)
        self.head, self.residual = nn.Linear(7, 5), residual

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem(x))
        for _ in range(2):
            y = relu(self.conv(x))
            x = max_pool2d(x + y if self.residual else y, 2)
        return self.head(relu(self.conv(x)).mean((2, 3)))


class Tail(nn.Module):
    """Convolutions with functional activations, followed by linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 7, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(7 * 5 * 7, 11), nn.Linear(11, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.conv1(x)), 2)
        x = max_pool2d(relu(self.conv2(x)), 2)
        return self.fc2(relu(self.fc1(x.flatten(1))))


def ends(model: nn.Module, x: Tensor = IMAGE) -> list[str]:
    sites = select_sites(model, trace_model(model, x), "stage_end").sites
    return [f"{site.name} {site.part}".strip() for site in sites]


def timms(name: str) -> nn.Module:
    return hollow(partial(timm.create_model, name))


def theirs(name: str) -> nn.Module:
    return hollow(getattr(torchvision.models, name))


INCEPTION = ["Conv2d_2b_3x3", "Conv2d_4a_3x3", "Mixed_5d", "Mixed_6e", "Mixed_7c"]
BLOCKS = [f"blocks.{n}" for n in (0, 1, 2, 4, 6)]


def test_stage_ends_match_the_architectures() -> None:
    for model, x, expected in (
        (timms("efficientnet_b0"), IMAGE, BLOCKS),
        (timms("mobilenetv3_large_100"), IMAGE, BLOCKS),
        (theirs("efficientnet_b0"), IMAGE, [f"features.{n}" for n in (1, 2, 3, 5, 7)]),
        (theirs("mobilenet_v3_small"), IMAGE, [f"features.{n}" for n in (1, 3, 8, 11)]),
        (theirs("convnext_tiny"), IMAGE, [f"features.{n}" for n in (1, 3, 5, 7)]),
        (theirs("squeezenet1_1"), IMAGE, [f"features.{n}" for n in (1, 4, 7, 12)]),
        (theirs("shufflenet_v2_x0_5"), IMAGE, ["conv1.2", "stage2", "stage3", "stage4"]),
        (timms("regnety_002"), IMAGE, ["s1", "s2", "s3", "s4"]),
        (timms("convnext_atto"), IMAGE, [f"stages.{n}" for n in range(4)]),
        (timms("pvt_v2_b0"), IMAGE, [f"stages.{n}" for n in range(4)]),
        (timms("inception_v3"), torch.zeros(1, 3, 128, 192), INCEPTION),
    ):
        assert ends(model, x) == expected


class Halving(nn.Module):
    """A convolution at the resolution of the input, and one that halves it."""

    def __init__(self, first: nn.Conv2d) -> None:
        super().__init__()
        self.first, self.down = first, nn.Conv2d(6, 7, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.first(x))


def test_a_stage_goes_on_in_a_module_that_mixes_positions_and_channels_before_it_halves() -> None:
    for first, end in (
        (nn.Conv2d(6, 6, 3, padding=1), "1.first"),
        (nn.Conv2d(6, 6, 1), "0"),
        (nn.Conv2d(6, 6, 3, padding=1, groups=6), "0"),
    ):
        parts = [nn.Conv2d(3, 6, 3, padding=1), Halving(first), nn.Conv2d(7, 7, 3, padding=1)]
        assert ends(nn.Sequential(*parts))[0] == end


def test_unet_has_encoder_bottleneck_and_decoder_stages() -> None:
    levels = ["enc1 encoder", "enc2 encoder", "mid bottleneck", "dec2 decoder", "dec1 decoder"]
    assert ends(UNet(), image()) == levels
    wrapped = nn.Sequential(UNet(), nn.Softmax(1))
    assert ends(wrapped, image()) == [f"0.{level}" for level in levels]
    parts = [*[f"encoder.blocks.{n} encoder" for n in range(4)], "encoder.blocks.4 bottleneck"]
    parts += [f"decoder.{n} decoder" for n in range(4)]
    assert ends(TimmUNet("test_efficientnet")) == parts
    nested = Nested(3, Nested(5, Nested(7, None, 11), 7), 5)
    assert [end.partition(" ")[2] for end in ends(nn.Sequential(nested, nn.Conv2d(6, 2, 1)))] == [
        *("encoder", "encoder", "bottleneck", "decoder", "decoder", "decoder")
    ]


def test_stages_of_equal_size_are_selected_separately() -> None:
    model, x = UNet(), image()
    report = insert(model, "se", position="stage_end", stages=(2, 4), example=x, reduction=2)
    assert [str(site) for site in report.sites] == [
        "enc2  7 x 10 x 14  encoder",
        "dec2  7 x 10 x 14  decoder",
    ]
    assert "  enc2  7 x 10 x 14  encoder" in str(report).splitlines()
    with pytest.raises(ValueError, match=r"1: 20 x 28 encoder, .*3: 5 x 7 bottleneck.* got \[6\]"):
        insert(model, "se", position="residual", stages=[6], example=x)


def test_stage_without_a_final_module_lists_candidates() -> None:
    listed = r"stem 7 x 20 x 28, conv 7 x 20 x 28 \(3 runs\)$"
    for residual, said in (
        (True, "stage 1, of 20 x 28 features, ends with a function"),
        (False, "stage 1, of 20 x 28 features, ends with conv, which runs in other stages too"),
    ):
        with pytest.raises(ValueError, match=f"{said}.*pass the names of the sites.*{listed}"):
            insert(Shared(residual=residual), "se", position="stage_end", example=image())
    with pytest.raises(
        ValueError, match=r"several paths of features.* pass the names of the sites\. Modules"
    ):
        ends(timms("hrnet_w18_small"))


def test_function_after_the_last_module_is_reported() -> None:
    report = insert(Tail(), "simam", position="stage_end", example=image())
    assert [site.name for site in report.sites] == ["conv1", "conv2"]
    assert report.notes[0] == (
        "stage 1, of 20 x 28 features, ends with a function, such as an activation, after conv1: "
        "the block is inserted before it"
    )
    assert report.notes[0] in str(report).splitlines()


@pytest.mark.parametrize("at", ["*", lambda name, module: True])
def test_modules_without_a_feature_map_are_skipped_and_reported(
    at: str | Callable[[str, nn.Module], bool],
) -> None:
    model, x = (
        nn.Sequential(*convolved(3, 5), nn.AdaptiveAvgPool2d(1)).append(nn.Flatten()),
        image(),
    )
    model.append(nn.Linear(5, 2))
    report = insert(model, "simam", position=at, example=x)
    assert [site.name for site in report.sites] == ["0", "1", "2"]
    assert report.notes == (
        "skipped 3: it returns 1 x 1 features, which are no feature map; 4: it returns [2, 5]; "
        "5: it returns [2, 2]",
    )
    remove(model)
    with pytest.raises(ValueError, match="after 5: it returns"):
        insert(model, "simam", position="5", example=x)
    with pytest.raises(
        ValueError, match=r"no site for position='\[45\]': 4: it .*Modules that return feature"
    ):
        insert(model, "simam", position="[45]", example=x)


def test_identity_initialization_is_bit_exact_at_any_stage() -> None:
    models = [UNet(), TimmUNet("test_resnet"), Tail(), timm.create_model("test_efficientnet")]
    for model in models:
        x = image() if isinstance(model, (UNet, Tail)) else torch.randn(1, 3, 64, 96)
        before = model.eval()(x)
        assert insert(model, "cbam", position="stage_end", example=x).num_identity_scales > 0
        assert torch.equal(model(x), before)
