"""The command line: help, dispatch, error messages and exit codes."""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from visattn import cli

Command = Callable[[list[str]], object]
Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def replace_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Command], None]:
    """Replace `visattn data` and `visattn fit` by a command of the test."""

    def replace(command: Command) -> None:
        module = ModuleType("stand_in")
        vars(module)["main"] = command
        monkeypatch.setitem(sys.modules, "stand_in", module)
        for name in ("data", "fit"):
            monkeypatch.setitem(cli.COMMANDS, name, ("a stand-in", "stand_in"))

    return replace


def failing(error: BaseException) -> Command:
    def command(_argv: list[str]) -> int:
        raise error

    return command


def test_help_and_version(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["visattn", "--help"])
    for words, code in ((["--help"], 0), (["-h"], 0), (["help"], 0), ([], 2), (None, 0)):
        assert cli.main(words) == code
        out = capsys.readouterr().out
        assert all(f"\n  {word} " in out for word in cli.COMMANDS)
        assert max(map(len, out.splitlines())) <= 100
    assert cli.main(["help", "caption"]) == 0
    assert "usage: visattn caption" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"visattn {importlib.metadata.version('visattn')}\n"


USAGE = {
    "fitt": "visattn: unknown command 'fitt'; did you mean fit?\n",
    "zzz": "visattn: unknown command 'zzz'; choose from demo, fit, validate, test, compare, "
    "caption, overlay, glimpse, ask, detect, segment, export, score, models, configs, blocks, "
    "data\n",
    "-q": "visattn: unknown option '-q'; choose from --help, --version, --debug\n",
    "overlay dog.jpg --imgsz 1": "here --imgsz is --input-size",  # as other libraries call it
    "overlay dog.jpg --alpha 1": "here --alpha is --opacity",
}


@pytest.mark.parametrize("line", USAGE)
def test_usage_errors_exit_with_2_and_a_suggestion(line: str, capsys: Capsys) -> None:
    assert cli.main(line.split()) == 2
    err = capsys.readouterr().err
    assert err == USAGE[line] if USAGE[line].endswith("\n") else USAGE[line] in err


def test_a_command_gets_its_arguments_and_returns_its_exit_code(
    replace_command: Callable[[Command], None],
) -> None:
    calls: list[list[str]] = []
    for code in (0, 1, 2):
        replace_command(lambda argv, code=code: calls.append(argv) or code)
        assert cli.main(["data", "scenes", "--count", "3"]) == code
        assert calls.pop() == ["scenes", "--count", "3"]
        assert cli.main(["fit", "--config", "a.yaml"]) == code
        assert calls.pop() == ["fit", "--config", "a.yaml"]  # training commands get their name


ENDS: list[tuple[BaseException, int, str]] = [
    (ValueError("no such thing"), 1, "visattn: no such thing\n"),
    (FileNotFoundError("no such thing"), 1, "visattn: no such thing\n"),
    (FileNotFoundError(2, "No such file", "a/gone"), 1, "visattn: a/gone: No such file\n"),
    (ModuleNotFoundError("No module named 'transformers'"), 1,
     "visattn: No module named 'transformers'\n"),
    (KeyboardInterrupt(), 130, "visattn: interrupted\n"),
    (KeyboardInterrupt("3 of 7 are in out"), 130, "visattn: interrupted; 3 of 7 are in out\n"),
    (SystemExit(None), 0, ""),
    (SystemExit(0), 0, ""),
    (SystemExit(2), 2, ""),
    (SystemExit("no checkpoint"), 1, "visattn: no checkpoint\n"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "code", "said"), ENDS, ids=lambda value: repr(value)[:40])
def test_errors_of_users_are_one_line_and_bugs_keep_their_traceback(
    error: BaseException, code: int, said: str,
    replace_command: Callable[[Command], None], monkeypatch: pytest.MonkeyPatch, capsys: Capsys,
) -> None:  # fmt: skip
    replace_command(failing(error))
    for value in ("0", ""):
        monkeypatch.setenv("VISATTN_DEBUG", value)
        assert cli.main(["data"]) == code
        assert capsys.readouterr().err == said
    if type(error) is ValueError:
        for words in (["--debug", "data"], ["data"]):
            assert cli.main(words) == code
            debugged = capsys.readouterr().err
            assert "Traceback" in debugged
            assert debugged.endswith(said)
            monkeypatch.setenv("VISATTN_DEBUG", "1")
    replace_command(failing(RuntimeError("sizes do not match")))
    with pytest.raises(RuntimeError, match="sizes do not match"):
        cli.main(["data"])


MOST = {"overlay": 30, "caption": 25}  # any other has at most 20
OTHERS = ["compare", "glimpse", "ask", "detect", "segment", "export", "demo", "data scenes"]


@pytest.mark.parametrize("command", [*MOST, *OTHERS, "score captions", "score maps"])
def test_commands_have_few_options(command: str, capsys: Capsys) -> None:
    assert cli.main([*command.split(), "--help"]) == 0
    options = re.findall(r"^\W*(?:-\w, )?--[a-z]", capsys.readouterr().out, re.MULTILINE)
    assert 0 < len(options) - 1 <= MOST.get(command, 20)  # without --help


def run_shell(words: str, stdout: int | None, *, stderr: int, unbuffered: str = "") -> str:
    """Run a command with these streams; return its exit code and its stderr."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m visattn {words}"], cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, stdout=stdout, stderr=stderr,
        text=True, check=False,
    )  # fmt: skip
    return f"{done.returncode} {done.stderr or ''}".strip()


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """Write end of a pipe whose read end is closed, as with `visattn ... | head -n 0`."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.slow
def test_streams_that_are_closed_or_full_give_no_traceback(closed_pipe: int) -> None:
    for words in ("--help", "caption --help"):
        for unbuffered in ("", "1"):  # else argparse would hide that help could not be written
            piped = {"stderr": subprocess.PIPE, "unbuffered": unbuffered}
            assert run_shell(words, closed_pipe, **piped) == "141"  # type: ignore[arg-type]
    assert run_shell("captoin", closed_pipe, stderr=closed_pipe) == "2"
    assert run_shell("--help >&-", None, stderr=subprocess.PIPE) == "0"
    full = run_shell("--help >/dev/full", None, stderr=subprocess.PIPE)
    assert full == "1 visattn: the output could not be written: No space left on device"
