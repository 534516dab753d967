"""`visattn blocks`: the table of blocks and their descriptions."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torchvision

import visattn as va
from visattn.blocks import registry as catalogs
from visattn.blocks.registry import block_info, create_block, list_blocks
from visattn.cli import main
from visattn.commands import blocks
from visattn.insertion.with_block import WithBlock

Capsys = pytest.CaptureFixture[str]


def shown(capsys: Capsys, *words: str) -> list[str]:
    assert main(["blocks", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_table_has_a_row_for_each_block(narrow: None, capsys: Capsys) -> None:
    lines = shown(capsys)
    assert re.match(r"block +kind +parameters +MACs  paper$", lines[0])
    assert [line.split()[0] for line in lines[1:] if line][: len(list_blocks())] == list_blocks()
    assert max(map(len, lines)) <= 80
    [row] = [line.split() for line in lines if line.startswith("se ")]
    assert row[:5] == ["se", "channel", "8,464", "8.19", "k"]
    assert " ".join(row[5:]) == "Hu et al. 2018, arXiv:1709.01507"


@pytest.mark.parametrize("columns", [None, 120, 200])
def test_titles_are_shown_if_the_terminal_is_wide_enough(
    columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(capsys)
    assert re.match(r"block +kind +parameters +MACs  title +paper$", lines[0])
    assert max(map(len, lines)) <= (columns or 120)
    [row] = [line for line in lines if line.startswith("se ")]
    assert re.search(r"  Squeeze-and-excitation +Hu et al\. 2018, arXiv:1709\.01507$", row)


def test_macs_match_the_formula(narrow: None) -> None:
    """Two linear layers; a convolution to one channel; one along the channels."""
    assert blocks._costs("se") == (8464, 2 * 256 * 16)
    assert blocks._costs("sse") == (256, 256 * 56 * 56)
    assert blocks._costs("eca") == (5, 5 * 256)


@pytest.mark.parametrize(
    ("count", "output"),
    [(0, "0"), (999, "999"), (3_700_000_000, "3.70 G"), (413_234_567, "413 M"), (1_000, "1.00 k")],
)
def test_counts_have_three_significant_digits(count: int, output: str) -> None:
    assert blocks._short(count) == output


@pytest.mark.parametrize("name", list_blocks())
def test_a_description_is_complete_and_fits_the_width(
    name: str, narrow: None, capsys: Capsys
) -> None:
    lines = shown(capsys, name)
    card = block_info(name)
    assert lines[0] == f"{name}: {card.title}"
    assert max(map(len, lines)) <= 80
    text = re.sub(r"\s+", " ", "\n".join(lines))
    count = sum(parameter.numel() for parameter in create_block(name, 256).parameters())
    for record in (
        card.paper,
        card.equation,
        card.parameters,
        *card.deviations,
    ):
        assert re.sub(r"\s+", " ", record) in text
    assert f"{count:,} at C = 256" in text
    options = blocks._arguments(type(create_block(name, 256)))
    assert all(re.sub(r"\s+", " ", option) in text for option in options)
    assert [option for option in options if not re.match(r"\w+=.+: \S", option)] == []


@pytest.mark.parametrize("name", list_blocks())
def test_the_code_of_a_description_runs(name: str, narrow: None, capsys: Capsys) -> None:
    code = [line for line in shown(capsys, name) if line.startswith("va.")]
    assert len(code) == 2
    model, x = torchvision.models.resnet18(num_classes=2).eval(), torch.zeros(1, 3, 64, 64)
    for line in code:
        exec(line.replace("NAME", "conv1"), {"va": va, "model": model, "x": x})
    assert any(isinstance(module, WithBlock) for module in model.modules())


def test_an_unknown_name_gets_close_matches(capsys: Capsys) -> None:
    assert main(["blocks", "cbma"]) == 2
    assert "visattn blocks: error: there is no block named 'cbma'; did you mean cbam" in (
        capsys.readouterr().err
    )


def test_arguments_are_read_to_the_end_of_their_section() -> None:
    docstring = (
        "A gate.\n\nArgs:\n    one: Its side,\n        odd.\n    two: More.\n\nRaises:\n    E: x."
    )
    assert blocks._documented_arguments(docstring) == {"one": "Its side, odd.", "two": "More."}
    assert blocks._documented_arguments("No arguments.") == {}


MINE = """
import visattn as va
from torch import nn

@va.register_block
class Mine(nn.Module):
    '''A block of a user.

    Args:
        channels: Width.
        factor: By which it scales.
    '''
    def __init__(self, channels, factor=2.0):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
    def forward(self, x):
        return x * self.conv(x).sigmoid()

@va.register_block(name="counting")
class Counting(Mine):
    def forward(self, x):
        return x * x.sum().item()
"""


def test_blocks_of_trusted_modules_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: None, capsys: Capsys
) -> None:
    monkeypatch.setattr(catalogs, "_registered", {})
    (tmp_path / "mine_of_blocks.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["blocks", "mine_of_blocks.Mine"]) == 2
    assert "set VISATTN_TRUST_MODULES=mine_of_blocks" in capsys.readouterr().err
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "mine_of_blocks,nowhere_at_all")
    rows = {line.split()[0]: line.split() for line in shown(capsys) if line}
    assert rows["mine"][:3] == ["mine", "other", "65,792"]
    assert rows["counting"][2:4] == ["-", "-"]
    card = shown(capsys, "mine_of_blocks.Mine")
    assert card[0] == "mine: Mine"
    assert "arguments   factor=2.0: By which it scales." in card
    assert any("not counted: RuntimeError" in line for line in shown(capsys, "counting"))
    assert main(["blocks"]) == 0
    assert "nowhere_at_all cannot be imported" in capsys.readouterr().err
    sys.modules.pop("mine_of_blocks")


def test_case_does_not_matter(narrow: None, capsys: Capsys) -> None:
    assert shown(capsys, "CBAM") == shown(capsys, "cbam")
