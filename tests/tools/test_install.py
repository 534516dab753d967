"""Decisions of the installer; every `make test` shows that it installs."""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import tool_module

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installer() -> ModuleType:
    return tool_module("install")


@pytest.fixture
def environment(tmp_path: Path) -> Callable[[str], Path]:
    """Make an environment whose Python runs a line of shell."""

    def make(line: str) -> Path:
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\n{line}\n")
        python.chmod(0o755)
        return tmp_path

    return make


def test_old_python_is_refused_with_instructions(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    assert "needs Python 3.11 or newer" in installer.too_old()
    assert "make PYTHON=python3.11" in installer.too_old()


def test_current_python_is_accepted(installer: ModuleType) -> None:
    assert installer.too_old() == ""


def test_incomplete_checkout_is_reported(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installer, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert "constraints.txt is missing" in installer.not_a_checkout()


def test_complete_environment_is_reused(
    installer: ModuleType, environment: Callable[[str], Path]
) -> None:
    assert installer.usable(environment("exit 0"))


def test_environment_without_pip_is_rebuilt(
    installer: ModuleType, environment: Callable[[str], Path]
) -> None:
    assert not installer.usable(environment("exit 1"))


def test_interrupted_install_is_rebuilt(
    installer: ModuleType, environment: Callable[[str], Path]
) -> None:
    home = environment("exit 0")
    (home / "installing").touch()
    assert not installer.usable(home)


def test_missing_environment_is_not_usable(installer: ModuleType, tmp_path: Path) -> None:
    assert not installer.usable(tmp_path / "nothing")


def test_python_without_venv_is_explained(
    installer: ModuleType,
    environment: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    lame = environment("echo ensurepip is not available; exit 1")
    monkeypatch.setattr(sys, "executable", str(lame / "bin" / "python"))
    with pytest.raises(RuntimeError, match=r"(?s)ensurepip is not available.*python3-venv"):
        installer.make(tmp_path / "new")


def test_failed_pip_is_quoted_and_keeps_the_marker_file(
    installer: ModuleType, environment: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = environment("echo ERROR: no matching torch; exit 1")
    monkeypatch.setattr(installer, "ROOT", home)
    with pytest.raises(RuntimeError, match=r"(?s)no matching torch.*install\.log"):
        installer.run_pip(home, ["-e", "."])
    assert (home / "installing").exists()


def test_successful_pip_removes_the_marker_file(
    installer: ModuleType,
    environment: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = environment("echo fine")
    monkeypatch.setattr(installer, "ROOT", home)
    installer.run_pip(home, ["-e", "."])
    assert not (home / "installing").exists()
    assert "done" in capsys.readouterr().out


def test_progress_shows_the_step_of_pip_without_warnings(
    installer: ModuleType, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("Collecting torch\nWARNING: a folder is ignored\n\n")
    assert installer.latest(log) == "Collecting torch"
    log.write_text("")
    assert installer.latest(log) == "starting"


def test_unknown_kind_is_a_usage_error() -> None:
    command = [sys.executable, str(ROOT / "tools" / "install.py"), "everything"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "choose from" in done.stderr


def test_tool_has_syntax_of_old_pythons() -> None:
    """It must compile on old Pythons to report that it cannot run."""
    ast.parse((ROOT / "tools" / "install.py").read_text(), feature_version=(3, 7))
