"""Every row of tests/exit_codes.md is executed and has the documented exit code and output."""

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from visattn.cli import COMMANDS, main

PAGE = Path(__file__).parent / "exit_codes.md"
ROW = re.compile(r"^\| `(?P<command>[^`]+)` \| (?P<code>\d+) \| (?P<output>.*) \|$", re.MULTILINE)


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


def test_rows_have_their_exit_code_and_output(
    sandbox: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Runs the rows in order, since later rows use the run of an earlier one."""
    monkeypatch.chdir(shutil.copytree(sandbox, tmp_path / "sandbox"))
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.delenv("VISATTN_DATA", raising=False)
    assert set(COMMANDS) <= {word for row in rows() for word in row.command.split()[1:2]}
    assert {0, 1, 2} == {row.code for row in rows()}
    wrong = []
    for row in rows():
        code = main(shlex.split(row.command)[1:])
        out, err = capsys.readouterr()
        if code != row.code:
            wrong.append(f"{row.command}: {code}\n{err}")
        output = out if code == 0 else out + err
        # the parts in this order; … is any text on a line
        parts = ("[^\n]*?".join(map(re.escape, part.split("…"))) for part in row.output)
        if "Traceback" in err or not re.search(".*?".join(parts), output, re.DOTALL):
            wrong.append(f"{row.command}\n{output}")
    assert not wrong, "\n".join(wrong)
