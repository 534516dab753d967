"""`visattn blocks`: the table of blocks and their descriptions."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torchvision

import visattn as va
from visattn.blocks import registry
from visattn.blocks.registry import block_class, block_name
from visattn.cli import main

Capsys = pytest.CaptureFixture[str]

MINE = """
import visattn as va
from torch import nn

@va.register_block
class Mine(nn.Module):
    '''A block of a user.'''
    def __init__(self, channels, factor=2.0):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
    def forward(self, x):
        return x * self.conv(x).sigmoid()

@va.register_block
class Counting(Mine):
    def forward(self, x):
        return x * x.sum().item()
"""


def shown(capsys: Capsys, *words: str) -> list[str]:
    assert main(["blocks", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_table_has_a_row_for_each_block(capsys: Capsys) -> None:
    lines = shown(capsys)
    assert re.match(r"block +kind +parameters +MACs  paper$", lines[0])
    rows = {line.split()[0]: line for line in lines[1:] if line}
    assert list(rows)[:-1] == va.list_blocks()
    assert re.search(r"channel +8,464 +0\.01 M  Hu et al\. 2018, arXiv:1709\.01507$", rows["se"])
    # 1 x 1 convolutions to 3 · 128 channels and back, and two products of 3,136 x 3,136 by 128.
    macs = 4 * 256 * 128 * 3136 + 2 * 3136 * 3136 * 128
    assert f"{macs / 1e6:,.2f} M" in rows["nonlocal"]


@pytest.mark.parametrize("name", va.list_blocks())
def test_a_description_is_the_docstring_and_its_code_runs(name: str, capsys: Capsys) -> None:
    lines = shown(capsys, name)
    block = block_class(name)
    assert re.sub(r"\s+", " ", block.__doc__ or "").strip() in re.sub(r"\s+", " ", " ".join(lines))
    count = sum(parameter.numel() for parameter in block(256).parameters())
    assert any(f"{count:,} parameters" in line for line in lines)
    model, x = torchvision.models.resnet18(num_classes=2).eval(), torch.zeros(1, 3, 64, 64)
    for line in lines[-2:]:
        exec(line, {"va": va, "model": model, "x": x})
    assert name in map(block_name, model.modules())


def test_blocks_of_trusted_modules_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    (tmp_path / "mine_of_blocks.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert main(["blocks", "mine"]) == 1
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "mine_of_blocks")
    rows = {line.split()[0]: line.split() for line in shown(capsys) if line}
    assert rows["mine"][:3] == ["mine", "other", "65,792"]
    assert rows["counting"][2:4] == ["-", "-"]
    assert "A block of a user." in shown(capsys, "mine")
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "nowhere_at_all")
    assert main(["blocks"]) == 1
    assert "No module named 'nowhere_at_all'" in capsys.readouterr().err
    sys.modules.pop("mine_of_blocks")
