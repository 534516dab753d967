"""FSDP2: the layers that it shards, and what it refuses."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch import nn

from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.training.callbacks.guards import EvenForwards
from visattn.training.callbacks.logging import CropPanels
from visattn.training.classification.task import ClassificationTask
from visattn.training.distributed.fsdp import (
    FSDP2Strategy,
    all_shards_finite,
    check_shardable,
    repeated_layers,
)
from visattn.training.distributed.launcher import configure_strategy
from visattn.training.glimpses.task import GlimpseTask

CLASSES = ("daisy", "rose", "tulip")
INFO = {"class_names": list(CLASSES)}


def test_each_layer_of_a_network_is_sharded_once() -> None:
    vit = VisionTransformer(
        CLASSES, img_size=(16, 16), patch_size=8, embed_dim=8, depth=5, num_heads=2
    )
    assert repeated_layers(vit) == list(vit.blocks)
    for name, kind, count in (("test_vit", "Block", 6), ("test_convnext", "ConvNeXtBlock", 9)):
        layers = repeated_layers(TimmClassifier(CLASSES, name, img_size=(32, 32)))
        kinds = [type(layer).__name__ for layer in layers]
        assert kinds.count(kind) == count, kinds
        owned = [id(weight) for layer in layers for weight in layer.parameters()]
        assert len(owned) == len(set(owned)), "a weight belongs to two layers"


def test_what_cannot_be_sharded_is_refused_by_name() -> None:
    ram = partial(RecurrentAttentionModel, img_size=(28, 28), mean=(0.1,), std=(0.3,))
    with pytest.raises(ValueError, match="fsdp2 must be ddp for GlimpseTask: only Classification"):
        check_shardable(GlimpseTask(ram, INFO))
    classifier = partial(TimmClassifier, name="test_resnet", img_size=(32, 32))
    with pytest.raises(ValueError, match=r"batch norm, got TimmClassifier with model\.backbone"):
        check_shardable(ClassificationTask(classifier, INFO))
    task = ClassificationTask(partial(classifier, freeze_bn=True), INFO)
    check_shardable(task)
    with pytest.raises(ValueError, match="fsdp2 needs compile no"):
        check_shardable(task, compiled=True)
    with pytest.raises(ValueError, match="fsdp2 needs channels_last false"):
        check_shardable(task, channels_last=True)


def test_callbacks_that_need_the_whole_model_are_refused() -> None:
    trainer: Any = SimpleNamespace(strategy=FSDP2Strategy())
    with pytest.raises(ValueError, match="CropPanels needs the whole model .* FSDP2Strategy"):
        CropPanels().on_fit_start(trainer, nn.Module())  # type: ignore[arg-type]
    trainer.strategy = DDPStrategy()
    CropPanels().on_fit_start(trainer, nn.Module())  # type: ignore[arg-type]


def test_the_strategy_is_known_by_name_and_has_the_timeout() -> None:
    strategy: Any = StrategyRegistry.get("fsdp2")
    assert type(strategy) is FSDP2Strategy
    configure_strategy(strategy, timeout=20)
    assert vars(strategy)["_timeout"].total_seconds() == 20


def test_streams_cannot_be_evaluated_with_sharded_weights() -> None:
    trainer: Any = SimpleNamespace(num_test_batches=[float("inf")])
    task: Any = SimpleNamespace(device=torch.device("cpu"))
    with pytest.raises(ValueError, match="data of known size"):
        EvenForwards().on_test_epoch_start(trainer, task)


def test_whole_tensors_are_checked_without_other_processes() -> None:
    assert all_shards_finite([torch.ones(2), torch.zeros(0)])
    assert not all_shards_finite([torch.ones(2), torch.tensor([torch.inf])])
