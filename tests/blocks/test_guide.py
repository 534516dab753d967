"""The block that the guide adds to the package, by its three edits."""

import re
from pathlib import Path
from typing import Any

import pytest
from conformance import CHECKS

import visattn as va
from visattn.blocks import registry

ROOT = Path(__file__).parents[2]
FENCES = re.findall(
    r"^```(\w+)\n(.*?)^```$",
    (ROOT / "docs" / "guides" / "add_a_block.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
FILE, LINE, NAME = (text for _, text in FENCES[-3:])


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    monkeypatch.setattr(registry, "_registered", {})
    names: dict[str, Any] = {"__name__": "mean_gate"}
    exec(compile(FILE, "mean_gate.py", "exec"), names)
    return va.register_block(names["MeanGate"])


def test_the_file_conforms(block: type[Any]) -> None:
    for name in ("shape", "precision", "learns", "depends"):  # a module of `exec` is not copied
        CHECKS[name](block)
    assert va.block_info("meangate").parameters == "C"


def test_the_other_edits_fit_their_files() -> None:
    listed = (ROOT / "visattn" / "blocks" / "registry.py").read_text()
    assert LINE.replace("mean_gate", "gct") in listed
    stub = (ROOT / "visattn" / "blocks" / "__init__.pyi").read_text()
    assert NAME.replace("mean_gate", "gct").replace("MeanGate", "GCT") in stub
