"""Conformance checks from the command line: of visattn, another library or a file."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import tool_module

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_block.py"
MINE = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Settings:
    reduction: int = 2

class Mine(nn.Module):
    def __init__(self, channels, settings=None, *, out_channels, shrink=False):
        super().__init__()
        if out_channels != channels:
            raise ValueError(f"must be equal, got {channels} and {out_channels}")
        self.shrink = shrink
    def forward(self, x):
        return x[:, :, ::2] if self.shrink else x * x.sigmoid()

number = 3
def words(channels): return "arguments"
"""
QUICK = ["--checks", "shape", "in-place"]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return tool_module("check_block")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "custom_block.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "custom_block", raising=False)
    return str(tmp_path / "custom_block.py")


def test_one_block_is_reported_check_by_check(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["se", *QUICK]) == 0
    assert capsys.readouterr().out == (
        "shape    ok    32x32 20x33 7x7 5x3 1x9 1x1\nin-place ok    unchanged\n"
    )


def test_several_blocks_are_a_table(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["eca", "timm.layers:EcaModule", *QUICK]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "| block | shape | in-place |",
        "|---|---|---|",
        "| eca | ok | ok |",
        "| timm.layers:EcaModule | ok | ok |",
    ]
    assert output.err == "eca timm.layers:EcaModule \n"


@pytest.mark.parametrize("by_module", [False, True])
def test_block_from_file_with_arguments(
    by_module: bool, mine: str, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    block = f"{'custom_block' if by_module else mine}:Mine"
    arguments = [
        block,
        *QUICK,
        "--block-arg",
        "out_channels={C}",
        "--channels-arg",
        "channels",
        "--markdown",
    ]
    assert tool.main(arguments) == 0
    assert tool.main([*arguments, "--block-arg", "shrink=True"]) == 1
    assert "shape: 32x32, eval mode: returns [3, 32, 16, 32] for [3, 32, 32, 32]" in (
        capsys.readouterr().out
    )


def test_arguments_of_registered_blocks(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["se", "--block-arg", "bias=False", "--checks", "gradients"]) == 0
    assert capsys.readouterr().out == "gradients ok    2 of 2\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["see"], "there is no block named 'see'; did you mean"),
        (["timm.layers:Missing"], "timm.layers has no Missing; its classes: "),
        (["no.such.module:X"], "no.such.module cannot be imported: ModuleNotFoundError"),
        (["none.py:X"], "none.py cannot be imported: ValueError: none.py does not exist"),
        (["MINE:number"], "number must be a class or a function, got int"),
        (["MINE:words"], "words must return a torch.nn.Module, got str"),
        (["MINE:Mine"], "cannot be created for 32 channels: TypeError: "),
        (["MINE:Mine", "--block-arg", "out_channels=7"], "ValueError: must be equal, got 32 and 7"),
        (["se", "--block-arg", "bias"], "--block-arg must be NAME=VALUE, got 'bias'"),
        (
            ["se", "--block-arg", "biass=1"],
            "se has no argument biass; its arguments are reduction, bias",
        ),
        (["se", "--checks", "sizes"], "there is no check sizes; choose from shape, channels"),
        (["se", "--size", "7"], "must be like 56x56, got '7'"),
    ],
)
def test_usage_errors_are_reported(
    arguments: list[str],
    message: str,
    mine: str,
    tool: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main([arguments[0].replace("MINE", mine), *arguments[1:]])
    assert message in capsys.readouterr().err
