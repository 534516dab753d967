"""timm classifiers with inserted attention: identity initialization, weight files, configs."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from random_numbers import pixels
from safetensors.torch import load_file, save_file

from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.config import build_model, model_config
from visattn.training.optim import parameters_by_part

NAME, CLASSES = "test_resnet", ("daisy", "rose", "tulip")
IMAGES = pixels(2, 3, 96, 64)
SIZE: dict[str, Any] = {"img_size": (96, 64), "mean": (0.5,) * 3, "std": (0.5,) * 3}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "plain.safetensors"
    weights = timm.create_model(NAME, num_classes=11).state_dict()
    # timm initializes branches with zero, where a block has no effect.
    changed = {name: tensor + (tensor.ndim == 1) / 2 for name, tensor in weights.items()}
    save_file({name: tensor.to(weights[name].dtype) for name, tensor in changed.items()}, path)
    return path


def classifier(**options: Any) -> TimmClassifier:
    torch.manual_seed(5)  # for the head, which is drawn before blocks are
    return TimmClassifier(CLASSES, NAME, **SIZE, **options)


def test_equals_timm_model_with_a_head_for_the_classes(file: Path) -> None:
    model = classifier(weights=str(file)).eval()
    theirs = timm.create_model(NAME, num_classes=3).eval()
    theirs.load_state_dict(model.backbone.state_dict())
    assert torch.equal(model(IMAGES), theirs(model.normalize(IMAGES)))
    stored = {k: v for k, v in load_file(file).items() if not k.startswith("fc.")}
    kept = model.backbone.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in stored.items())


def test_identity_initialized_block_leaves_output_unchanged(file: Path) -> None:
    plain, model = classifier(weights=str(file)), classifier(weights=str(file), block="se")
    paper = classifier(weights=str(file), block="se", init="paper")
    before = plain.eval()(IMAGES)
    assert torch.equal(model.eval()(IMAGES), before)
    assert not torch.equal(paper.eval()(IMAGES), before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01
    again = build_model(model_config(model)).eval()  # without the file
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(IMAGES), model(IMAGES))


@pytest.mark.parametrize("block", [None, "bam"])
def test_frozen_batch_norms_stay_fixed_and_block_norms_are_trained(
    file: Path, block: str | None
) -> None:
    model = classifier(weights=str(file), block=block, freeze_bn=True)
    if block is None:
        torch.testing.assert_close(model(IMAGES), model.eval()(IMAGES))
    before = {name: value.clone() for name, value in model.named_buffers()}
    model.train()(IMAGES)
    changed = {n for n, value in model.named_buffers() if not torch.equal(value, before[n])}
    assert bool(changed) == (block is not None)
    assert all(".visattn." in name for name in changed)


@pytest.mark.parametrize("block", ["se", None])
def test_a_frozen_backbone_trains_blocks_and_head_alone(block: str | None) -> None:
    model = classifier(block=block, freeze_backbone=True)
    groups = parameters_by_part(model)
    trained = {name for name, part in groups.items() if any(w.requires_grad for w in part)}
    assert trained == ({"blocks", "head"} if block else {"head"})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()(torch.rand(2, 3, 96, 64)).sum().backward()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_folded_batch_norms_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "folded.safetensors")
    save_file(timm.create_model(NAME).state_dict(), path)  # an initialized network looks folded
    with pytest.raises(ValueError, match=r"folded into the convolutions.*set freeze_bn=True"):
        classifier(weights=path)
    assert classifier(weights=path, freeze_bn=True).freeze_bn
