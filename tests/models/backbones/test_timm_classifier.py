"""timm classifiers with inserted attention: identity initialization, weight files, configs."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from visattn.blocks.base import Block
from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.config import build_model, model_config
from visattn.training.parameters import parameters_by_part

NAME, CLASSES = "test_resnet", ("daisy", "rose", "tulip")
SIZE: dict[str, Any] = {"img_size": (96, 64), "mean": (0.5,) * 3, "std": (0.5,) * 3}


@pytest.fixture(scope="module")
def images() -> Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(256, (2, 3, 96, 64), dtype=torch.uint8, generator=random)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "plain.safetensors"
    weights = timm.create_model(NAME, num_classes=11).state_dict()
    # timm initializes branches with zero, where a block has no effect.
    changed = {name: tensor + (tensor.ndim == 1) / 2 for name, tensor in weights.items()}
    save_file({name: tensor.to(weights[name].dtype) for name, tensor in changed.items()}, path)
    return path


def test_equals_timm_model_with_a_head_for_the_classes(file: Path, images: Tensor) -> None:
    model = TimmClassifier(CLASSES, NAME, weights=str(file), **SIZE).eval()
    theirs = timm.create_model(NAME, num_classes=3).eval()
    theirs.load_state_dict(model.backbone.state_dict())
    assert torch.equal(model(images), theirs(model.normalize(images)))
    stored = timm.create_model(NAME, num_classes=0).eval()
    kept = {name: model.backbone.state_dict()[name] for name in stored.state_dict()}
    stored.load_state_dict(kept)
    backbone: Any = model.backbone
    assert torch.equal(
        backbone.forward_head(backbone.forward_features(images / 255), pre_logits=True),
        stored(images / 255),
    )


def test_identity_initialized_block_leaves_output_unchanged(file: Path, images: Tensor) -> None:
    models: dict[str | None, TimmClassifier] = {}
    for block in (None, "se"):
        torch.manual_seed(5)  # for the head, which is drawn before blocks are
        made = TimmClassifier(CLASSES, NAME, block=block, weights=str(file), **SIZE)
        models[block] = made.eval()
    assert torch.equal(models["se"](images), models[None](images))
    assert [module for module in models["se"].modules() if isinstance(module, Block)]
    torch.manual_seed(5)
    paper = TimmClassifier(CLASSES, NAME, block="se", init="paper", weights=str(file), **SIZE)
    assert not torch.equal(paper.eval()(images), models[None](images))


def test_trained_model_is_rebuilt_without_its_weight_file(file: Path, images: Tensor) -> None:
    model = TimmClassifier(CLASSES, NAME, block="se", weights=str(file), **SIZE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01
    again = build_model(model_config(model)).eval()
    again.load_state_dict(model.state_dict())
    assert isinstance(again, TimmClassifier)
    assert again.class_names == CLASSES
    assert torch.equal(again(images), model(images))


def test_weight_sources_are_mutually_exclusive(file: Path) -> None:
    with pytest.raises(ValueError, match="set either pretrained or weights, not both"):
        TimmClassifier(CLASSES, NAME, pretrained=True, weights=str(file))


@pytest.mark.parametrize("block", [None, "bam"])
def test_frozen_batch_norms_stay_fixed_and_block_norms_are_trained(
    file: Path, images: Tensor, block: str | None
) -> None:
    model = TimmClassifier(CLASSES, NAME, weights=str(file), block=block, freeze_bn=True, **SIZE)
    before = {name: value.clone() for name, value in model.named_buffers()}
    model(images)  # trainers keep the mode of a new model
    model.train()(images)
    changed = [
        name
        for name, value in model.named_buffers()
        if name.endswith("running_mean") and not torch.equal(value, before[name])
    ]
    own = {id(b) for m in model.modules() if isinstance(m, Block) for b in m.buffers()}
    names = [name for name, value in model.named_buffers() if id(value) in own]
    assert bool(changed) == (block is not None)
    assert set(changed) <= set(names)


def test_frozen_batch_norms_make_training_equal_evaluation(file: Path, images: Tensor) -> None:
    model = TimmClassifier(CLASSES, NAME, weights=str(file), freeze_bn=True, **SIZE)
    torch.testing.assert_close(model(images), model.eval()(images))


def test_folded_batch_norms_require_freeze_bn(tmp_path: Path) -> None:
    path = tmp_path / "folded.safetensors"
    save_file(
        timm.create_model(NAME).state_dict(), path
    )  # an initialized network looks folded, too
    with pytest.raises(ValueError, match=r"folded into the convolutions.*set freeze_bn=True"):
        TimmClassifier(CLASSES, NAME, weights=str(path), **SIZE)
    assert TimmClassifier(CLASSES, NAME, weights=str(path), freeze_bn=True, **SIZE).freeze_bn


@pytest.mark.parametrize("block", ["se", None])
def test_a_frozen_backbone_trains_blocks_and_head_alone(block: str | None) -> None:
    model = TimmClassifier(
        ("a", "b"), "test_resnet", block=block, img_size=(64, 64), freeze_backbone=True
    )
    groups = parameters_by_part(model)
    assert {name for name, part in groups.items() if any(w.requires_grad for w in part)} == (
        {"blocks", "head"} if block else {"head"}
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    model(torch.rand(2, 3, 64, 64)).sum().backward()
    changed = [name for name, x in model.state_dict().items() if not torch.equal(x, before[name])]
    assert changed == []  # running statistics of the frozen norms
