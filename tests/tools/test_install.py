"""The installer's judgment; that it installs is shown by every run of `make test`."""

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
    """Make an environment whose python does what a line of shell says."""

    def make(line: str) -> Path:
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\n{line}\n")
        python.chmod(0o755)
        return tmp_path

    return make


def test_an_old_python_is_told_what_to_do(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    assert "needs Python 3.11 or newer" in installer.too_old()
    assert "make PYTHON=python3.11" in installer.too_old()


def test_this_python_will_do(installer: ModuleType) -> None:
    assert installer.too_old() == ""


def test_an_incomplete_checkout_is_named(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installer, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert "constraints.txt is missing" in installer.not_a_checkout()


def test_a_whole_environment_is_gone_on_from(
    installer: ModuleType, environment: Callable[[str], Path]
) -> None:
    assert installer.usable(environment("exit 0"))


def test_an_environment_without_pip_is_built_anew(
    installer: ModuleType, environment: Callable[[str], Path]
) -> None:
    assert not installer.usable(environment("exit 1"))


def test_an_install_cut_short_is_built_anew(
    installer: ModuleType, environment: Callable[[str], Path]
) -> None:
    home = environment("exit 0")
    (home / "installing").touch()
    assert not installer.usable(home)


def test_no_environment_is_built(installer: ModuleType, tmp_path: Path) -> None:
    assert not installer.usable(tmp_path / "nothing")


def test_a_python_that_cannot_make_environments_is_explained(
    installer: ModuleType,
    environment: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    lame = environment("echo ensurepip is not available; exit 1")
    monkeypatch.setattr(sys, "executable", str(lame / "bin" / "python"))
    with pytest.raises(RuntimeError, match=r"(?s)ensurepip is not available.*python3-venv"):
        installer.make(tmp_path / "new")


def test_pip_that_fails_is_quoted_and_leaves_the_mark(
    installer: ModuleType, environment: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = environment("echo ERROR: no matching torch; exit 1")
    monkeypatch.setattr(installer, "ROOT", home)
    with pytest.raises(RuntimeError, match=r"(?s)no matching torch.*install\.log"):
        installer.run_pip(home, ["-e", "."])
    assert (home / "installing").exists()


def test_pip_that_succeeds_takes_the_mark_away(
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


def test_progress_shows_what_pip_is_at_and_not_what_it_warns_of(
    installer: ModuleType, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("Collecting torch\nWARNING: a folder is ignored\n\n")
    assert installer.latest(log) == "Collecting torch"
    log.write_text("")
    assert installer.latest(log) == "starting"


def test_an_unknown_kind_is_a_usage_error() -> None:
    command = [sys.executable, str(ROOT / "tools" / "install.py"), "everything"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "choose from" in done.stderr


def test_the_tool_is_written_for_pythons_that_are_too_old() -> None:
    """It must still compile where it has to say that it cannot run."""
    ast.parse((ROOT / "tools" / "install.py").read_text(), feature_version=(3, 7))
