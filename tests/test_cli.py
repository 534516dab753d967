"""Tests of the command line: help, dispatch, error messages and exit codes."""

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

Command = Callable[[list[str]], int]


@pytest.fixture
def replace_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Command], None]:
    """Replace `visattn data` by a command of the test."""

    def replace(command: Command) -> None:
        module = ModuleType("stand_in")
        vars(module)["main"] = command
        monkeypatch.setitem(sys.modules, "stand_in", module)
        monkeypatch.setitem(cli.COMMANDS, "data", ("a stand-in", "stand_in"))

    return replace


def failing(error: BaseException) -> Command:
    def command(_argv: list[str]) -> int:
        raise error

    return command


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {word} " in out for word in cli.COMMANDS)
    assert max(map(len, out.splitlines())) <= 100


def test_no_arguments_print_the_help_and_are_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    assert "commands" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"visattn {importlib.metadata.version('visattn')}\n"


@pytest.mark.parametrize(
    ("typo", "answer"),
    [
        ("fitt", "unknown command 'fitt'; did you mean fit?"),
        ("captoin", "unknown command 'captoin'; did you mean caption?"),
        (
            "zzz",
            "unknown command 'zzz'; choose from demo, fit, validate, test, compare, caption, "
            "overlay, glimpse, ask, detect, segment, export, score, models, configs, blocks, data",
        ),
        ("--verison", "unknown option '--verison'; did you mean --version?"),
        ("-q", "unknown option '-q'; choose from --help, --version, --debug"),
    ],
)
def test_an_unknown_command_gets_a_suggestion(
    typo: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([typo]) == 2
    assert capsys.readouterr().err == f"visattn: {answer}\n"


def test_arguments_default_to_those_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["visattn", "--help"])
    assert cli.main() == 0
    assert "commands" in capsys.readouterr().out


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_command_gets_its_arguments_and_returns_its_exit_code(
    code: int, replace_command: Callable[[Command], None]
) -> None:
    values: list[list[str]] = []

    def command(argv: list[str]) -> int:
        values.append(argv)
        return code

    replace_command(command)
    assert cli.main(["data", "scenes", "--count", "3"]) == code
    assert values == [["scenes", "--count", "3"]]


def test_training_commands_get_their_name(
    replace_command: Callable[[Command], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    values: list[list[str]] = []
    replace_command(lambda argv: values.append(argv) or 0)
    monkeypatch.setitem(cli.COMMANDS, "fit", cli.COMMANDS["data"])
    assert cli.main(["fit", "--config", "a.yaml"]) == 0
    assert values == [["fit", "--config", "a.yaml"]]


@pytest.mark.parametrize("error", [ValueError("no such thing"), FileNotFoundError("no such thing")])
def test_user_errors_are_one_line(
    error: Exception, replace_command: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(failing(error))
    assert cli.main(["data"]) == 1
    assert capsys.readouterr().err == "visattn: no such thing\n"


def test_debug_prints_the_traceback(
    replace_command: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(failing(ValueError("no such thing")))
    assert cli.main(["--debug", "data"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("visattn: no such thing\n")


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_debug_from_the_environment(
    value: str,
    shown: bool,
    replace_command: Callable[[Command], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VISATTN_DEBUG", value)
    replace_command(failing(ValueError("no such thing")))
    assert cli.main(["data"]) == 1
    assert ("Traceback" in capsys.readouterr().err) is shown


def test_bugs_keep_their_traceback(replace_command: Callable[[Command], None]) -> None:
    replace_command(failing(RuntimeError("sizes do not match")))
    with pytest.raises(RuntimeError, match="sizes do not match"):
        cli.main(["data"])


def test_keyboard_interrupt_exits_with_130(
    replace_command: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(failing(KeyboardInterrupt()))
    assert cli.main(["data"]) == 130
    assert capsys.readouterr().err == "visattn: interrupted\n"


@pytest.mark.parametrize(
    ("exit_value", "code", "output"),
    [(None, 0, ""), (0, 0, ""), (2, 2, ""), ("no checkpoint", 1, "visattn: no checkpoint\n")],
)
def test_system_exit_becomes_an_exit_code(
    exit_value: str | int | None,
    code: int,
    output: str,
    replace_command: Callable[[Command], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace_command(failing(SystemExit(exit_value)))
    assert cli.main(["data"]) == code
    assert capsys.readouterr().err == output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("caption --no-such", "--no-such"),
        ("export", "RUN"),
        ("data no-such", "scenes"),
        ("caption a.png --modle m.safetensors", "--model"),
        ("data scenes --out a --conut 3", "--count"),
    ],
)
def test_usage_errors_exit_with_2(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line.split()) == 2
    assert said in capsys.readouterr().err


def test_options_of_other_libraries_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for other, own in (("--imgsz", "--input-size"), ("--alpha", "--opacity")):
        assert cli.main(["overlay", "dog.jpg", other, "1"]) == 2
        assert f"here {other} is {own}" in capsys.readouterr().err


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "caption"]) == 0
    assert "usage: visattn caption" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "most"),
    [("overlay", 30), ("caption", 25), *((f"score {x}", 20) for x in ("captions", "maps"))]
    + [
        (x, 20)
        for x in ("compare", "glimpse", "ask", "detect", "segment", "export", "demo", "data scenes")
    ],
)
def test_commands_have_few_options(
    command: str, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command.split(), "--help"]) == 0
    options = re.findall(r"^\W*(?:-\w, )?--[a-z]", capsys.readouterr().out, re.MULTILINE)
    assert len(options) - 1 <= most  # without --help


def test_a_missing_package_is_a_user_error(
    replace_command: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(failing(ModuleNotFoundError("No module named 'transformers'")))
    assert cli.main(["data"]) == 1
    assert capsys.readouterr().err == "visattn: No module named 'transformers'\n"


def test_file_errors_name_the_file(
    replace_command: Callable[[Command], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    replace_command(lambda _argv: len((tmp_path / "gone").read_text()))
    assert cli.main(["data"]) == 1
    assert capsys.readouterr().err == f"visattn: {tmp_path}/gone: No such file or directory\n"


def test_an_interruption_reports_what_was_finished(
    replace_command: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(failing(KeyboardInterrupt("3 of 7 are in out")))
    assert cli.main(["data"]) == 130
    assert capsys.readouterr().err == "visattn: interrupted; 3 of 7 are in out\n"


def run_shell(words: str, stdout: int | None, *, stderr: int, unbuffered: str = "") -> str:
    """Run a command with these streams; return its exit code and its stderr."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m visattn {words}"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=stdout,
        stderr=stderr,
        text=True,
        check=False,
    )
    return f"{done.returncode} {done.stderr or ''}".strip()


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """Write end of a pipe whose read end is closed, as with `visattn ... | head -n 0`."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


# Unbuffered, or above the size of the buffer, argparse would hide that help could not be written.
@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "caption --help"])
def test_a_closed_stdout_gives_no_traceback(words: str, unbuffered: str, closed_pipe: int) -> None:
    assert run_shell(words, closed_pipe, stderr=subprocess.PIPE, unbuffered=unbuffered) == "141"


@pytest.mark.slow
def test_a_closed_stderr_keeps_the_exit_code(closed_pipe: int) -> None:
    assert run_shell("captoin", closed_pipe, stderr=closed_pipe) == "2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("--help >&-", "0"),
        (
            "--help >/dev/full",
            "1 visattn: the output could not be written: No space left on device",
        ),
    ],
)
def test_an_output_error_is_reported(words: str, output: str) -> None:
    assert run_shell(words, None, stderr=subprocess.PIPE) == output
