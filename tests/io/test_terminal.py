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


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_arguments_are_escaped(
    line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    assert main(line) in (1, 2)
    printed = "".join(capsys.readouterr())
    assert [each for each in printed if not each.isprintable() and each != "\n"] == []


@pytest.mark.parametrize(
    "config",
    [
        f'"{ESCAPE}": 1\n',
        f'model: {{class_path: "{ESCAPE}"}}\n',
        f'model: {{class_path: CaptioningTask, init_args: {{"{ESCAPE}": 1}}}}\n',
    ],
)
def test_names_in_a_config_are_escaped(
    config: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    escaped = config.replace("\x1b", "\\e").replace("\x07", "\\a")
    (tmp_path / "a.yaml").write_text(escaped, encoding="utf-8")
    assert main(["fit", "--config", str(tmp_path / "a.yaml")]) == 2
    printed = "".join(capsys.readouterr())
    assert [each for each in printed if not each.isprintable() and each != "\n"] == []


def test_warnings_are_escaped_meanwhile() -> None:
    plain = warnings.formatwarning
    with escaped_warnings():
        text = warnings.formatwarning(UserWarning(ESCAPE), UserWarning, "a.py", 3)
    assert "\\x1b[2J\\x07\\u202e" in text
    assert warnings.formatwarning is plain
