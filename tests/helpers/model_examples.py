"""One model of each class that can be saved, with every argument different from its default."""

from typing import Any

from torch import nn

from visattn.models.backbones.module_classifier import ModuleClassifier
from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import SmallEncoder
from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook
from visattn.models.captioning.sequence_recognizer import SequenceRecognizer
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.models.detr import DETR
from visattn.models.glimpses.dram import DRAM
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.resnet import AttentionResNet
from visattn.models.unet import UNet
from visattn.models.vit import VisionTransformer
from visattn.models.vqa.cross_attention import CrossAttentionVQA
from visattn.models.vqa.mac import MAC
from visattn.results.kinds import SPECIAL_TOKENS

WORDS, ANSWERS = (*SPECIAL_TOKENS, "red", "blue"), ("yes", "no")
TWO, THREE = ("cat", "dog"), ("cat", "dog", "yak")
RECURRENT = {"embed_dim": 11, "hidden_size": 17, "attention_dim": 7, "dropout": 0.3}
COLORS: dict[str, Any] = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
GRAY: dict[str, Any] = {"mean": (0.1,), "std": (0.5,)}


def encoder() -> SmallEncoder:
    return SmallEncoder((16, 40), channels=12)


EXAMPLES: dict[str, nn.Module] = {
    "CrossAttentionVQA": CrossAttentionVQA(
        WORDS, ANSWERS, encoder(), dim=12, num_heads=3, grid_layers=1, reading_layers=2,
        question_encoder="gru", hidden_size=5,
    ),
    "MAC": MAC(WORDS, ANSWERS, encoder(), dim=12, steps=3),
    "UNet": UNet(
        TWO, encoder(), decoder_channels=(7, 5), block="gate", block_kwargs={"reduction": 3}
    ),
    "SmallEncoder": SmallEncoder((16, 40), channels=12, coord_scale=False, stride=4, **COLORS),
    "TimmEncoder": TimmEncoder(
        "test_resnet", img_size=(96, 64), stage=3, unfreeze_from_stage=2,
        timm_kwargs={"output_stride": 8}, **COLORS,
    ),
    "DETR": DETR(
        TWO, encoder(), dim=24, num_queries=7, num_heads=3, num_encoder_layers=1,
        num_decoder_layers=2, mlp_ratio=2.0,
    ),
    "ShowAttendTell": ShowAttendTell(WORDS, encoder(), **RECURRENT),
    "KnowingWhenToLook": KnowingWhenToLook(
        WORDS, encoder(), **RECURRENT, feature_dropout=0.2, sentinel_dropout=0.25
    ),
    "SequenceRecognizer": SequenceRecognizer(
        WORDS, encoder(), **RECURRENT, score="concat", alignment="predictive", window_radius=2.0,
        window_step=1.0, feature_proj_dim=13,
    ),
    "TransformerCaptioner": TransformerCaptioner(
        WORDS, encoder(), embed_dim=22, num_layers=2, num_heads=11, mlp_ratio=1.5, dropout=0.3,
        feature_dropout=0.2, encoder_layers=2, maps=(1, 7),
    ),
    "AttentionResNet": AttentionResNet(
        THREE, depth=8, block="se", block_kwargs={"reduction": 4}, stem_block="sse",
        stem_block_kwargs={}, stem_width=8, stage_widths=(5, 7, 11), pool_size=2,
        img_size=(16, 40), **GRAY,
    ),
    "ModuleClassifier": ModuleClassifier(
        THREE, "timm:test_resnet", {"in_chans": 1}, img_size=(64, 64), mean=(0.4,), std=(0.2,)
    ),
    "TimmClassifier": TimmClassifier(
        THREE, "test_resnet", block="se", position="layer2", init="paper",
        block_kwargs={"reduction": 4}, img_size=(96, 64), timm_kwargs={"drop_rate": 0.5}, **COLORS,
    ),
    "VisionTransformer": VisionTransformer(
        THREE, img_size=(24, 40), patch_size=(8, 4), embed_dim=24, depth=3, num_heads=3,
        mlp_ratio=2.5, pos_embed_type="sine", global_pool="sequence", qkv_bias=False, lsa=True,
        drop_path_rate=0.2, grad_checkpointing=True, **GRAY,
    ),
    "DRAM": DRAM(
        THREE, (16, 40), **GRAY, max_objects=3, num_glimpses_per_object=2, end_class="yak",
        glimpse_size=7, num_scales=3, rnn_type="gru", hidden_size=17, glimpse_encoder="linear",
        what_dim=11, where_dim=11, context_size=5, policy_std=0.2, pad_value=0.5,
    ),
    "RecurrentAttentionModel": RecurrentAttentionModel(
        ("0", "1"), (28, 28), [0.1], [0.3], num_glimpses=2
    ),
}  # fmt: skip
