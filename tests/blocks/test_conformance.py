"""Every block of the catalog stands every check, save for what its formula rules out."""

import re

import pytest

from visattn.blocks.registry import names
from visattn.testing.candidate import catalogd
from visattn.testing.suite import CHECKS, examine

UNCHECKED = ("export", "fx", "compile")
"""What is traced has no numbers for sizes, and may be no tensor: apart, without shape checks."""

RULED_OUT = {("gct", "gate"): r"^C=1: the gate stays \([^;]*\)$"}
"""The only channel is as loud as the mean of all channels, whatever comes in."""

PAIRS = [(name, check) for name in names() for check in CHECKS if check not in UNCHECKED]


@pytest.mark.parametrize(("name", "check"), [pair for pair in PAIRS if pair not in RULED_OUT])
def test_the_block_conforms(name: str, check: str) -> None:
    finding = examine(catalogd(name), check)
    assert finding.passed, finding.said


@pytest.mark.compile
@pytest.mark.parametrize("check", UNCHECKED)
@pytest.mark.parametrize("name", names())
def test_the_block_is_traced_whole(name: str, check: str) -> None:
    finding = examine(catalogd(name), check)
    assert finding.passed, finding.said


@pytest.mark.parametrize(("pair", "said"), RULED_OUT.items(), ids=str)
def test_what_is_ruled_out_is_as_we_say(pair: tuple[str, str], said: str) -> None:
    finding = examine(catalogd(pair[0]), pair[1])
    assert not finding.passed
    assert re.match(said, finding.said)
