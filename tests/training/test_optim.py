"""The optimizer of a task: schedules, groups by part, weight decay, restored states."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from visattn.models import (
    AttentionResNet,
    KnowingWhenToLook,
    SmallEncoder,
    TimmClassifier,
    UNet,
    VisionTransformer,
)
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.training.optim import OptimConfig, parameters_by_part, undecayed


def test_schedules_of_a_config_by_hand() -> None:
    steps, factors = (0, 3, 50, 75, 100, 101), [0.25, 1.0, 1.0, 0.55, 0.1, 0.1]
    config = OptimConfig(warmup_steps=4, decay_start=0.5, final_fraction=0.1)
    assert [config.factor(step, 100) for step in steps] == pytest.approx(factors)
    assert OptimConfig().factor(100, 100) == pytest.approx(0.02)
    assert OptimConfig(schedule="linear").factor(50, 100) == pytest.approx(0.5)
    for name in ("cosine", "linear"):
        assert OptimConfig(schedule=name).factor(100, 100) == pytest.approx(0)  # pyright: ignore[reportArgumentType]
    half = OptimConfig(warmup_steps=0.5, decay_start=30)  # a fraction, and a step
    assert [half.factor(step, 40) for step in (9, 19, 30)] == pytest.approx([0.5, 1.0, 1.0])
    assert half.factor(40, 40) == pytest.approx(0.02)
    assert OptimConfig(warmup_steps=2).factor(10**6, float("inf")) == 1.0


def test_groups_have_the_learning_rate_of_their_part_and_their_decay() -> None:
    encoder, head = nn.Linear(3, 5), nn.Linear(5, 2)
    encoder.weight.requires_grad = False
    parts = {"encoder": list(encoder.parameters()), "head": list(head.parameters())}
    config = OptimConfig(lambda groups: SGD(groups, lr=2.0, weight_decay=0.1), lr_mults={"head": 3})
    biases = [encoder.bias, head.bias]
    built = config.build(parts, total_steps=7, default=SGD, no_weight_decay=biases)
    groups = [
        (group["params"], group["initial_lr"], group["weight_decay"])
        for group in built["optimizer"].param_groups
    ]
    assert groups == [([encoder.bias], 2.0, 0), ([head.weight], 6.0, 0.1), ([head.bias], 6.0, 0)]
    with pytest.raises(ValueError, match="parts of the model, encoder, head; got encoders"):
        OptimConfig(lr_mults={"encoders": 0.1}).build(parts, total_steps=7, default=SGD)


def test_values_out_of_range_are_refused() -> None:
    cases: tuple[dict[str, Any], ...] = (
        {"warmup_steps": -1}, {"decay_start": -0.1}, {"final_fraction": -0.1},
        {"final_fraction": 1.1}, {"lr_mults": {"head": -1.0}}, {"lr_mults": {"head": math.nan}},
    )  # fmt: skip
    for options in cases:
        with pytest.raises(ValueError, match="must be at least 0"):
            OptimConfig(**options)


def test_a_restored_state_has_the_options_of_the_config() -> None:
    parts = {"head": list(nn.Linear(3, 2).parameters())}

    def build(optimizer: Any, **options: Any) -> tuple[torch.optim.Optimizer, Any]:
        config = OptimConfig(optimizer, schedule="linear", **options)
        built = config.build(parts, total_steps=10, default=SGD)
        return built["optimizer"], built["lr_scheduler"]["scheduler"]

    sgd, schedule = build(partial(SGD, lr=1.0, momentum=0.9))
    for _ in range(4):
        sgd.step()
        schedule.step()
    states = sgd.state_dict(), schedule.state_dict()
    later, resumed = build(partial(SGD, lr=5.0, weight_decay=0.25), lr_mults={"head": 2.0})
    later.load_state_dict(states[0])
    assert later.param_groups[0]["lr"] == 0.6  # the rate of the state is for the schedule to change
    resumed.load_state_dict(states[1])
    [group] = later.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (6.0, 0.0, 0.25)
    later.step()
    resumed.step()
    assert group["lr"] == 5.0
    assert states[0]["param_groups"][0]["momentum"] == 0.9  # of the checkpoint, left as it was


def test_a_schedule_that_is_longer_than_the_run_is_remarked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remarks: list[str] = []
    monkeypatch.setattr("visattn.training.optim.rank_zero_info", remarks.append)
    parts = {"head": [nn.Parameter(torch.zeros(1))]}
    for config, remarked in (
        (OptimConfig(warmup_steps=200), True),
        (OptimConfig(decay_start=100), True),
        (OptimConfig(warmup_steps=0.1), False),
    ):
        remarks.clear()
        config.build(parts, total_steps=42, default=SGD)
        assert any("but the run has 42 steps" in each for each in remarks) == remarked


# ---------------------------------------------------------------- parts of models

MAPS = (nn.Linear, nn.Conv2d)


def names(model: nn.Module, weights: Any) -> set[str]:
    known = set(map(id, weights))
    return {name for name, weight in model.named_parameters() if id(weight) in known}


def test_each_parameter_is_in_one_part() -> None:
    """Blocks of networks of timm with their scales, too."""
    size: Any = {"img_size": (64, 64)}
    classifier = AttentionResNet(("cat", "dog"), depth=8, block="se")
    for model, expected in (
        (classifier, {"backbone": "layer|conv1|bn1", "blocks": "attention", "head": "fc"}),
        (TimmClassifier(("a", "b"), "test_resnet", block="se", **size),
         {"backbone": "layer|conv1|bn1", "blocks": "visattn", "head": "fc"}),
        (UNet(("sky", "cat"), SmallEncoder((16, 24), channels=8)),
         {"encoder": "encoder.", "decoder": "levels|head"}),
        (nn.Linear(2, 3), {"model": ""}),
    ):  # fmt: skip
        parts = parameters_by_part(model)
        assert list(parts) == list(expected)
        assert sum(map(len, parts.values())) == len(list(model.parameters()))
        for part, begins in expected.items():
            found = names(model, parts[part])
            assert found
            assert all(any(each in name for each in begins.split("|")) for name in found), part
    attention = {name for name, _ in classifier.named_parameters() if ".attention." in name}
    assert names(classifier, parameters_by_part(classifier)["blocks"]) == attention


def test_vectors_and_named_parameters_have_no_weight_decay() -> None:
    sizes: Any = {"img_size": (8, 8), "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
    variants: list[dict[str, Any]] = [
        {"lsa": True, "stem": "shifted"},
        {"global_pool": "sequence", "pos_embed_type": "sine", "stem": "conv"},
    ]
    for options in variants:
        model = VisionTransformer(("cat", "dog"), **sizes, **options)
        maps = [name for name, part in model.named_modules() if isinstance(part, MAPS)]
        decayed = {*dict(model.named_parameters())} - names(model, undecayed(model))
        assert decayed == {f"{name}.weight" for name in maps}
    unet = UNet(("sky", "cat"), SmallEncoder((16, 24), channels=8))
    assert {"head.bias"} < names(unet, undecayed(unet))
    # As in the papers of captioners, and for modules of others, whose authors may want either.
    captioner = KnowingWhenToLook((*SPECIAL_TOKENS, "red"), SmallEncoder((16, 24), channels=4))
    assert len(undecayed(captioner)) == len(undecayed(nn.Linear(2, 3))) == 0
