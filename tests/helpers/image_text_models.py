"""Tiny image-text models, detectors and ViTs of Hugging Face with random weights."""

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

CONTEXT, SIZE, PATCH = 11, 40, 8
_WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "a", "the", "red", "blue", "ball", "sky"]
_VISION: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 3, "num_attention_heads": 3,
    "image_size": SIZE, "patch_size": PATCH,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": len(_WORDS), "max_position_embeddings": CONTEXT, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "image_size": (48, 80), "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


def tiny_tokenizer() -> Any:
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(_WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 1), ("[EOS]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]",
        unk_token="[UNK]", model_max_length=CONTEXT,
    )  # fmt: skip


def tiny_clip() -> Any:
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config=_TEXT, vision_config=_VISION, projection_dim=17, logit_scale_init_value=1.7
    )
    return _randomized(transformers.CLIPModel(config))


def tiny_siglip() -> Any:
    torch.manual_seed(0)
    text = {**_TEXT, "projection_size": 24}
    config = transformers.SiglipConfig(text_config=text, vision_config=_VISION)
    return _randomized(transformers.SiglipModel(config))


def clip_processor() -> Any:
    """Shorter side, then a centered crop."""
    return transformers.CLIPImageProcessor(
        size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}
    )


def siglip_processor() -> Any:
    """Squashed to the input size."""
    return transformers.SiglipImageProcessor(size={"height": SIZE, "width": SIZE})


def _randomized(model: nn.Module, scale: float = 0.25) -> Any:
    """Weights large enough that maps are far from uniform."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.copy_(scale * torch.randn(weight.shape, generator=generator))
            elif "logit_bias" in name:
                weight.fill_(-0.3)
    return model.eval()


def _resnet(stages: list[str], kind: str = "ResNetConfig") -> Any:
    return getattr(transformers, kind)(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=stages,
    )  # fmt: skip


def tiny_detector(kind: str, **extra: Any) -> Any:
    """A `KINDForObjectDetection` with 7 queries and 5 classes."""
    torch.manual_seed(0)
    stages = ["stage2", "stage3", "stage4"] if "Deformable" in kind else ["stage4"]
    config: dict[str, Any] = {
        "d_model": 24, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29,
        "num_queries": 7, "num_labels": 5, "use_timm_backbone": False, "backbone": None,
        "use_pretrained_backbone": False, "backbone_config": _resnet(stages), **extra,
    }  # fmt: skip
    if kind == "DeformableDetr":  # its groups of channels are 32
        config |= {"d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    if kind == "DabDetr":
        config["hidden_size"] = config.pop("d_model")
    built = getattr(transformers, f"{kind}Config")(**config)
    return _with_spread_queries(getattr(transformers, f"{kind}ForObjectDetection")(built))


def _with_spread_queries(model: nn.Module) -> Any:
    """Random weights of decoder and heads, so that queries differ; the rest as initialized."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            chosen = "decoder" in name or "query" in name or "bbox" in name
            if chosen and weight.ndim > 1 and "sampling" not in name:
                weight.copy_(0.4 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def hugging_face_vit(**options: Any) -> Any:
    """Return a ViT with random weights, of these options beyond the plain ones."""
    config = transformers.ViTConfig(**{**PLAIN, **options})
    return transformers.ViTForImageClassification(config).eval()
