"""Story: what the README tells a newcomer to type runs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
PYTHON = [text for language, mark, text in BLOCKS if language == "python" and "data" not in mark]


def test_every_block_is_run_or_marked() -> None:
    unmarked = {language for language, mark, _ in BLOCKS if "data" not in mark}
    assert unmarked == {"python"}


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_commands_of_the_blocks_exist() -> None:
    from visattn.cli import COMMANDS

    said = re.findall(r"^visattn (\w+)", "\n".join(text for *_, text in BLOCKS), re.MULTILINE)
    assert said
    assert set(said) <= set(COMMANDS)


def test_configs_that_are_named_exist() -> None:
    named = re.findall(r"configs/\w+\.yaml", README.read_text())
    assert named
    assert all((README.parent / name).is_file() for name in named)
