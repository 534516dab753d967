"""Decisions of the installer; every `make test` shows that it installs."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tool_modules import TOOLS, tool_module

installer = tool_module("install")


@pytest.fixture
def environment(tmp_path: Path) -> Callable[[str], Path]:
    """Make an environment whose Python runs a line of shell."""

    def make(line: str) -> Path:
        python = tmp_path / "bin" / "python"
        python.parent.mkdir(exist_ok=True)
        python.write_text(f"#!/bin/sh\n{line}\n")
        python.chmod(0o755)
        return tmp_path

    return make


def test_old_pythons_and_incomplete_checkouts_are_refused_with_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert installer.too_old() == installer.not_a_checkout() == ""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 10, 13))
        assert "needs Python 3.11 or newer" in installer.too_old()
        assert "make PYTHON=python3.11" in installer.too_old()
    # It must compile on old Pythons to report that it cannot run.
    ast.parse((TOOLS / "install.py").read_text(), feature_version=(3, 7))
    monkeypatch.setattr(installer, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert "constraints.txt is missing" in installer.not_a_checkout()
    monkeypatch.setattr(sys, "argv", ["install.py", "everything"])
    with pytest.raises(SystemExit, match="2"):
        installer.main()
    assert "choose from" in capsys.readouterr().err


def test_only_a_complete_environment_is_reused(
    environment: Callable[[str], Path], tmp_path: Path
) -> None:
    assert not installer.usable(tmp_path / "nothing")
    assert not installer.usable(environment("exit 1"))  # without pip
    home = environment("exit 0")
    assert installer.usable(home)
    (home / "installing").touch()  # an interrupted install
    assert not installer.usable(home)


def test_python_without_venv_is_explained(
    environment: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lame = environment("echo ensurepip is not available; exit 1")
    monkeypatch.setattr(sys, "executable", str(lame / "bin" / "python"))
    with pytest.raises(RuntimeError, match=r"(?s)ensurepip is not available.*python3-venv"):
        installer.make(tmp_path / "new")


def test_failed_pip_is_quoted_and_marks_the_environment_until_it_succeeds(
    environment: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = environment("echo Collecting torch; echo WARNING: a folder is ignored; exit 1")
    monkeypatch.setattr(installer, "ROOT", home)
    with pytest.raises(RuntimeError, match=r"(?s)Collecting torch.*install\.log"):
        installer.run_pip(home, ["-e", "."])
    assert (home / "installing").exists()
    assert "Collecting torch" in capsys.readouterr().out  # progress, without warnings
    environment("echo fine")
    installer.run_pip(home, ["-e", "."])
    assert not (home / "installing").exists()
    assert "done" in capsys.readouterr().out
