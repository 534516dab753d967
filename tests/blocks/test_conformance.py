"""Every block of the catalog passes the conformance suite, apart from declared exceptions."""

import re

import pytest

from visattn.blocks.registry import list_blocks
from visattn.testing.block_under_test import registered_block
from visattn.testing.suite import CHECKS, run_check

UNCHECKED = ("export", "fx", "compile")
"""What is traced has no numbers for sizes, and may be no tensor: apart, without shape checks."""

RULED_OUT = {("gct", "depends"): r"^C=1: the gate is constant \([^;]*\)$"}
"""A single channel always has the norm of all channels, so the gate is constant."""

PAIRS = [(name, check) for name in list_blocks() for check in CHECKS if check not in UNCHECKED]


@pytest.mark.parametrize(("name", "check"), [pair for pair in PAIRS if pair not in RULED_OUT])
def test_block_passes_the_conformance_suite(name: str, check: str) -> None:
    finding = run_check(registered_block(name), check)
    assert finding.passed, finding.details


@pytest.mark.compile
@pytest.mark.parametrize("check", UNCHECKED)
@pytest.mark.parametrize("name", list_blocks())
def test_block_is_traced_without_graph_breaks(name: str, check: str) -> None:
    finding = run_check(registered_block(name), check)
    assert finding.passed, finding.details


@pytest.mark.parametrize(("pair", "said"), RULED_OUT.items(), ids=str)
def test_declared_exceptions_hold(pair: tuple[str, str], said: str) -> None:
    finding = run_check(registered_block(pair[0]), pair[1])
    assert not finding.passed
    assert re.match(said, finding.details)
