"""Text of strangers never controls the terminal."""

import warnings
from pathlib import Path

import pytest

from visattn.cli import main
from visattn.io.safe_text import escaped_warnings

ESCAPE = "\x1b[2J\x07\u202e"
LINES = [
    [ESCAPE],
    [f"--{ESCAPE}"],
    ["caption", "a.png", "--model", "b", f"--{ESCAPE}"],
    ["caption", ESCAPE, "--model", "b.safetensors"],
    ["demo", "--count", ESCAPE],
    ["demo", ESCAPE],
    ["models", ESCAPE],
    ["configs", ESCAPE],
    ["blocks", ESCAPE],
    ["fit", "--config", ESCAPE],
    ["fit", f"--{ESCAPE}", "3"],
    ["test", "--run", ESCAPE],
    ["help", ESCAPE],
]


CONFIGS = [
    '"{}": 1\n',
    'model: {{class_path: "{}"}}\n',
    'model: {{class_path: CaptioningTask, init_args: {{"{}": 1}}}}\n',
]


@pytest.mark.parametrize("number", range(len(LINES) + len(CONFIGS)))
def test_arguments_and_names_in_configs_are_escaped(
    number: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    line = [*LINES, *[["fit", "--config", str(tmp_path / "a.yaml")]] * len(CONFIGS)][number]
    if number >= len(LINES):
        config = CONFIGS[number - len(LINES)].format(ESCAPE.encode("unicode_escape").decode())
        (tmp_path / "a.yaml").write_text(config)
    assert main(line) in (1, 2)
    printed = "".join(capsys.readouterr())
    assert [each for each in printed if not each.isprintable() and each != "\n"] == []


def test_warnings_are_escaped_meanwhile() -> None:
    plain = warnings.formatwarning
    with escaped_warnings():
        text = warnings.formatwarning(UserWarning(ESCAPE), UserWarning, "a.py", 3)
    assert "\\x1b[2J\\x07\\u202e" in text
    assert warnings.formatwarning is plain
