"""docs/exit_codes.md is true: each row of its tables is typed, and comes out as it says."""

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sandboxes import fill

from visattn.cli import COMMANDS, main
from visattn.commands.doctor import command as doctor
from visattn.commands.doctor.imports import ImportTrials
from visattn.data.images import reader as images
from visattn.data.scenes.dataset import Scenes

PAGE = Path(__file__).parents[1] / "docs" / "exit_codes.md"
ROW = re.compile(r"^\| `(?P<typed>[^`]+)` \| (?P<code>\d+) \| (?P<said>.*) \|$", re.MULTILINE)
CTRL_C, PIPE = " and Ctrl-C", " \\| "
Capsys = pytest.CaptureFixture[str]


class Row(NamedTuple):
    """What is typed, with which code it ends, and what it says, in this order."""

    typed: str
    code: int
    said: list[str]


def rows() -> list[Row]:
    found = ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return [Row(m["typed"], int(m["code"]), re.findall(r"`([^`]+)`", m["said"])) for m in found]


def special(row: Row) -> bool:
    return row.typed.endswith(CTRL_C) or PIPE in row.typed


def was_said(row: Row, heard: str) -> bool:
    """Whether all that the page says was heard, in this order; … is anything on a line."""
    pattern = ".*?".join("[^\n]*?".join(map(re.escape, part.split("…"))) for part in row.said)
    return re.search(pattern, heard, re.DOTALL) is not None


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sandbox")
    fill(folder)
    return folder


@pytest.fixture(autouse=True)
def _here(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sandbox)
    monkeypatch.setattr(sys, "argv", ["visattn"])
    monkeypatch.delenv("VISATTN_DATA", raising=False)
    monkeypatch.setattr(doctor, "try_imports", lambda names: ImportTrials(list(names)))  # seconds


def test_every_command_has_its_rows() -> None:
    typed = {word for row in rows() for word in row.typed.split()[1:2]}
    assert set(COMMANDS) <= typed
    assert {0, 1, 2, 130, 141} == {row.code for row in rows()}


def test_what_the_page_says_is_what_comes(capsys: Capsys) -> None:
    """One row after the other, since later ones use the run that an early one makes."""
    wrong = []
    for row in rows():
        if special(row):
            continue
        code = main(shlex.split(row.typed)[1:])
        out, err = capsys.readouterr()
        if code != row.code:
            wrong.append(f"{row.typed}: {code}\n{err}")
        heard = out if code == 0 else out + err
        if "Traceback" in err or not was_said(row, heard):
            wrong.append(f"{row.typed}\n{heard}")
    assert not wrong, "\n".join(wrong)


def test_a_reader_that_leaves_ends_every_command_quietly() -> None:
    [row] = [row for row in rows() if PIPE in row.typed]
    program, reader = row.typed.replace("\\|", "|").split(" | ")
    python = shlex.quote(sys.executable)
    line = f"{program.replace('visattn', f'{python} -m visattn', 1)} | {reader}"
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        env={**os.environ, "PYTHONPATH": str(PAGE.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (row.code, "")


@pytest.fixture
def _in_front() -> Iterator[None]:
    """Let Ctrl-C interrupt, as in front of a terminal; what runs behind it ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_in_front")
@pytest.mark.parametrize("row", [row for row in rows() if row.typed.endswith(CTRL_C)])
def test_ctrl_c_is_one_line_and_what_was_finished_stays(
    row: Row, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at_the_second_image(monkeypatch)
    words = shlex.split(row.typed.removesuffix(CTRL_C))[1:]
    assert main(words) == row.code
    _out, err = capsys.readouterr()
    assert was_said(row, err), err
    assert len(err.splitlines()) == 1
    folder = Path(words[words.index("--out") + 1])
    assert [path for path in folder.iterdir() if path.suffix == ".png"]
    assert not [path for path in folder.iterdir() if path.name.startswith(".visattn")]


def interrupt_at_the_second_image(patch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C as soon as the second image is asked for, whether it is read or drawn."""
    for owner, name in ((images, "read_image"), (Scenes, "image")):
        patch.setattr(owner, name, interrupted(getattr(owner, name)))


def interrupted(whole: Callable[..., Any]) -> Callable[..., Any]:
    calls = itertools.count()

    def second(*args: Any) -> Any:
        if next(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return whole(*args)

    return second
