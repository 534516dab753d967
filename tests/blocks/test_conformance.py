"""Every block of the catalogue stands every check, save for what its formula rules out."""

import pytest

from visattn.blocks.catalogues import names
from visattn.blocks.conformance.subjects import catalogued
from visattn.blocks.conformance.suites import CHECKS, examine

RULED_OUT = {("gct", "gate"): "C=1: the gate stays"}
"""A single channel is always as loud as the mean of all."""

COMPILED = {"compile"}


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in COMPILED])
@pytest.mark.parametrize("name", names())
def test_the_block_conforms(name: str, check: str) -> None:
    finding = examine(catalogued(name), check)
    reason = RULED_OUT.get((name, check), "")
    assert finding.passed != bool(reason), f"{name}, {check}: {finding.said}"
    assert finding.passed or finding.said.startswith(reason)
    assert ";" not in finding.said if reason else True


@pytest.mark.compile
@pytest.mark.parametrize("name", names())
def test_the_block_is_one_graph(name: str) -> None:
    finding = examine(catalogued(name), "compile")
    assert finding.passed, f"{name}: {finding.said}"


def test_what_is_ruled_out_is_of_the_catalogue() -> None:
    assert {name for name, _ in RULED_OUT} <= set(names())
