"""Rows and messages with hostile text and closed streams."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_sandbox import fill

import visattn
from visattn.commands.streams import print_row
from visattn.io.safe_text import print_message, terminal_text
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.results.kinds import SPECIAL_TOKENS

Capsys = pytest.CaptureFixture[str]
HOSTILE = ("\x1b[2J\x1b[1;1Hred", "gr\nee\tn\r", "b\u202elue\u2066", "\x9b31m\u2028", "caf\xe9")


def test_control_characters_are_escaped_and_text_is_kept(capsys: Capsys) -> None:
    print_row("a\tb\n", *HOSTILE)
    out = capsys.readouterr().out
    assert out.count("\t") == len(HOSTILE)
    assert out.endswith("\n")
    assert out[:-1].replace("\t", "").isprintable()
    for text in ("Ein Käse", "日本 の 犬", "می‌خواهم", "👩‍🚀 ☂️", "xa0\xa0", "back\\slash"):
        assert terminal_text(text) == text
    assert terminal_text("a\nb\r", keep="\n") == "a\nb\\r"


def test_messages_need_no_stderr(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    print_message("no stderr")
    assert capsys.readouterr().out == ""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sandbox")
    fill(folder)
    torch.manual_seed(4)
    encoder = SmallEncoder((24, 40), channels=12)
    words = (*SPECIAL_TOKENS, *HOSTILE)
    model = ShowAttendTell(words, encoder, embed_dim=5, hidden_size=11, attention_dim=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    visattn.save(model, folder / "hostile.safetensors")
    (folder / "mixed" / "caf\xe9.png").write_bytes((folder / "photos" / "dog.png").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("ending", "lines"),
    [
        pytest.param("", 2, marks=pytest.mark.slow),
        pytest.param("2>&-", 2, marks=pytest.mark.slow),
        ("2>&- <&-", 2),
        ("2>/dev/full", 2),
        (">&-", 0),
    ],
)
def test_captions_are_printed_with_closed_streams(ending: str, lines: int, sandbox: Path) -> None:
    line = f"{sys.executable} -m visattn caption mixed --weights hostile.safetensors {ending}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=sandbox,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "JAXTYPING_DISABLE": "1"}
        | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr  # one image of three is torn
    rows = done.stdout.splitlines()
    assert len(rows) == lines, done.stderr
    assert all(row.count("\t") == 1 and row.isascii() for row in rows)
    assert [row.partition("\t")[0] for row in rows] == ["caf\\xe9", "dog"][:lines][::1]
    assert all(row.replace("\t", "").isprintable() for row in rows)
    if ending in ("", ">&-"):
        assert "visattn: 1 of 3 images skipped" in done.stderr
