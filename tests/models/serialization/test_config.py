"""Model configs: roundtrip for every class, and refused configs."""

import inspect
import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioner import SPECIAL_TOKENS
from visattn.models.captioning.adaptive_attention import KnowingWhenToLook
from visattn.models.captioning.ensemble import CaptionerEnsemble
from visattn.models.captioning.sequence_recognizer import SequenceRecognizer
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer_captioner import TransformerCaptioner
from visattn.models.detection.detr import DETR
from visattn.models.encoder import SmallEncoder
from visattn.models.ram.dram import DRAM
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.segmentation.unet import UNet
from visattn.models.serialization import config as descriptions, meta_shapes as meta
from visattn.models.serialization.config import (
    MODEL_CLASSES,
    build_model,
    check_config_fits,
    model_config,
)
from visattn.models.serialization.meta_shapes import weight_shapes
from visattn.models.swin.swin_transformer import SwinTransformer
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.models.vqa.cnn_mlp import CNNMLP
from visattn.models.vqa.cross_attention import CrossAttentionVQA
from visattn.models.vqa.hierarchical_coattention import HierarchicalCoAttention
from visattn.models.vqa.mac import MAC
from visattn.models.vqa.relation_network import RelationNetwork
from visattn.models.vqa.stacked_attention import StackedAttentionNetwork

VQA_WORDS, VQA_ANSWERS = (*SPECIAL_TOKENS, "red", "blue"), ("yes", "no")

# One of each class, with every argument different from its default.
EXAMPLES: dict[str, nn.Module] = {
    "StackedAttentionNetwork": StackedAttentionNetwork(
        VQA_WORDS,
        VQA_ANSWERS,
        SmallEncoder((16, 40), channels=12),
        dim=12,
        attention_dim=7,
        hops=3,
        question_encoder="ngram",
        tanh_scores=True,
        positions=True,
        grid_layers=1,
        hidden_size=5,
        dropout=0.3,
    ),
    "HierarchicalCoAttention": HierarchicalCoAttention(
        VQA_WORDS,
        VQA_ANSWERS,
        SmallEncoder((16, 40), channels=12),
        mode="alternating",
        dim=12,
        positions=True,
        grid_layers=1,
        dropout=0.3,
    ),
    "CrossAttentionVQA": CrossAttentionVQA(
        VQA_WORDS,
        VQA_ANSWERS,
        SmallEncoder((16, 40), channels=12),
        dim=12,
        num_heads=3,
        grid_layers=1,
        reading_layers=2,
        question_encoder="transformer",
        read_words=False,
        hidden_size=5,
    ),
    "MAC": MAC(
        VQA_WORDS,
        VQA_ANSWERS,
        SmallEncoder((16, 40), channels=12),
        dim=12,
        steps=3,
        question_encoder="bag",
        positions=False,
        grid_layers=1,
        dropout=0.3,
    ),
    "RelationNetwork": RelationNetwork(
        VQA_WORDS,
        VQA_ANSWERS,
        SmallEncoder((16, 40), channels=12),
        dim=12,
        num_layers=2,
        pool=2,
        reduce="sum",
        question_encoder="bag",
        dropout=0.3,
    ),
    "CNNMLP": CNNMLP(
        VQA_WORDS,
        VQA_ANSWERS,
        SmallEncoder((16, 40), channels=12),
        dim=12,
        num_layers=3,
        pool=2,
        question_encoder="bag",
        dropout=0.3,
    ),
    "UNet": UNet(
        ("background", "cat"),
        SmallEncoder((16, 40), channels=12),
        decoder_channels=(7, 5),
        block="gate",
        block_kwargs={"reduction": 3},
    ),
    "SmallEncoder": SmallEncoder(
        (16, 40),
        channels=12,
        coord_scale=False,
        stride=4,
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
    ),
    "TimmEncoder": TimmEncoder(
        "test_resnet",
        img_size=(96, 64),
        stage=3,
        unfreeze_from_stage=2,
        timm_kwargs={"output_stride": 8},
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
    ),
    "DETR": DETR(
        ("cat", "dog"),
        SmallEncoder((16, 40), channels=12),
        dim=24,
        num_queries=7,
        num_heads=3,
        num_encoder_layers=1,
        num_decoder_layers=2,
        mlp_ratio=2.0,
        cross_attention="dense",
        num_points=3,
        class_probability="softmax",
        two_stage=True,
        num_denoising_groups=2,
    ),
    "ShowAttendTell": ShowAttendTell(
        (*SPECIAL_TOKENS, "red", "blue"),
        SmallEncoder((16, 40), channels=12),
        embed_dim=11,
        hidden_size=17,
        attention_dim=7,
        dropout=0.3,
    ),
    "KnowingWhenToLook": KnowingWhenToLook(
        (*SPECIAL_TOKENS, "red", "blue"),
        SmallEncoder((16, 40), channels=12),
        embed_dim=11,
        hidden_size=17,
        attention_dim=7,
        dropout=0.3,
        feature_dropout=0.2,
        sentinel_dropout=0.25,
        feedback="location",
    ),
    "CaptionerEnsemble": CaptionerEnsemble(
        [
            ShowAttendTell(
                (*SPECIAL_TOKENS, "red", "blue"),
                SmallEncoder((16, 40), channels=channels),
                embed_dim=11,
                hidden_size=17,
                attention_dim=7,
            )
            for channels in (8, 12)
        ]
    ),
    "SequenceRecognizer": SequenceRecognizer(
        (*SPECIAL_TOKENS, "red", "blue"),
        SmallEncoder((16, 40), channels=12),
        score="concat",
        alignment="predictive",
        embed_dim=11,
        hidden_size=17,
        attention_dim=7,
        window_radius=2.0,
        window_step=1.0,
        dropout=0.3,
        feature_proj_dim=13,
    ),
    "TransformerCaptioner": TransformerCaptioner(
        (*SPECIAL_TOKENS, "red", "blue"),
        SmallEncoder((16, 40), channels=12),
        embed_dim=22,
        num_layers=2,
        num_heads=11,
        mlp_ratio=1.5,
        dropout=0.3,
        feature_dropout=0.2,
        pos_embed="learned",
        max_length=13,
        encoder_layers=2,
        memory_slots=5,
        meshed=True,
        attention_on_attention=True,
        maps=(1, 7),
    ),
    "AttentionResNet": AttentionResNet(
        ("cat", "dog", "yak"),
        depth=8,
        block="se",
        stages=(2,),
        position="stage_end",
        block_kwargs={"reduction": 4},
        stem_block="sse",
        stem_block_kwargs={},
        stem_width=8,
        stage_widths=(5, 7, 11),
        shortcut="padding",
        img_size=(16, 40),
        mean=(0.1,),
        std=(0.5,),
    ),
    "TimmClassifier": TimmClassifier(
        ("cat", "dog", "yak"),
        "test_resnet",
        block="se",
        position="stage_end",
        stages=(2,),
        init="paper",
        block_kwargs={"reduction": 4},
        img_size=(96, 64),
        timm_kwargs={"drop_rate": 0.5},
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
    ),
    "VisionTransformer": VisionTransformer(
        ("cat", "dog", "yak"),
        img_size=(24, 40),
        patch_size=(8, 4),
        stem_kwargs={},
        embed_dim=24,
        depth=3,
        num_heads=3,
        mlp_ratio=2.5,
        ffn_layer="swiglu",
        attn_type=("window", "shifted", "full"),
        window_size=(2, 3),
        pos_embed_type="relative",
        pos_embed_prefix=False,
        pos_interpolation="dino",
        global_pool="attention",
        class_token=True,
        num_registers=2,
        use_fc_norm=True,
        qkv_bias=False,
        qk_norm=True,
        lsa=True,
        layer_scale=0.1,
        drop_path_rate=0.2,
        dynamic_img_pad=True,
        grad_checkpointing=True,
        norm_eps=1e-5,
        mean=(0.1,),
        std=(0.5,),
    ),
    "DRAM": DRAM(
        ("cat", "dog", "yak"),
        (16, 40),
        (0.1,),
        (0.5,),
        max_objects=3,
        num_glimpses_per_object=2,
        end_class="yak",
        glimpse_size=7,
        num_scales=3,
        rnn_type="gru",
        hidden_size=17,
        glimpse_encoder="linear",
        what_dim=11,
        where_dim=11,
        context_size=5,
        policy_std=0.2,
        learn_std=True,
        pad_value=0.5,
        backend="bilinear",
        dropout=0.3,
    ),
    "RecurrentAttentionModel": RecurrentAttentionModel(
        ("0", "1"), (28, 28), [0.1], [0.3], num_glimpses=2
    ),
    "SwinTransformer": SwinTransformer(
        ("cat", "dog", "yak"),
        img_size=(24, 40),
        patch_size=(2, 4),
        embed_dim=12,
        depths=(1, 2, 1),
        num_heads=(2, 3, 4),
        window_size=(3, 2),
        mlp_ratio=2.5,
        qkv_bias=False,
        drop_path_rate=0.2,
        dynamic_img_pad=True,
        grad_checkpointing=True,
        norm_eps=1e-6,
        mean=(0.1,),
        std=(0.5,),
    ),
}


def arguments(kind: type[nn.Module]) -> list[str]:
    return list(inspect.signature(kind.__init__).parameters)[1:]


def test_every_class_has_an_example() -> None:
    assert set(EXAMPLES) == set(MODEL_CLASSES)


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_every_argument_is_an_attribute(name: str) -> None:
    for argument in arguments(MODEL_CLASSES[name]):
        assert hasattr(EXAMPLES[name], argument), argument


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_config_builds_the_same_model(name: str) -> None:
    model = EXAMPLES[name]
    described = json.loads(json.dumps(model_config(model), allow_nan=False))
    again = build_model(described)
    assert type(again) is type(model)
    assert model_config(again) == model_config(model)
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }
    again.load_state_dict(model.state_dict())
    frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert frozen == [n for n, p in again.named_parameters() if not p.requires_grad]
    size = getattr(model, "img_size", (16, 40))
    if isinstance(model, SmallEncoder | TimmEncoder):
        images = torch.randint(256, (2, 3, *size), dtype=torch.uint8)
        assert torch.equal(model.eval()(images), again.eval()(images))


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_config_contains_every_argument(name: str) -> None:
    described = model_config(EXAMPLES[name])
    assert described["class"] == name
    assert list(described["arguments"]) == arguments(MODEL_CLASSES[name])


def test_configs_of_foreign_classes_are_refused() -> None:
    class SmallEncoder(nn.Module):  # of the same name as ours
        pass

    for model in (nn.Linear(2, 3), SmallEncoder()):
        with pytest.raises(ValueError, match=f"must be one of .*, got {type(model).__name__}"):
            model_config(model)


def test_config_values_are_plain() -> None:
    encoder = SmallEncoder((16, 16), channels=4)
    encoder.channels = torch.tensor(4)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="plain values only, got Tensor"):
        model_config(encoder)


SMALL: dict[str, Any] = {"class": "SmallEncoder", "arguments": {"img_size": [16, 16]}}


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ({}, "names one of SmallEncoder, TimmEncoder, ShowAttendTell"),
        ({"class": "os.system", "arguments": {"command": "true"}}, "got 'os.system'"),
        ({"class": "SmallEncoder"}, "and its arguments"),
        ({"class": "SmallEncoder", "arguments": [3]}, "and its arguments"),
        ({"class": ["SmallEncoder"], "arguments": {}}, "names one of"),
        ({"class": "SmallEncoder", "arguments": {"sise": [8, 8]}}, "no argument sise; it has"),
        ({"class": "SmallEncoder", "arguments": {"channels": 5}}, "multiple of 4"),
        ({"class": "SmallEncoder", "arguments": {"img_size": "large"}}, "cannot be built"),
        (
            {"class": "TimmEncoder", "arguments": {"name": "test_resnet", "pretrained": True}},
            "may not set pretrained or weights",
        ),
        (
            {"class": "TimmEncoder", "arguments": {"name": "test_resnet", "weights": "/x"}},
            "may not set pretrained or weights",
        ),
        (
            {
                "class": "TimmEncoder",
                "arguments": {"name": "test_resnet", "timm_kwargs": {"checkpoint_path": "/x"}},
            },
            "may not contain checkpoint_path",
        ),
        (
            {"class": "ShowAttendTell", "arguments": {"words": [], "encoder": SMALL}},
            "words must begin with",
        ),
        (
            {
                "class": "ShowAttendTell",
                "arguments": {"words": list(SPECIAL_TOKENS), "encoder": "SmallEncoder"},
            },
            "cannot be built with these arguments",
        ),
        (
            {
                "class": "ShowAttendTell",
                "arguments": {
                    "words": list(SPECIAL_TOKENS),
                    "encoder": {"class": "subprocess.Popen", "arguments": {"args": "true"}},
                },
            },
            "got 'subprocess.Popen'",
        ),
    ],
)
def test_invalid_configs_are_refused(description: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build_model(description)


HUGE: list[tuple[str, dict[str, Any]]] = [
    (
        "a tensor of",
        {"class": "SmallEncoder", "arguments": {"img_size": [4096, 4096], "channels": 4096}},
    ),
    ("at most 16,777,216 pixels",
     {"class": "SmallEncoder", "arguments": {"img_size": [2**20] * 2}}),
    (
        "a tensor of",
        {
            "class": "VisionTransformer",
            "arguments": {
                "class_names": ["cat", "dog"], "img_size": [512, 512], "patch_size": 1,
                "embed_dim": 16, "depth": 1,
                "num_heads": 1, "pos_embed_type": "none", "attn_type": "neighborhood",
                "window_size": 501,
            },
        },
    ),
    (
        "to 2\\^13 pixels",
        {
            "class": "RecurrentAttentionModel",
            "arguments": {
                "class_names": ["cat", "dog"], "img_size": [28, 28], "mean": [0.1], "std": [0.3],
                "num_scales": 13, "glimpse_size": 1, "hidden_size": 3,
            },
        },
    ),
    (
        "num_glimpses must be at most 4,096",
        {
            "class": "RecurrentAttentionModel",
            "arguments": {
                "class_names": ["cat", "dog"], "img_size": [28, 28], "mean": [0.1], "std": [0.3],
                "num_glimpses": 2**20,
            },
        },
    ),
]  # fmt: skip


def test_huge_configs_are_refused_before_allocation() -> None:
    for reason, description in HUGE:
        with pytest.raises(ValueError, match=reason):
            check_config_fits(
                description,
                weight_shapes(partial(build_model, description), num_weights=99),
                source="m",
            )
    captioner = {
        "class": "ShowAttendTell",
        "arguments": {"words": list(SPECIAL_TOKENS), "encoder": HUGE[0][1]},
    }
    with pytest.raises(ValueError, match=r"m\.safetensors: a tensor of .* would need"):
        check_config_fits(
            captioner,
            weight_shapes(partial(build_model, captioner), num_weights=99),
            source="m.safetensors",
        )


def test_meta_forward_runs_before_weights_are_read() -> None:
    for model in EXAMPLES.values():
        made: list[object] = []

        def run(built: nn.Module, made: list[object] = made) -> None:
            descriptions._forward_one_image(built)
            made.append(built)

        meta.check_forward_memory(partial(build_model, model_config(model)), run)
        assert len(made) == 1, type(model)  # an error on the way leaves it empty
