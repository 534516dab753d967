"""Parts of models with learning rates of their own, and parameters without weight decay."""

from torch import nn

from visattn.models import (
    AttentionResNet,
    KnowingWhenToLook,
    SmallEncoder,
    TimmClassifier,
    UNet,
    VisionTransformer,
)
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.training.parameters import parameters_by_part, undecayed


def names(model: nn.Module, weights: object) -> set[str]:
    known = set(map(id, weights))  # type: ignore[call-overload]
    return {name for name, weight in model.named_parameters() if id(weight) in known}


def test_each_parameter_is_in_one_part() -> None:
    classifier = AttentionResNet(("cat", "dog"), depth=8, block="se")
    unet = UNet(("sky", "cat"), SmallEncoder((16, 24), channels=8))
    for model, expected in (
        (classifier, {"backbone": "layer|conv1|bn1", "blocks": "attention", "head": "fc"}),
        (unet, {"encoder": "encoder.", "decoder": "levels|head"}),
        (nn.Linear(2, 3), {"model": ""}),
    ):
        parts = parameters_by_part(model)
        assert list(parts) == list(expected)
        assert sum(map(len, parts.values())) == len(list(model.parameters()))
        for part, begins in expected.items():
            found = names(model, parts[part])
            assert found
            assert all(any(each in name for each in begins.split("|")) for name in found)
    assert names(classifier, parameters_by_part(classifier)["blocks"]) == {
        name for name, _ in classifier.named_parameters() if ".attention." in name
    }


def test_blocks_and_their_identity_scales_are_one_part() -> None:
    size: dict = {"img_size": (64, 64)}
    plain = parameters_by_part(TimmClassifier(("a", "b"), "test_resnet", **size))
    parts = parameters_by_part(TimmClassifier(("a", "b"), "test_resnet", block="se", **size))
    assert len(parts["backbone"]) == len(plain["backbone"])
    assert not plain["blocks"]
    blocks = len(parts["blocks"])
    assert blocks
    assert blocks % 5 == 0  # two weights, two biases and a scale at each site
    assert len(parts["head"]) == 2


def test_vectors_and_named_parameters_have_no_weight_decay() -> None:
    model = VisionTransformer(
        ("cat", "dog"), img_size=(8, 8), patch_size=4, embed_dim=8, depth=1, num_heads=2, lsa=True
    )
    vectors = {name for name, weight in model.named_parameters() if weight.ndim < 2}
    listed = {"cls_token", "pos_embed", "blocks.0.attn.temperature"}
    assert names(model, undecayed(model)) == vectors | listed
    unet = UNet(("sky", "cat"), SmallEncoder((16, 24), channels=8))
    assert {"head.bias"} < names(unet, undecayed(unet))
    # As in the papers of captioners, and for modules of others, whose authors may want either.
    captioner = KnowingWhenToLook((*SPECIAL_TOKENS, "red"), SmallEncoder((16, 24), channels=4))
    assert len(undecayed(captioner)) == len(undecayed(nn.Linear(2, 3))) == 0
