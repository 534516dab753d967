"""The same Vision Transformer from several libraries."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import timm
import torch
from torch import Tensor, nn

from visattn.models.vit.vision_transformer import VisionTransformer, create_vit

CLASSES = tuple(map(str, range(1000)))
Forward = Callable[[Tensor], Tensor]


class TransformerCase(NamedTuple):
    """Model and batch size.

    Args:
        title: Size and patch, as in the papers.
        preset: Name in visattn.
        timm: Name in timm.
        batch: Number of images.
    """

    title: str
    preset: str
    timm: str
    batch: int


CASES = (
    TransformerCase("S/16", "small", "vit_small_patch16_224", 8),
    TransformerCase("Ti/16", "tiny", "vit_tiny_patch16_224", 32),
)
RECORDED = TransformerCase("B/16", "base", "vit_base_patch16_224", 8)


def libraries() -> tuple[str, ...]:
    """Return the libraries: `ours`, `timm`, and `vit-pytorch` if installed."""
    others = ("vit-pytorch",) if importlib.util.find_spec("vit_pytorch") else ()
    return ("ours", "timm", *others)


def build_model(library: str, case: TransformerCase) -> nn.Module:
    """Return the model of a library with random weights."""
    if library == "ours":
        return create_vit(case.preset, CLASSES)
    if library == "timm":
        return timm.create_model(case.timm)
    return vit_pytorch_model(create_vit(case.preset, CLASSES))


def vit_pytorch_model(ours: VisionTransformer) -> nn.Module:
    """Return the model of vit-pytorch with the same sizes and random weights."""
    vit_class: Any = importlib.import_module("vit_pytorch.vit").ViT
    return vit_class(
        image_size=ours.img_size[0],
        patch_size=ours.patch_size[0],
        num_classes=len(ours.class_names),
        dim=ours.embed_dim,
        depth=ours.depth,
        heads=ours.num_heads,
        mlp_dim=round(ours.embed_dim * ours.mlp_ratio),
    )


def matching_models(case: TransformerCase) -> Mapping[str, nn.Module]:
    """Return the models of all libraries, ours with the weights of timm.

    Raises:
        AssertionError: If ours and that of timm differ in logits or gradients.
    """
    theirs = timm.create_model(case.timm)
    ours = VisionTransformer.from_timm(
        theirs, class_names=CLASSES[: cast("Any", theirs).num_classes]
    )
    models: dict[str, nn.Module] = {"ours": ours, "timm": theirs}
    check_same(ours, theirs)
    if "vit-pytorch" in libraries():
        models["vit-pytorch"] = vit_pytorch_model(ours)
    return models


def check_same(ours: VisionTransformer, theirs: nn.Module) -> None:
    """Compare the logits of two images and the gradients of the patch embedding.

    Raises:
        AssertionError: If they differ.
    """
    images = torch.randn(2, 3, *ours.img_size)
    results: list[tuple[Tensor, Tensor]] = []
    for model in (ours, theirs):
        logits = forward_function(model.eval())(images)
        first = cast("Any", model).patch_embed.proj.weight
        results.append((logits, *torch.autograd.grad(logits.square().mean(), first)))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)


def forward_function(model: nn.Module) -> Forward:
    """Return the function from normalized images to logits."""
    return model.classify if isinstance(model, VisionTransformer) else model
