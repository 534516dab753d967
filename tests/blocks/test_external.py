"""Blocks of users: registered, or named by their path if the module is trusted."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from host_models import image, residual_net
from torch import Tensor, nn

import visattn as va
from visattn.blocks import registry
from visattn.blocks.base import BlockInfo
from visattn.blocks.registry import block_name, check_block_class
from visattn.models.resnet import AttentionResNet

SOURCE = """\
from pathlib import Path
from torch import nn
Path(__file__).with_name("imported").touch()
class Gate(nn.Module):
    def __init__(self, channels, factor=0.5):
        super().__init__()
        self.conv, self.factor = nn.Conv2d(channels, channels, 1), factor
    def forward(self, x):
        return x * self.factor * self.conv(x).sigmoid()
number = 3
"""


class Halved(nn.Module):
    """A block of a user."""

    def __init__(self, channels: int, factor: float = 0.5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, 1, 1), factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unregisters blocks after each test."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_imported", {})
    monkeypatch.delenv("VISATTN_TRUST_MODULES", raising=False)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of a user; returns the path of a file that its import creates."""
    (tmp_path / "their_blocks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "imported"
    sys.modules.pop("their_blocks", None)


def test_registered_block_is_listed_and_created_by_name() -> None:
    assert va.register_block(Halved) is Halved
    assert va.list_blocks()[-1] == "halved"
    assert va.list_blocks(kind="other") == ["halved"]
    assert va.block_info("Halved").title == "Halved"
    block = va.create_block("HALVED", 7, factor=0.25)
    assert torch.equal(block(torch.ones(1, 7, 2, 3)), torch.full((1, 7, 2, 3), 0.25))
    with pytest.raises(
        ValueError, match="halved has no argument reduction; its arguments are factor"
    ):
        va.create_block("halved", 7, reduction=2)
    model, x = residual_net(), image()
    report = va.insert(model, "halved", position="residual", example=x)
    assert report.blocks == ("halved",)
    assert [row.blocks for row in va.summary(model, x).rows] == ["", "halved", "halved"]


def test_networks_are_built_with_a_registered_block() -> None:
    va.register_block(Halved, name="half")
    model = AttentionResNet(("a", "b"), depth=8, block="half", img_size=(8, 8))
    blocks = [module for module in model.modules() if isinstance(module, Halved)]
    assert [block_name(module) for module in blocks] == ["half"] * 3


def test_register_works_as_a_decorator_with_block_info() -> None:
    card = BlockInfo("mine", "spatial", "My gate", "Me 2024", "y = x / 2", "0")

    @va.register_block(name="other_name")
    class Carded(Halved):
        pass

    Carded.info = card  # type: ignore[attr-defined]
    va.register_block(Carded, name="my-own")
    assert va.block_info("my_own").title == "My gate"
    assert "my-own" in va.list_blocks(kind="spatial")


def test_same_class_may_be_registered_again_but_no_other_of_that_name() -> None:
    va.register_block(Halved)
    again: Any = type("Halved", (Halved,), {"__module__": Halved.__module__})
    again.__qualname__ = "Halved"  # a cell of a notebook that ran twice
    va.register_block(again)
    assert type(va.create_block("halved", 3)) is again
    other: Any = type("Other", (Halved,), {})
    for name in ("halved", "SE", "non-local"):
        with pytest.raises(ValueError, match=f"the name '{name}' is taken by the block"):
            va.register_block(other, name=name)
    for name in ("a.b", "", "no name", "none"):
        with pytest.raises(ValueError, match="must be an identifier"):
            va.register_block(other, name=name or " ")


def test_invalid_blocks_are_refused() -> None:
    class Wide(nn.Module):
        def __init__(self, channels: int, width: int) -> None:
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return x

    cases: list[tuple[Any, str]] = [
        (Halved(3), "got Halved"),
        (len, "got <built-in function len>"),
        (dict, "got <class 'dict'>"),
        (Wide, r"Wide\(64\): missing"),
        (nn.ReLU, "ReLU is a layer of torch itself"),
    ]
    for block, said in cases:
        with pytest.raises(TypeError, match=f"(?s)a block is a class of torch.nn.Module.*{said}"):
            check_block_class(block)


def test_only_trusted_modules_are_imported(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"may not be imported .*TRUST_MODULES=their_blocks"):
        va.create_block("their_blocks.Gate", 5)
    assert not theirs.exists()
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "their_blocks")
    assert (
        va.create_block("their_blocks.Gate", 5, factor=0.75)(torch.zeros(1, 5, 2, 3)).shape[1] == 5
    )
    assert "their_blocks.Gate" not in va.list_blocks()
    report = va.insert(residual_net(), "their_blocks.Gate", position="residual", example=image())
    assert report.blocks == ("gate",)
    with pytest.raises(TypeError, match="a block is a class of .*got 3"):
        va.create_block("their_blocks.number", 5)
    with pytest.raises(ValueError, match="their_blocks has no Gte"):
        va.create_block("their_blocks.Gte", 5)


def test_attributes_imported_by_a_trusted_module_are_refused() -> None:
    for path, said in {
        "os.system": "may not be imported",
        "visattn.models.saving.weight_files.os.system": "cannot be imported",
        "torch.nn.Conv2d": "is a layer of torch itself",
        "visattn.blocks.registry.nn.ReLU": "cannot be imported",
        "visattn.blocks.registry.ModuleType": "may not be imported",
        "visattn..Block": "package.module.Class",
    }.items():
        with pytest.raises((ValueError, TypeError), match=said):
            va.create_block(path, 5)


def test_loading_a_saved_model_imports_nothing(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "their_blocks")
    file = tmp_path / "m.safetensors"
    model = AttentionResNet(("a", "b"), depth=8, block="their_blocks.Gate", img_size=(8, 8)).eval()
    va.save(model, file)
    theirs.unlink()
    monkeypatch.setattr(registry, "_imported", {})
    sys.modules.pop("their_blocks")
    with pytest.raises(
        ValueError, match=r"'their_blocks.Gate', .* call va.register_block\(Class\)"
    ):
        va.load(file)
    assert not theirs.exists()
    import their_blocks  # pyright: ignore[reportMissingImports]

    va.register_block(their_blocks.Gate, name="theirs")
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    assert torch.equal(va.load(file)(images), model(images))
