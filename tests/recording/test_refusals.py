"""What can be neither recorded nor placed is refused; image size and class names are found."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from image_text_models import PLAIN, hugging_face_vit, tiny_detector
from torch import Tensor, nn

import visattn as va
from visattn.blocks.tap import Tap
from visattn.models.vit import VisionTransformer
from visattn.recording.model_config import configured_image_size, input_hint, stated_info
from visattn.recording.subject import analyze_model

X = torch.zeros(1, 3, 32, 32)
PHOTO = np.zeros((128, 192, 3), np.uint8)
THIN: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 2}


def vit() -> VisionTransformer:
    return VisionTransformer(("a", "b"), img_size=(32, 32), patch_size=8, embed_dim=12, depth=2,
                             num_heads=2)  # fmt: skip


def recorded(model: Any, x: Any = X, **options: Any) -> Callable[[], None]:
    """Return a call that records a model on images, or without a run of it."""

    def call() -> None:
        made = (
            model() if isinstance(model, Callable) and not isinstance(model, nn.Module) else model
        )  # type: ignore[arg-type]
        with va.record(made, **options):
            if x is not None:
                made(x)

    return call


def analyzed(model: Callable[[], Any], *args: Any) -> Callable[[], object]:
    return lambda: analyze_model(model(), *args)


def detector(build: Callable[[], Any], index: int, size: tuple[int, int]) -> Callable[[], object]:
    target = va.QueryTarget(index)
    return lambda: va.explain(build(), PHOTO, "attention", target, input_size=size)


def yolos() -> Any:
    config: dict[str, Any] = {**PLAIN, "image_size": [64, 96], "num_detection_tokens": 5}
    return transformers.YolosForObjectDetection(transformers.YolosConfig(**config)).eval()


def flash() -> Any:
    model = hugging_face_vit()
    model.config._attn_implementation = "flash_attention_2"
    return model


def hiera() -> Any:
    options: dict[str, Any] = {"embed_dim": 8, "num_heads": 1, "stages": (1, 1, 1, 1)}
    return timm.create_model("hiera_tiny_224", img_size=(64, 64), **options).eval()


class Flat(nn.Module):
    """A network for images of 32 x 32 without any configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU())
        self.head = nn.Linear(5 * 8 * 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


class OfBatch(Flat):
    """Takes what a data loader returns."""

    def forward(self, x: Any) -> Tensor:
        return super().forward(x["image"])


def tokens(kind: Any = "tokens", **options: Any) -> nn.Module:
    return nn.Sequential(Tap(kind, **options))


ODD = nn.Sequential(nn.Flatten(), nn.Linear(3 * 17 * 19, 2))
TRAINED = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
TRAINED(X)
KERNELS = r"'sdpa' or 'eager' .* got 'flash_attention_2' .*set_attn_implementation\('sdpa'\)"
NO_GRID = r"over 7 tokens must have a grid .* at 0 has none .*2, 3, 5, 7.*set tap\.grid"
CASES: list[tuple[Callable[[], Any], str]] = [
    # recording
    (recorded(nn.ReLU(), None), "ReLU must run .*it has none"),
    (recorded(tokens("gate"), None), r"Sequential must run .* no tap \(0\)"),
    (recorded(lambda: timm.create_model("test_resnet"), torch.zeros(1, 3, 160, 160)),
     "neither scaled_dot_product_attention"),
    (recorded(lambda: timm.create_model("test_resnet"), None), "must run inside the with block"),
    (recorded(lambda: timm.create_model("vit_tiny_patch16_224", **THIN).blocks,
              torch.randn(1, 16, 24)), "no image was passed in before it ran"),
    (recorded(tokens(), torch.rand(2, 3, 5, 7)), NO_GRID),
    (recorded(tokens("words"), torch.rand(2, 3, 5, 7)), NO_GRID),
    (recorded(tokens(grid=(1, 5)), torch.rand(2, 5, 5), queries="class"),
     r"attention at 0 can only be recorded with queries='all' and heads=None"),
    (recorded(vit, layers=3), r"got 3; the layers are blocks\.0"),
    (recorded(vit, layers="stages*"), r"got 'stages\*'; the layers are blocks\.0"),
    (recorded(vit, queries="register"), "no register token; its prefix tokens are class; pass one"),
    (recorded(vit, queries=[17]), "tokens must be indices from -17 to 16, got 17"),
    (recorded(vit, heads=[-5]), "heads must be indices from -2 to 1, got -5"),
    (recorded(vit, queries="class", differentiable=True), "differentiable=True requires all"),
    (recorded(vit, heads=[0], differentiable=True), "differentiable=True requires all"),
    (recorded(flash, None), KERNELS),
    (analyzed(flash), KERNELS),
    (recorded(lambda: transformers.ViTMAEModel(transformers.ViTMAEConfig(**PLAIN, mask_ratio=0.0)),
              torch.randn(2, 3, 48, 80)), "tokens without their own position"),
    (recorded(hiera, torch.randn(2, 3, 64, 64), layers="blocks.3.attn"),
     r"blocks\.3\.attn: its tokens are not in the order of their grid"),
    (recorded(lambda: timm.create_model("vit_tiny_patch16_224", img_size=80, patch_drop_rate=0.3,
                                        **THIN), torch.randn(2, 3, 80, 80)),
     "18 tokens instead of 26 as in the probe run"),
    # queries of detectors
    (detector(lambda: tiny_detector("DeformableDetr"), 2, (64, 96)),
     "from its queries .* deformable attention.*: gradcam"),
    (detector(yolos, 2, (64, 96)), "from its queries .* tokens of the encoder; supported"),
    (detector(lambda: tiny_detector("Detr"), 9, (64, 96)), "tokens must be indices .*, got 9"),
    # what cannot be analyzed
    (analyzed(lambda: torch.jit.trace(Flat(), X), 32), "torch.jit made it; pass the original"),
    (analyzed(lambda: nn.Sequential(torch.jit.script(Flat())), 32), "Python, but torch.jit made"),
    (analyzed(lambda: torch.export.export(Flat(), (X,)).module(), 32), "but torch.export made it"),
    (analyzed(lambda: Flat().to("meta"), 32), "on the meta device and must be loaded first"),
    (analyzed(OfBatch, 32), "only a batch of images with 3 channels"),
    (analyzed(Flat), r"224 x 224 pixels, but Flat raised an error \(RuntimeError.*; "
     r"it runs on 32 x 32: input_size=\(32, 32\), or --input-size 32x32$"),
    (analyzed(lambda: ODD), r"its images with input_size=\(height, width\)"),
    *((analyzed(Flat, wrong), r"a positive integer or \(height, width\)")
      for wrong in (0, (3,), (3, 17, 19), "32")),
    (analyzed(Flat, 32, ["cat", "dog"]), "a name for each of 3 classes, got 2"),
    (analyzed(Flat, 32, {1: "cat", 2: "dog", 3: "cow"}), "class indices must be 0 to 2"),
    (analyzed(Flat, 32, ["cat", "cat", "dog"]), "must be unique, got 'cat' more than once"),
    # layers
    *((lambda layer=layer: va.explain(TRAINED, X, "gradcam", 0, layers=layer), message)
      for layer, message in (
          ("heed", "a module of Sequential, got 'heed'"),
          ("1#x", "a module of Sequential, got '1#x'"),
          ("1#0", "a call of the module, 1#1 to 1#1; got 1#0"),
          (nn.ReLU(), "a module of the Sequential, got a ReLU that is not part"),
      )),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(("call", "match"), CASES, ids=map(str, range(len(CASES))))
def test_refused(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()
    assert not torch._C._len_torch_function_stack()


class OfProperty(Flat):
    """Computes its configuration."""

    @property
    def config(self) -> dict[str, Any]:
        return {"image_size": 48}


class OfInner(Flat):
    """Passes on what another object knows, as wrappers do."""

    def __getattr__(self, name: str) -> Any:
        return {"input_size": (3, 31, 37)} if name == "default_cfg" else super().__getattr__(name)


def test_image_size_is_read_from_attributes_and_configs() -> None:
    cases: list[tuple[type[Flat], dict[str, Any], tuple[int, int] | None]] = [
        (Flat, {}, None),
        (Flat, {"image_size": 48}, (48, 48)),
        (Flat, {"img_size": (48, 80)}, (48, 80)),
        (Flat, {"input_size": (3, 48, 80)}, (48, 80)),
        (Flat, {"default_cfg": {"input_size": (3, 31, 37)}}, (31, 37)),
        (Flat, {"config": SimpleNamespace(image_size=64)}, (64, 64)),
        (Flat, {"config": {"image_size": [40, 56]}}, (40, 56)),
        (Flat, {"image_size": "large"}, None),
        (OfProperty, {}, (48, 48)),
        (OfInner, {}, (31, 37)),
    ]
    for build, attributes, size in cases:
        vars(model := build()).update(attributes)
        for each in (model, nn.Sequential(nn.LSTM(512, 8), model)):
            assert configured_image_size(each) == size
    model = hugging_face_vit()
    model.vit.image_size = 7
    assert stated_info(model)[0].input_size == (48, 80)  # its own before that of a part
    published = OfInner()  # of other weights
    vars(published.features[0])["img_size"] = (48, 80)
    assert configured_image_size(published) == (48, 80)
    small = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=5)
    assert analyze_model(small).info.input_size == (32, 32)


def test_the_error_suggests_sizes_that_work() -> None:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    sides = " and ".join(f"{n} x {n}" for n in (28, 32, 64, 96, 128, 224, 256, 299, 384))
    assert f"it runs on 17 x 19 and {sides}: " in input_hint(pooled, (17, 19), 3)
    odd = nn.Sequential(nn.Flatten(), nn.Linear(3 * 17 * 19, 2))
    assert analyze_model(odd, (17, 19)).info.input_size == (17, 19)


def test_class_names_are_given_in_order_or_by_index() -> None:
    names = ("cat", "dog", "cow")
    for given in (list(names), {2: "cow", 0: "cat", 1: "dog"}):
        assert analyze_model(Flat(), 32, given).class_names == names
    with pytest.raises(TypeError, match="got the string 'cat'"):
        analyze_model(Flat(), 32, "cat")
