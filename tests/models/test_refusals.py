"""What models do not take, by the shortest call that tries it, and what they say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import visattn as va
from visattn.models import (
    MAC,
    AttentionResNet,
    CrossAttentionVQA,
    SequenceRecognizer,
    ShowAttendTell,
    SmallEncoder,
    TimmClassifier,
    TimmEncoder,
    TransformerCaptioner,
    UNet,
    VisionTransformer,
)
from visattn.results.kinds import SPECIAL_TOKENS

WORDS, CLASSES, PHOTO = (*SPECIAL_TOKENS, "red"), ("cat", "dog"), torch.zeros(20, 20, 3).byte()
RESNET = "test_resnet"


def encoder() -> SmallEncoder:
    return SmallEncoder((16, 40), channels=12)


def vit(**options: Any) -> VisionTransformer:
    sizes = {"img_size": (24, 40), "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3}
    return VisionTransformer(CLASSES, **{**sizes, **options})


def recognizer(**options: Any) -> SequenceRecognizer:
    return SequenceRecognizer(WORDS, encoder(), **options)


def hard(**options: Any) -> ShowAttendTell:
    return ShowAttendTell(WORDS, encoder(), **{"attention": "hard", **options})


def transformer(maps: Any) -> TransformerCaptioner:
    return TransformerCaptioner(
        WORDS, encoder(), embed_dim=22, num_heads=11, num_layers=2, maps=maps
    )


def timm(name: str = RESNET, **options: Any) -> TimmEncoder:
    return TimmEncoder(name, **{"img_size": (64, 96), **options})


def images(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def answered(count: int) -> object:
    model = CrossAttentionVQA(WORDS, ("yes", "no"), encoder(), dim=12, num_heads=3)
    return model(images(count, 3, 16, 40), torch.full((5, 2), 4))


SPECIAL = "must begin with <pad>"
CASES: list[tuple[Callable[[], object], str]] = [
    # images
    (lambda: SmallEncoder((16, 20)), r"must be multiples of 8, got \(16, 20\)"),
    (lambda: encoder()(images(1, 3, 16, 41)), r"images must be \(16, 40\) .* got \(16, 41\)"),
    (lambda: encoder()(images(1, 3, 16, 40, dtype=torch.int64)), "must be uint8, 0 to 255"),
    (lambda: vit()(images(1, 3, 24, 40, dtype=torch.bool)), "to 255, .* or floats"),
    (lambda: vit(img_size=(25, 40)), "25 x 40 is not a multiple of the patch size 8 x 8: resize"),
    (lambda: vit()(images(1, 3, 24, 41)), "24 x 41 is not a multiple of the patch size"),
    # classifiers, encoders and what stands on them
    (lambda: vit(global_pool="max"), "'max' must be one of class, mean, sequence"),
    (lambda: vit(attention="window"), "'window' must be one of full, neighborhood, strided"),
    (lambda: vit(attention="lsh", lsa=True), "lsa needs full attention, got lsh"),
    (lambda: vit(stem="conv", patch_size=6, img_size=(24, 36)), r"patches of 2, 4, 8, .* \(6, 6\)"),
    (lambda: vit(stem="shifted", patch_size=(8, 4)), r"must be square, got \(8, 4\)"),
    (lambda: AttentionResNet(CLASSES, depth=50), r"6n \+ 2, .* 50. For ImageNet networks"),
    (lambda: UNet(CLASSES, timm()), r"grids of different sizes, got 2 x 3; set"),
    (lambda: UNet(CLASSES, timm("test_vit", img_size=(160, 160), stage=[0, 1])), "got 10 x 10"),
    (lambda: timm("test_resnett"), "unknown timm model 'test_resnett'; did you mean test_resnet"),
    (lambda: timm(timm_kwargs={"nonsense": 3}), "does not take these .*'nonsense'"),
    (lambda: timm(timm_kwargs={"checkpoint_path": "x"}), "may not contain checkpoint"),
    (lambda: timm(pretrained=True, weights="x"), "set either pretrained or weights, not both"),
    (lambda: TimmClassifier(CLASSES, RESNET, pretrained=True, weights="x"), "set either"),
    (lambda: TimmClassifier(CLASSES, RESNET, grad_checkpointing=True),
     "false for test_resnet: its batch norms would count"),
    # models of words
    (lambda: ShowAttendTell(("red", "blue"), encoder()), SPECIAL),
    (lambda: ShowAttendTell(SPECIAL_TOKENS[::-1], encoder()), SPECIAL),
    (lambda: ShowAttendTell((), encoder()), SPECIAL),
    (lambda: MAC(("a", "b"), ("yes", "no"), encoder()), SPECIAL),
    (lambda: MAC(WORDS, ("red", "red"), encoder()), "answers must be distinct, .* got 2, 1 of"),
    (lambda: answered(3), "got 3 images and 5 questions; pass the index"),
    (lambda: hard(attention="mean"), "attention must be one of soft, hard, got 'mean'"),
    (lambda: hard(places="best"), "places must be one of argmax, sample, expectation"),
    (lambda: hard(feature_dropout=0.1), "needs a feature projection"),
    (lambda: va.caption(hard(attention="soft"), PHOTO.numpy(), places="argmax"), "hard attention"),
    (lambda: recognizer(score="cosine"), "score must be one of additive, dot, .* got 'cosine'"),
    (lambda: recognizer(alignment="local"), "alignment must be one of global, .* got 'local'"),
    (lambda: transformer("first"), "maps must be"),
    *((lambda maps=maps: transformer(maps), f"0 to 1 and a head from 0 to 10, got {maps[0]} and")
      for maps in ((2, 1), (-1, 1), (1, 11), (1, -1))),
    # names
    (lambda: va.load("timm:resnet81"), "unknown timm model 'resnet81'; did you mean resnet"),
    (lambda: va.load("timm:test_resnet", model_kwargs={"color": 1}), "does not take these argum"),
    (lambda: va.load("timm:test_resnet", weights=Path("w"), pretrained=True), "not both"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_refused(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # shapes and words of types
    call, match = CASES[number]
    kinds = (ValueError, TypeError, IndexError, FileNotFoundError, AssertionError)
    with pytest.raises(kinds, match=match):
        call()
