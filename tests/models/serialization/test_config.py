"""A model as plain values and back, for every class there is; and descriptions of others."""

import inspect
import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioner import SPECIALS
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import SmallEncoder
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.serialization import config as descriptions
from visattn.models.serialization import meta_shapes as outlines
from visattn.models.serialization.config import CLASSES, build, check_fit, describe
from visattn.models.serialization.meta_shapes import outline
from visattn.models.swin.hierarchical import HierarchicalTransformer
from visattn.models.vit.vision_transformer import VisionTransformer

# One of each, with every argument another than the one it has by itself.
EXAMPLES: dict[str, nn.Module] = {
    "SmallEncoder": SmallEncoder(
        (16, 40), channels=12, coordinates=False, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)
    ),
    "TimmEncoder": TimmEncoder(
        "test_resnet",
        size=(96, 64),
        stage=3,
        train_from=2,
        arguments={"output_stride": 8},
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
    ),
    "ShowAttendTell": ShowAttendTell(
        (*SPECIALS, "red", "blue"),
        SmallEncoder((16, 40), channels=12),
        word_width=11,
        hidden=17,
        attention=7,
        dropout=0.3,
    ),
    "AttentionResNet": AttentionResNet(
        ("cat", "dog", "yak"),
        depth=8,
        block="se",
        stages=(2,),
        at="stage_end",
        options={"reduction": 4},
        first="sse",
        first_options={},
        width=8,
        inner=(5, 7, 11),
        shortcut="padding",
        size=(16, 40),
        mean=(0.1,),
        std=(0.5,),
    ),
    "TimmClassifier": TimmClassifier(
        ("cat", "dog", "yak"),
        "test_resnet",
        block="se",
        at="stage_end",
        stages=(2,),
        init="paper",
        options={"reduction": 4},
        size=(96, 64),
        arguments={"drop_rate": 0.5},
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
    ),
    "VisionTransformer": VisionTransformer(
        ("cat", "dog", "yak"),
        size=(24, 40),
        patch=(8, 4),
        stem_options={},
        width=24,
        depth=3,
        heads=3,
        ratio=2.5,
        feed_forward="swiglu",
        attend=("window", "shifted", "full"),
        extent=(2, 3),
        positions="relative",
        prefix_positions=False,
        resample="dino",
        pool="attention",
        class_token=True,
        registers=2,
        norm_after=True,
        qkv_bias=False,
        qk_norm=True,
        locality=True,
        layer_scale=0.1,
        drop_path=0.2,
        pad=True,
        checkpointing=True,
        epsilon=1e-5,
        mean=(0.1,),
        std=(0.5,),
    ),
    "RecurrentAttentionModel": RecurrentAttentionModel(
        ("0", "1"), (28, 28), [0.1], [0.3], glimpses=2
    ),
    "HierarchicalTransformer": HierarchicalTransformer(
        ("cat", "dog", "yak"),
        size=(24, 40),
        patch=(2, 4),
        width=12,
        depths=(1, 2, 1),
        heads=(2, 3, 4),
        window=(3, 2),
        ratio=2.5,
        qkv_bias=False,
        drop_path=0.2,
        pad=True,
        checkpointing=True,
        epsilon=1e-6,
        mean=(0.1,),
        std=(0.5,),
    ),
}


def arguments(kind: type[nn.Module]) -> list[str]:
    return list(inspect.signature(kind.__init__).parameters)[1:]


def test_there_is_an_example_of_each_class() -> None:
    assert set(EXAMPLES) == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_argument_is_kept_under_its_name(name: str) -> None:
    for argument in arguments(CLASSES[name]):
        assert hasattr(EXAMPLES[name], argument), argument


@pytest.mark.parametrize("name", CLASSES)
def test_a_description_builds_the_same_model(name: str) -> None:
    model = EXAMPLES[name]
    described = json.loads(json.dumps(describe(model), allow_nan=False))
    again = build(described)
    assert type(again) is type(model)
    assert describe(again) == describe(model)
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }
    again.load_state_dict(model.state_dict())
    frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert frozen == [n for n, p in again.named_parameters() if not p.requires_grad]
    size = getattr(model, "size", (16, 40))
    if isinstance(model, SmallEncoder | TimmEncoder):
        images = torch.randint(256, (2, 3, *size), dtype=torch.uint8)
        assert torch.equal(model.eval()(images), again.eval()(images))


@pytest.mark.parametrize("name", CLASSES)
def test_a_description_says_every_argument(name: str) -> None:
    described = describe(EXAMPLES[name])
    assert described["class"] == name
    assert list(described["arguments"]) == arguments(CLASSES[name])


def test_only_our_own_classes_are_described() -> None:
    class SmallEncoder(nn.Module):  # of the same name as ours
        pass

    for model in (nn.Linear(2, 3), SmallEncoder()):
        with pytest.raises(ValueError, match=f"can be described, got {type(model).__name__}"):
            describe(model)


def test_only_plain_values_are_described() -> None:
    encoder = SmallEncoder((16, 16), channels=4)
    encoder.channels = torch.tensor(4)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="plain values only, got Tensor"):
        describe(encoder)


SMALL: dict[str, Any] = {"class": "SmallEncoder", "arguments": {"size": [16, 16]}}


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ({}, "names one of SmallEncoder, TimmEncoder, ShowAttendTell"),
        ({"class": "os.system", "arguments": {"command": "true"}}, "got 'os.system'"),
        ({"class": "SmallEncoder"}, "and its arguments"),
        ({"class": "SmallEncoder", "arguments": [3]}, "and its arguments"),
        ({"class": ["SmallEncoder"], "arguments": {}}, "names one of"),
        ({"class": "SmallEncoder", "arguments": {"sise": [8, 8]}}, "no argument sise; it takes"),
        ({"class": "SmallEncoder", "arguments": {"channels": 5}}, "multiple of 4"),
        ({"class": "SmallEncoder", "arguments": {"size": "large"}}, "cannot be built"),
        (
            {"class": "TimmEncoder", "arguments": {"name": "test_resnet", "pretrained": True}},
            "may not ask for others",
        ),
        (
            {"class": "TimmEncoder", "arguments": {"name": "test_resnet", "weights": "/x"}},
            "may not ask for others",
        ),
        (
            {
                "class": "TimmEncoder",
                "arguments": {"name": "test_resnet", "arguments": {"checkpoint_path": "/x"}},
            },
            "may not hold checkpoint_path",
        ),
        (
            {"class": "ShowAttendTell", "arguments": {"words": [], "encoder": SMALL}},
            "words must begin with",
        ),
        (
            {
                "class": "ShowAttendTell",
                "arguments": {"words": list(SPECIALS), "encoder": "SmallEncoder"},
            },
            "cannot be built with these arguments",
        ),
        (
            {
                "class": "ShowAttendTell",
                "arguments": {
                    "words": list(SPECIALS),
                    "encoder": {"class": "subprocess.Popen", "arguments": {"args": "true"}},
                },
            },
            "got 'subprocess.Popen'",
        ),
    ],
)
def test_other_descriptions_are_refused(description: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build(description)


HUGE: list[tuple[str, dict[str, Any]]] = [
    (
        "a tensor of",
        {"class": "SmallEncoder", "arguments": {"size": [4096, 4096], "channels": 4096}},
    ),
    ("at most 16,777,216 pixels", {"class": "SmallEncoder", "arguments": {"size": [2**20] * 2}}),
    (
        "a tensor of",
        {
            "class": "VisionTransformer",
            "arguments": {
                "classes": ["cat", "dog"], "size": [512, 512], "patch": 1, "width": 16, "depth": 1,
                "heads": 1, "positions": "none", "attend": "neighborhood", "extent": 501,
            },
        },
    ),
    (
        "reaches 2\\^13 pixels",
        {
            "class": "RecurrentAttentionModel",
            "arguments": {
                "classes": ["cat", "dog"], "size": [28, 28], "mean": [0.1], "std": [0.3],
                "scales": 13, "glimpse": 1, "width": 3,
            },
        },
    ),
    (
        "glimpses must be at most 4,096",
        {
            "class": "RecurrentAttentionModel",
            "arguments": {
                "classes": ["cat", "dog"], "size": [28, 28], "mean": [0.1], "std": [0.3],
                "glimpses": 2**20,
            },
        },
    ),
]  # fmt: skip


def test_what_numbers_multiply_to_is_bounded_before_memory_is_taken() -> None:
    for reason, description in HUGE:
        with pytest.raises(ValueError, match=reason):
            check_fit(description, outline(partial(build, description), weights=99), source="m")
    captioner = {
        "class": "ShowAttendTell",
        "arguments": {"words": list(SPECIALS), "encoder": HUGE[0][1]},
    }
    with pytest.raises(ValueError, match=r"m\.safetensors: a tensor of .* would take"):
        check_fit(captioner, outline(partial(build, captioner), weights=99), source="m.safetensors")


def test_one_image_passes_every_model_before_its_weights_are_read() -> None:
    for model in EXAMPLES.values():
        made: list[object] = []

        def run(built: nn.Module, made: list[object] = made) -> None:
            descriptions._one_pass(built)
            made.append(built)

        outlines.check_forward(partial(build, describe(model)), run)
        assert len(made) == 1, type(model)  # an error on the way leaves it empty
