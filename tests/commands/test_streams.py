"""Rows and messages with hostile text and closed streams."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import visattn
from visattn.cli import main
from visattn.commands.lists import _print_summaries
from visattn.commands.streams import activity, print_row
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
def hostile(sandbox: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sandbox with a captioner of hostile words, and a photo whose name is not ASCII."""
    folder = shutil.copytree(sandbox, tmp_path_factory.mktemp("hostile") / "sandbox")
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


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize(
    ("ending", "lines"), [("", 2), ("2>&-", 2), ("2>&- <&-", 2), ("2>/dev/full", 2), (">&-", 0)]
)
def test_captions_are_printed_with_closed_streams(ending: str, lines: int, hostile: Path) -> None:
    line = f"{sys.executable} -m visattn caption mixed --model hostile.safetensors {ending}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=hostile,
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(patch: pytest.MonkeyPatch, *streams: str) -> Terminal:
    """Return a terminal that shows these streams."""
    screen = Terminal()
    patch.setenv("TERM", "xterm-256color")
    for name in streams:
        patch.setattr(sys, name, screen)
    return screen


@pytest.mark.parametrize("colors", [True, False])
@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr"), ()])
def test_progress_goes_to_a_terminal_and_rows_to_stdout(
    streams: tuple[str, ...], colors: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("NO_COLOR", "" if colors else "1")
    screen = terminal(monkeypatch, *streams)
    with activity("loading", 2) as shown:
        print_row("dog", "a red ball")
        print_row("elephant", "a bl\nue ball")
        print_message("a note")
        shown.show("captioning dog")
        shown.advance()
    text = screen.getvalue()
    piped = capsys.readouterr()
    has_progress = "stderr" in streams
    assert ("loading" in text and "captioning dog" in text) is has_progress
    assert ("0 of 2" in text and "1 of 2" in text) is has_progress
    assert text.endswith("\x1b[2K") is has_progress  # the line is gone at the end
    assert ("\x1b[3" in text) is (has_progress and colors)
    if "stdout" in streams:
        lines = [line.rpartition("\x1b[2K")[2].split(None, 1) for line in text.splitlines()]
        rows = [["dog", "a red ball"], ["elephant", "a bl\\nue ball"]]
        assert [[part.rstrip() for part in line] for line in lines if "ball" in str(line)] == rows
    else:
        assert piped.out == "dog\ta red ball\nelephant\ta bl\\nue ball\n"
    assert "visattn: a note" in (text if has_progress else piped.err)


def test_a_download_is_shown_within_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch, "stdout", "stderr")
    with activity("loading the model"):
        for share in (10, 90, 100):  # as tqdm writes
            sys.stderr.write(f"\rweights: {share}%")
            sys.stderr.flush()
        sys.stderr.write("\n")
        print_message("a note")
    lines = [line.rpartition("\x1b[2K")[2].rstrip() for line in screen.getvalue().splitlines()]
    above = [line for line in lines if line.startswith(("weights", "visattn"))]
    assert above == ["weights: 100%", "visattn: a note"]
    assert "loading the model  weights: 10%" in screen.getvalue()
    assert not lines[-1]


def test_summaries_are_not_cut(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    _print_summaries({"cbam": words})
    assert capsys.readouterr().out == f"cbam  {words}\n"
    screen = terminal(monkeypatch, "stdout")
    monkeypatch.setenv("COLUMNS", "50")
    _print_summaries({"cbam": words})
    lines = screen.getvalue().splitlines()
    assert " ".join(screen.getvalue().split()) == f"cbam {words}"
    assert max(map(len, lines)) <= 50
    assert all(line.startswith(" " * 6 + "word") for line in lines[1:])


def test_a_terminal_shows_what_is_done_from_the_start(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = terminal(monkeypatch, "stdout", "stderr")
    monkeypatch.chdir(hostile)
    line = ["caption", "photos", "--model", "hostile.safetensors", "--out", "said"]
    assert main(line) == 0
    order = ["loading the model", "0 of 2"]
    order += ["cat     b", "dog     b", "open in a browser: said/index.html"]
    places = [screen.getvalue().find(part) for part in order]
    assert -1 not in places, screen.getvalue()
    assert places == sorted(places)
