"""`visattn doctor` on working and on broken installations."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from visattn.cli import main
from visattn.commands import doctor
from visattn.commands.doctor import Check, installed_version, requirements, try_imports

ROOT = Path(__file__).parents[2]
Capsys = pytest.CaptureFixture[str]
Simulate = Callable[..., None]
FACTS = {"threads": 1, "cuda": "13.2", "gpus": [], "mps": False}


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Simulate:
    """Replace the results of imports, and the versions of packages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VISATTN_DATA", raising=False)

    def replace(failures: dict[str, str] | None = None, **versions: str) -> None:
        facts = {} if "torch" in (failures or {}) else FACTS
        monkeypatch.setattr(doctor, "try_imports", lambda _names: (failures or {}, facts))
        known = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(
            doctor, "installed_version", lambda name: known.get(name, installed_version(name))
        )

    return replace


def checks(capsys: Capsys, code: int) -> dict[str, Check]:
    assert main(["doctor", "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["usable"] == (code == 0)
    return {check["name"]: Check(**check) for check in report["checks"]}


def test_this_installation_is_usable(capsys: Capsys) -> None:
    results = checks(capsys, 0)
    assert f"torch {installed_version('torch')}" in results["requirements"].message
    assert f"lightning {installed_version('lightning')}" in results["requirements"].message
    assert {"Python", "OpenCV", "onnx", "devices", "disk"} <= set(results)


def test_the_report_lists_problems_and_their_fixes(simulate: Simulate, capsys: Capsys) -> None:
    simulate({"cv2": "ImportError: libxcb.so.1: cannot open shared object file"})
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert "libxcb.so.1" in out
    assert "pip install --force-reinstall opencv-python-headless\n" in out
    assert out.endswith("problems: OpenCV\n")


def test_a_missing_torch_is_an_error(simulate: Simulate, capsys: Capsys) -> None:
    simulate({"torch": "ModuleNotFoundError: No module named 'torch'"}, torch="")
    results = checks(capsys, 1)
    assert results["torch"].status == "error"
    assert results["torch"].message.startswith("missing; ")
    assert "pip install" in results["torch"].fix
    assert results["devices"].message == "unknown without torch"


def test_torch_must_fit_torchvision(
    simulate: Simulate, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(torch="2.13.0+cpu")
    real = metadata.requires
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda name: ["torch==2.14.0"] if name == "torchvision" else real(name),
    )
    assert checks(capsys, 1)["torch"].message == "2.13.0+cpu; ==2.14.0 is needed"
    simulate(torch="2.14.0+cpu")
    assert "torch 2.14.0+cpu" in checks(capsys, 0)["requirements"].message


def test_a_package_that_cannot_be_imported_is_an_error(simulate: Simulate, capsys: Capsys) -> None:
    reason = "RuntimeError: operator torchvision::nms does not exist"
    simulate({"torchvision": reason})
    results = checks(capsys, 1)
    assert [name for name, check in results.items() if check.status == "error"] == ["torchvision"]
    assert reason in results["torchvision"].message


def test_a_package_that_is_too_old_is_an_error(simulate: Simulate, capsys: Capsys) -> None:
    simulate(lightning="2.6.3")
    check = checks(capsys, 1)["lightning"]
    assert check.message.startswith("2.6.3; ")
    assert "pip install 'lightning" in check.fix


def test_a_broken_opencv_is_a_warning(simulate: Simulate, capsys: Capsys) -> None:
    simulate({"cv2": "ImportError: libGL.so.1: cannot open shared object file"})
    check = checks(capsys, 0)["OpenCV"]
    assert check.status == "warning"
    assert "libGL.so.1" in check.message
    assert "opencv-python-headless" in check.fix


def test_any_wheel_of_opencv_will_do(simulate: Simulate, capsys: Capsys) -> None:
    simulate(opencv_python="", opencv_python_headless="4.14.0.94")
    check = checks(capsys, 0)["OpenCV"]
    assert (check.status, check.message) == ("ok", "opencv-python-headless 4.14.0.94")


def test_extras_are_those_of_the_project(simulate: Simulate, capsys: Capsys) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: {re.match(r"[\w-]+", text)[0] for text in packages}  # pyright: ignore[reportOptionalSubscript]
        for name, packages in project["optional-dependencies"].items()
        if name != "dev"
    }
    assert {name: {row[0] for row in requirements("visattn", name)} for name in extras} == extras
    assert set(doctor.EXTRAS) == set(extras)
    simulate(onnx="1.23.2", onnxscript="", onnxruntime="1.31.1", transformers="", tokenizers="")
    results = checks(capsys, 0)
    assert results["onnx"].message.startswith("export of models to ONNX: needs onnxscript")
    assert results["hf"].status == "info"
    assert "pip install 'visattn[hf]'" in results["hf"].fix


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(
    ("free", "status", "code"),
    [(5 * 10**9, "ok", 0), (9 * 10**8, "warning", 0), (10**7, "error", 1)],
)
def test_disk_space(
    free: int,
    status: str,
    code: int,
    simulate: Simulate,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulate()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**10, 10**10 - free, free))
    assert checks(capsys, code)["disk"].status == status


def test_a_folder_that_is_not_writable_is_an_error(
    simulate: Simulate, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate()
    monkeypatch.setattr(doctor.os, "access", lambda _path, _mode: False)
    assert checks(capsys, 1)["disk"].message.endswith("which is not writable")


def test_little_shared_memory_is_a_warning(
    simulate: Simulate, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate()
    small, real = Usage(64 * 10**6, 0, 64 * 10**6), shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: small if str(path) == "/dev/shm" else real(path)
    )
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(Path, "is_dir", lambda _path: True)
    check = checks(capsys, 0)["shared memory"]
    assert check.status == "warning"
    assert check.message == "0.06 GB free in /dev/shm"
    assert "--shm-size" in check.fix


def test_the_data_folder(
    simulate: Simulate, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate()
    assert checks(capsys, 0)["VISATTN_DATA"].status == "info"
    Path("data").mkdir()
    monkeypatch.setenv("VISATTN_DATA", "data")
    assert checks(capsys, 0)["VISATTN_DATA"].message == "data"
    monkeypatch.setenv("VISATTN_DATA", "nowhere")
    assert checks(capsys, 0)["VISATTN_DATA"].message == "nowhere is not a folder"


# ---- import tests

MODULES = {
    "fine": "",
    "failing": "raise ImportError('libGL.so.1: cannot open\\nmore')",
    "noisy": "print('visattn-doctor is printed by a module')",
    "exiting": "raise SystemExit(0)",
    "aborting": "import os; os.abort()",
    "hanging": "import time; time.sleep(60)",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("modules")
def test_failed_imports_do_not_stop_the_next_ones() -> None:
    failures, facts = try_imports(["failing", "exiting", "noisy", "fine", "aborting"])
    assert failures == {
        "failing": "ImportError: libGL.so.1: cannot open",
        "exiting": "SystemExit: 0",
        "aborting": "Python exits with code -6",
    }
    assert facts == {}


@pytest.mark.usefixtures("modules")
def test_an_import_that_hangs_is_stopped() -> None:
    failures, _ = try_imports(["fine", "hanging"], timeout=1)
    assert failures == {"hanging": "the import takes over 1 seconds"}


def test_the_working_directory_shadows_no_package(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    (modules / "json.py").write_text("raise ImportError('shadowed')")
    monkeypatch.chdir(modules)
    failures, _ = try_imports(["json", "fine"])
    assert failures == {"fine": "ModuleNotFoundError: No module named 'fine'"}
