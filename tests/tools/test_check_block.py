"""Blocks examined from the command line: ours, another library's, one from a file."""

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
def words(channels): return "words"
"""
QUICK = ["--checks", "size", "input"]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return tool_module("check_block")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "block_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "block_of_mine", raising=False)
    return str(tmp_path / "block_of_mine.py")


def test_one_block_is_told_check_by_check(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["se", *QUICK]) == 0
    assert capsys.readouterr().out == (
        "size   ok    32x32 20x33 7x7 5x3 1x9 1x1\ninput  ok    untouched\n"
    )


def test_several_are_a_table(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["eca", "timm.layers:EcaModule", *QUICK]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "| block | size | input |",
        "|---|---|---|",
        "| eca | ok | ok |",
        "| timm.layers:EcaModule | ok | ok |",
    ]
    assert shown.err == "eca timm.layers:EcaModule \n"


@pytest.mark.parametrize("by_module", [False, True])
def test_a_block_from_a_file_with_options(
    by_module: bool, mine: str, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    block = f"{'block_of_mine' if by_module else mine}:Mine"
    words = [block, *QUICK, "--option", "out_channels={C}", "--by", "channels", "--markdown"]
    assert tool.main(words) == 0
    assert tool.main([*words, "--option", "shrink=True"]) == 1
    assert "size: 32x32, in use: gives [3, 32, 16, 32] for [3, 32, 32, 32]" in (
        capsys.readouterr().out
    )


def test_options_go_to_ours_too(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["se", "--option", "bias=False", "--checks", "learns"]) == 0
    assert capsys.readouterr().out == "learns ok    2 of 2\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["see"], "there is no block 'see'; did you mean"),
        (["timm.layers:Missing"], "timm.layers has no Missing; its classes: "),
        (["no.such.module:X"], "no.such.module cannot be imported: ModuleNotFoundError"),
        (["none.py:X"], "none.py cannot be imported: ValueError: none.py does not exist"),
        (["MINE:number"], "number is a int; a class or a function is needed"),
        (["MINE:words"], "words makes a str; a torch.nn.Module is needed"),
        (["MINE:Mine"], "cannot be made for 32 channels: TypeError: "),
        (["MINE:Mine", "--option", "out_channels=7"], "ValueError: must be equal, got 32 and 7"),
        (["se", "--option", "bias"], "--option must be NAME=VALUE, got 'bias'"),
        (["se", "--option", "biass=1"], "se takes no biass; it takes reduction, bias"),
        (["se", "--checks", "sizes"], "no check sizes; there are size, width"),
        (["se", "--size", "7"], "must be like 56x56, got '7'"),
    ],
)
def test_a_mistake_ends_with_a_sentence(
    words: list[str], said: str, mine: str, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main([words[0].replace("MINE", mine), *words[1:]])
    assert said in capsys.readouterr().err
