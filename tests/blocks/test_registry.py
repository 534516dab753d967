"""Blocks by name: those of the package, and those that users register or pass as classes."""

import pytest
import torch
from host_models import image, residual_net
from torch import Tensor, nn

import visattn as va
from visattn.blocks import registry
from visattn.blocks.base import BlockInfo
from visattn.blocks.registry import block_class, block_name
from visattn.models.resnet import AttentionResNet

SAVED_BLOCKS = {  # names in files of users, by kind
    "channel": {"se", "ese", "eca", "srm", "gct", "gc"},
    "spatial": {"spatial", "sse", "gate", "stn"},
    "combined": {"cbam", "bam", "scse", "coordinate", "triplet", "simam"},
    "branch": {"sk", "split"},
    "self_attention": {"nonlocal", "danet", "crisscross", "a2", "botnet"},
}


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


def test_blocks_are_listed_by_kind() -> None:
    listed: list[str] = []
    for kind, names in SAVED_BLOCKS.items():
        listed += va.list_blocks(kind=kind)  # type: ignore[arg-type]
        assert set(va.list_blocks(kind=kind)) == names  # type: ignore[arg-type]
    assert va.list_blocks() == listed


@pytest.mark.parametrize("name", va.list_blocks())
def test_the_docstring_cites_the_paper_of_the_info(name: str) -> None:
    block = va.create_block(name, 16)
    paper = block.info.paper.partition(", ICML")[0]  # type: ignore[union-attr]
    assert block_name(block) == name
    assert paper in (type(block).__doc__ or "")


PARAMETERS = {  # of 64 channels, by the defaults with which weights of users were saved
    "eca": 3, "ese": 4160, "gct": 192, "gc": 653, "srm": 256, "se": 580, "gate": 4161,
    "spatial": 100, "sse": 64, "stn": 93478, "bam": 1173, "cbam": 680, "coordinate": 1688,
    "scse": 4256, "simam": 0, "triplet": 300, "sk": 8768, "split": 43488, "botnet": 13152,
    "crisscross": 5201, "danet": 5202, "a2": 8352, "nonlocal": 8480,
}  # fmt: skip


def test_defaults_give_the_parameters_of_saved_weights() -> None:
    blocks = {name: va.create_block(name, 64) for name in va.list_blocks()}
    counts = {name: sum(p.numel() for p in block.parameters()) for name, block in blocks.items()}
    assert counts == PARAMETERS


def test_a_registered_block_is_known_by_name() -> None:
    assert va.register_block(Halved) is Halved
    assert va.list_blocks()[-1] == "halved"
    assert va.list_blocks(kind="other") == ["halved"]
    block = va.create_block("halved", 7, factor=0.25)
    assert torch.equal(block(torch.ones(1, 7, 2, 3)), torch.full((1, 7, 2, 3), 0.25))
    model, x = residual_net(), image()
    va.insert(model, "halved", position="residual", example=x)
    assert {block_name(module) for module in model.modules()} == {None, "halved"}
    model = AttentionResNet(("a", "b"), depth=8, block="halved", img_size=(8, 8))
    assert sum(block_name(module) == "halved" for module in model.modules()) == 3


def test_register_takes_the_name_and_kind_of_an_info() -> None:
    @va.register_block
    class Mine(Halved):
        info = BlockInfo("my-own", "spatial", "Me 2024")

    assert "my-own" in va.list_blocks(kind="spatial")
    assert isinstance(va.create_block("my-own", 3), Mine)


def test_a_class_may_be_registered_anew_but_not_under_the_name_of_a_block_of_visattn() -> None:
    va.register_block(Halved)
    again = type("Halved", (Halved,), {})  # a cell of a notebook that ran twice
    va.register_block(again)
    assert type(va.create_block("halved", 3)) is again
    va.register_block(block_class("se"))
    with pytest.raises(ValueError, match="'se' is a block of visattn; give SE another name"):
        va.register_block(type("SE", (Halved,), {}))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cbma", "there is no block named 'cbma'; did you mean cbam"),
        ("CBAM", "there is no block named 'CBAM'; did you mean cbam"),
        ("os.system", "there is no block named 'os.system'; "),
        ("qqqq", "choose from "),
    ],
)
def test_an_unknown_name_gets_suggestions_and_imports_nothing(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        va.create_block(name, 16)
