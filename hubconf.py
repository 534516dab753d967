"""Entry points for `torch.hub`: models that come with visattn, architectures, and blocks.

`torch.hub.load(REPOSITORY, "block", "cbam", 64)`, with `source="local"` for a checkout.
"""

from typing import Any as _Any

from torch import nn as _nn

dependencies = ["torch", "torchvision", "timm", "safetensors", "jaxtyping", "lazy_loader"]


def _class_names(num_classes: int) -> tuple[str, ...]:
    return tuple(map(str, range(num_classes)))


def scenes_captioner(*, pretrained: bool = True) -> _nn.Module:
    """Captioner of drawn scenes that comes with visattn.

    Args:
        pretrained: Load the trained weights; else they are random.
    """
    return _bundled("scenes-captioner", pretrained=pretrained)


def scenes_glimpses(*, pretrained: bool = True) -> _nn.Module:
    """Glimpse model that classifies drawn shapes, which comes with visattn.

    Args:
        pretrained: Load the trained weights; else they are random.
    """
    return _bundled("scenes-glimpses", pretrained=pretrained)


def _bundled(name: str, *, pretrained: bool) -> _nn.Module:
    from visattn import load
    from visattn.models.saving.config import build_model, model_config

    model = load(name)
    return model if pretrained else build_model(model_config(model))


def model(name: str) -> _nn.Module:
    """Model of a file, of a repository `hf://USER/NAME[@REVISION]`, or one that visattn brings.

    Args:
        name: As `visattn.load` accepts it.
    """
    from visattn import load

    return load(name)


def vit(preset: str = "tiny", num_classes: int = 1000, **options: _Any) -> _nn.Module:
    """Vision Transformer or compact convolutional transformer, with random weights.

    Args:
        preset: Name of a preset, such as `tiny`, `vit_lite_7_4` or `cct_7_3x1`.
        num_classes: Number of classes.
        options: Arguments of `VisionTransformer`.
    """
    from visattn.models import create_vit

    return create_vit(preset, list(_class_names(num_classes)), **options)


def attention_resnet(block: str = "cbam", num_classes: int = 10, **options: _Any) -> _nn.Module:
    """ResNet with an attention block in each residual unit, with random weights.

    Args:
        block: Name of a block, see `visattn.list_blocks`.
        num_classes: Number of classes.
        options: Arguments of `AttentionResNet`.
    """
    from visattn.models import AttentionResNet

    return AttentionResNet(_class_names(num_classes), block=block, **options)


def block(name: str, channels: int, **options: _Any) -> _nn.Module:
    """Attention block for feature maps.

    Args:
        name: Name of a block, see `visattn.list_blocks`.
        channels: Channels of the feature map.
        options: Arguments of the block.
    """
    from visattn.blocks import create_block

    return create_block(name, channels, **options)
