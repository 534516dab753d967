"""Every row of tests/exit_codes.md is executed and has the documented exit code and output."""

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_sandbox import fill

from visattn.cli import COMMANDS, main
from visattn.commands import files as images, loop
from visattn.data.scenes.dataset import Scenes

PAGE = Path(__file__).parent / "exit_codes.md"
ROW = re.compile(r"^\| `(?P<command>[^`]+)` \| (?P<code>\d+) \| (?P<output>.*) \|$", re.MULTILINE)
CTRL_C, PIPE = " and Ctrl-C", " \\| "
Capsys = pytest.CaptureFixture[str]


class Row(NamedTuple):
    """Command, exit code, and parts of the output in their order."""

    command: str
    code: int
    output: list[str]


def rows() -> list[Row]:
    results = ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return [
        Row(m["command"], int(m["code"]), re.findall(r"`([^`]+)`", m["output"])) for m in results
    ]


def is_special(row: Row) -> bool:
    return row.command.endswith(CTRL_C) or PIPE in row.command


def matches_output(row: Row, output: str) -> bool:
    """Whether the output has the parts of a row in this order; … is any text on a line."""
    pattern = ".*?".join("[^\n]*?".join(map(re.escape, part.split("…"))) for part in row.output)
    return re.search(pattern, output, re.DOTALL) is not None


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


def test_every_command_has_rows() -> None:
    commands = {word for row in rows() for word in row.command.split()[1:2]}
    assert set(COMMANDS) <= commands
    assert {0, 1, 2, 130, 141} == {row.code for row in rows()}


def test_rows_have_their_exit_code_and_output(capsys: Capsys) -> None:
    """Runs the rows in order, since later rows use the run of an earlier one."""
    wrong = []
    for row in rows():
        if is_special(row):
            continue
        code = main(shlex.split(row.command)[1:])
        out, err = capsys.readouterr()
        if code != row.code:
            wrong.append(f"{row.command}: {code}\n{err}")
        output = out if code == 0 else out + err
        if "Traceback" in err or not matches_output(row, output):
            wrong.append(f"{row.command}\n{output}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_closed_stdout_ends_a_command_silently() -> None:
    [row] = [row for row in rows() if PIPE in row.command]
    program, reader = row.command.replace("\\|", "|").split(" | ")
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
def _foreground() -> Iterator[None]:
    """Handle SIGINT as in a terminal; background processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_foreground")
@pytest.mark.parametrize("row", [row for row in rows() if row.command.endswith(CTRL_C)])
def test_ctrl_c_prints_one_line_and_keeps_finished_files(
    row: Row, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at_the_second_image(monkeypatch)
    words = shlex.split(row.command.removesuffix(CTRL_C))[1:]
    assert main(words) == row.code
    _out, err = capsys.readouterr()
    assert matches_output(row, err), err
    assert len(err.splitlines()) == 1
    folder = Path(words[words.index("--out") + 1])
    finished = [path for path in folder.iterdir() if path.suffix in (".html", ".png")]
    assert bool(finished) == (words[0] != "data")  # a data set is written whole or not at all
    assert not [path for path in folder.iterdir() if path.name.endswith(".part")]


def interrupt_at_the_second_image(patch: pytest.MonkeyPatch) -> None:
    """Raise SIGINT when the second image is due, written or rendered; threads work ahead."""

    def one_by_one(
        function: Callable[[Any], Any], items: Iterable[Any], *, ahead: int = 0
    ) -> Iterator[Any]:
        call = interrupted(function) if function.__name__ == "finish" else function
        return ((item, partial(call, item)) for item in items)

    patch.setattr(images, "map_in_threads", one_by_one)
    patch.setattr(loop, "map_in_threads", one_by_one)
    patch.setattr(Scenes, "__getitem__", interrupted(Scenes.__getitem__))


def interrupted(whole: Callable[..., Any]) -> Callable[..., Any]:
    calls = itertools.count()

    def second(*args: Any) -> Any:
        if next(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return whole(*args)

    return second
