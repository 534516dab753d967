"""`visattn doctor` on machines that are well, and on machines that are not."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from visattn.cli import main
from visattn.commands.doctor import command as doctor
from visattn.commands.doctor import machine as machine_checkups
from visattn.commands.doctor import packages as package_checkups
from visattn.commands.doctor.imports import ImportTrials
from visattn.commands.doctor.notices import Notice, notice_lines
from visattn.commands.doctor.packages import EXTRAS, TRIED
from visattn.commands.doctor.requirements import Requirement, installed

ROOT = Path(__file__).parents[3]
Capsys = pytest.CaptureFixture[str]
Feign = Callable[..., None]
FACTS = {"threads": 1, "cuda": "13.2", "gpus": [], "mps": False}


@pytest.fixture
def feign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Feign:
    """Let imports end as a test says, and packages have the versions that it gives them."""
    monkeypatch.chdir(tmp_path)
    for name in ("VISATTN_DATA", "VISATTN_TRUST_MODULES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def put(failed: dict[str, str] | None = None, **versions: str) -> None:
        bad = failed or {}
        trials = ImportTrials([name for name in TRIED if name not in bad], bad, dict(FACTS))
        if "torch" in bad:
            trials.facts = {}
        monkeypatch.setattr(doctor, "try_imports", lambda _names: trials)
        given = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(
            package_checkups, "installed", lambda name: given.get(name, installed(name))
        )

    return put


def found(capsys: Capsys, code: int) -> dict[str, Notice]:
    assert main(["doctor", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["usable"] == (code == 0)
    return {one["name"]: Notice(**one) for one in told["notices"]}


def test_this_machine_is_examined_for_real(capsys: Capsys) -> None:
    notices = found(capsys, 0)
    assert notices["torch"].told.startswith(f"{installed('torch')} with torchvision")
    assert f"lightning {installed('lightning')}" in notices["others"].told
    assert {"Python", "OpenCV", "onnx", "processors", "devices", "room", "runs/"} <= set(notices)


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_the_terminal_and_a_pipe(
    columns: int,
    feign: Feign,
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feign({"cv2": "ImportError: libxcb.so.1: cannot open shared object file"})
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    commands = " " * 27  # these, and paths, stay in one piece
    lines = [line for line in out.splitlines()[1:] if str(tmp_path) not in line]
    told = [line for line in lines if not line.startswith(commands)]
    assert max(map(len, told)) <= min(columns, 100)
    assert "\033" not in out
    assert out.isascii()
    assert "amiss" in out
    assert out.endswith("Amiss: OpenCV.\n")


def test_states_have_colors_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    notice = Notice("disk", "room", "broken", "none", "make some")
    plain, painted = (list(notice_lines([notice], 80, colored=on)) for on in (False, True))
    assert [re.sub(r"\033\[[\d;]*m", "", line) for line in painted] == plain
    assert "\033[31;1mbroken\033[0m" in painted[1]


def test_a_missing_torch_is_broken(feign: Feign, capsys: Capsys) -> None:
    feign({"torch": "ModuleNotFoundError: No module named 'torch'"}, torch="")
    notices = found(capsys, 1)
    assert (notices["torch"].state, notices["torch"].told) == ("broken", "torch missing")
    assert "pip install" in notices["torch"].remedy
    assert notices["devices"].told == "torch could not be asked"


def test_torch_and_torchvision_must_be_a_pair(
    feign: Feign, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    feign(torch="2.13.0+cpu", torchvision="0.28.0")
    ours = package_checkups.requirements_of
    bounds = {"torchvision": [Requirement("torch", "==2.14.0")]}
    monkeypatch.setattr(
        package_checkups, "requirements_of", lambda name: bounds.get(name) or ours(name)
    )
    notice = found(capsys, 1)["torch"]
    assert notice.told == (
        "2.13.0+cpu with torchvision 0.28.0: no pair, this torchvision is made for torch==2.14.0"
    )


def test_what_cannot_be_imported_is_broken_and_its_followers_are_spared(
    feign: Feign, capsys: Capsys
) -> None:
    reason = "RuntimeError: operator torchvision::nms does not exist"
    feign(dict.fromkeys(("torchvision", "timm", "lightning"), reason))
    notices = found(capsys, 1)
    assert [name for name, one in notices.items() if one.state == "broken"] == ["torch"]
    assert reason in notices["torch"].told


def test_a_package_that_is_too_old_is_broken(feign: Feign, capsys: Capsys) -> None:
    feign(lightning="2.6.3")
    notice = found(capsys, 1)["lightning"]
    assert notice.told.startswith("2.6.3, but ")
    assert "pip install 'lightning" in notice.remedy


def test_opencv_without_its_libraries_spoils_contours_alone(feign: Feign, capsys: Capsys) -> None:
    feign({"cv2": "ImportError: libGL.so.1: cannot open shared object file"})
    notice = found(capsys, 0)["OpenCV"]
    assert notice.state == "amiss"
    assert "libGL.so.1" in notice.told
    assert "apt-get install libxcb1 libgl1 libglib2.0-0" in notice.remedy
    assert "opencv-python-headless" in notice.remedy


def test_two_opencv_wheels_are_one_too_many(feign: Feign, capsys: Capsys) -> None:
    feign(opencv_python="5.0.0.93", opencv_python_headless="4.14.0.94")
    notice = found(capsys, 0)["OpenCV"]
    assert notice.state == "amiss"
    assert notice.told.startswith("2 wheels at once: opencv-python 5.0.0.93, ")
    assert "pip uninstall -y opencv-python opencv-python-headless" in notice.remedy


def test_extras_are_those_of_the_project(feign: Feign, capsys: Capsys) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: {re.match(r"[\w-]+", one)[0] for one in packages}  # pyright: ignore[reportOptionalSubscript]
        for name, packages in project["optional-dependencies"].items()
        if name != "dev"
    }
    assert {name: set(packages) for name, (_, packages) in EXTRAS.items()} == extras
    feign(onnx="1.23.2", onnxscript="", onnxruntime="1.31.1", transformers="")
    notices = found(capsys, 0)
    assert notices["onnx"].told == "models as ONNX files: onnxscript missing"
    assert notices["hf"].state == "note"
    assert "pip install 'visattn[hf]'" in notices["hf"].remedy


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(
    ("free", "state", "code"),
    [(5 * 10**9, "ok", 0), (9 * 10**8, "amiss", 0), (10**7, "broken", 1)],
)
def test_room_on_the_disk(
    free: int,
    state: str,
    code: int,
    feign: Feign,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feign()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**10, 10**10 - free, free))
    assert found(capsys, code)["room"].state == state


def test_little_shared_memory_is_amiss(
    feign: Feign, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    feign()
    small = Usage(64 * 10**6, 0, 64 * 10**6)
    real = shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: small if str(path) == "/dev/shm" else real(path)
    )
    monkeypatch.setattr(machine_checkups.sys, "platform", "linux")
    notice = found(capsys, 0)["shared memory"]
    assert notice.state == "amiss"
    assert notice.told == "64 MB of 64 MB free in /dev/shm"
    assert "--shm-size" in notice.remedy


def test_runs_must_have_a_place(
    feign: Feign, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    feign()
    assert found(capsys, 0)["runs/"].told == "is made by the first run"
    Path("runs").touch()
    assert "is a file, so runs cannot be kept" in found(capsys, 1)["runs/"].told
    Path("runs").unlink()
    monkeypatch.setattr(machine_checkups.os, "access", lambda _path, _mode: False)
    assert found(capsys, 1)["runs/"].told.endswith("cannot be written")
    assert not Path("runs").exists()


def test_data_are_looked_for(feign: Feign, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    feign()
    assert found(capsys, 0)["VISATTN_DATA"].state == "note"
    Path("data/MNIST/raw").mkdir(parents=True)
    Path("data/weights").mkdir()
    monkeypatch.setenv("VISATTN_DATA", "data")
    assert found(capsys, 0)["VISATTN_DATA"].told == "data: MNIST, weights"
    monkeypatch.setenv("VISATTN_DATA", "data/MNIST")
    notice = found(capsys, 0)["VISATTN_DATA"]
    assert notice.told == "data/MNIST: nothing that configs look for"
    assert "Flickr8k (flickr8k/)" in notice.remedy
    monkeypatch.setenv("VISATTN_DATA", "nowhere")
    assert found(capsys, 0)["VISATTN_DATA"].told == "nowhere is no folder"


def test_more_threads_than_processors_are_noted(
    feign: Feign, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    feign()
    monkeypatch.setitem(FACTS, "threads", 999)
    feign()
    notice = found(capsys, 0)["processors"]
    assert notice.state == "note"
    assert "export OMP_NUM_THREADS=" in notice.remedy
