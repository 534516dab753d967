"""The same Vision Transformer from several hands."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import timm
import torch
from torch import Tensor, nn

from visattn.models.vit.presets import vit
from visattn.models.vit.vision_transformer import VisionTransformer

CLASSES = tuple(map(str, range(1000)))
Forward = Callable[[Tensor], Tensor]


class TransformerCase(NamedTuple):
    """Which model, on how many images at once; it has the same name as in papers.

    Args:
        title: Its size and patch.
        preset: Our name.
        timm: Timm's name.
        batch: Images.
    """

    title: str
    preset: str
    timm: str
    batch: int


CASES = (
    TransformerCase("S/16", "small", "vit_small_patch16_224", 8),
    TransformerCase("Ti/16", "tiny", "vit_tiny_patch16_224", 32),
)
WATCHED = TransformerCase("B/16", "base", "vit_base_patch16_224", 8)


def hands() -> tuple[str, ...]:
    """Return whose models there are: `ours`, `timm`, and `vit-pytorch` where it is installed."""
    others = ("vit-pytorch",) if importlib.util.find_spec("vit_pytorch") else ()
    return ("ours", "timm", *others)


def made(hand: str, case: TransformerCase) -> nn.Module:
    """Return one hand's model with random weights; ours takes what `forward_of` says."""
    if hand == "ours":
        return vit(case.preset, CLASSES)
    if hand == "timm":
        return timm.create_model(case.timm)
    return foreign(vit(case.preset, CLASSES))


def foreign(ours: VisionTransformer) -> nn.Module:
    """Return the model of vit-pytorch with the same sizes; its weights are its own."""
    kind: Any = importlib.import_module("vit_pytorch.vit").ViT
    return kind(
        image_size=ours.size[0],
        patch_size=ours.patch[0],
        num_classes=len(ours.classes),
        dim=ours.width,
        depth=ours.depth,
        heads=ours.heads,
        mlp_dim=round(ours.width * ours.ratio),
    )


def alike(case: TransformerCase) -> Mapping[str, nn.Module]:
    """Return the models of all hands, ours with timm's weights.

    Raises:
        AssertionError: If ours and timm's do not give the same scores, or not the same slopes.
    """
    theirs = timm.create_model(case.timm)
    ours = VisionTransformer.from_timm(theirs, classes=CLASSES[: cast("Any", theirs).num_classes])
    found: dict[str, nn.Module] = {"ours": ours, "timm": theirs}
    check_same(ours, theirs)
    if "vit-pytorch" in hands():
        found["vit-pytorch"] = foreign(ours)
    return found


def check_same(ours: VisionTransformer, theirs: nn.Module) -> None:
    """Compare the scores of two images and the slopes of the first weights.

    Raises:
        AssertionError: If they differ.
    """
    images = torch.randn(2, 3, *ours.size)
    told: list[tuple[Tensor, Tensor]] = []
    for model in (ours, theirs):
        scores = forward_of(model.eval())(images)
        first = cast("Any", model).patch_embed.proj.weight
        told.append((scores, *torch.autograd.grad(scores.square().mean(), first)))
    torch.testing.assert_close(told[0], told[1], atol=1e-5, rtol=1e-4)


def forward_of(model: nn.Module) -> Forward:
    """Return what takes normalized images and gives scores."""
    return model.classify if isinstance(model, VisionTransformer) else model
