"""The wheel builds offline, installs into a bare environment and works there."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output; fail with what it printed."""
    words = [str(word) for word in command]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in an environment with the wheel and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    run(*pip, *build, cwd=folder)
    home = folder / "environment"
    venv.create(home, with_pip=False)
    [packages] = home.glob("lib/python*/site-packages")
    [wheel] = folder.glob("visattn-*.whl")
    run(*pip, "install", "--no-deps", "--target", packages, wheel, cwd=folder)
    # Only the packages themselves: the editable install of this environment is not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


@pytest.mark.slow  # it imports all that this environment has
def test_an_installed_wheel_runs_doctor(installed: Path, tmp_path: Path) -> None:
    assert "torch" in run(installed, "-m", "visattn", "doctor", cwd=tmp_path)


def test_an_installed_wheel_lists_configs_and_draws_an_overlay(
    installed: Path, tmp_path: Path
) -> None:
    Image.fromarray(np.full((37, 53, 3), 90, np.uint8)).save(tmp_path / "photo.png")
    where = run(installed, "-c", "import visattn; print(visattn.__file__)", cwd=tmp_path)
    assert str(installed.parents[1]) in where
    assert "scenes_demo" in run(installed, "-m", "visattn", "configs", cwd=tmp_path)
    command = "overlay photo.png --model timm:resnet18 --method gradcam --out maps --input-size 32"
    run(installed, "-m", "visattn", *command.split(), cwd=tmp_path)
    assert list((tmp_path / "maps").glob("*.png"))


def test_an_installed_wheel_brings_trained_models(installed: Path, tmp_path: Path) -> None:
    program = "import visattn as va; print(type(va.load('scenes-glimpses')).__name__); "
    program += "from visattn.cli import main; print(main(['demo', '--count', '1']))"
    printed = run(installed, "-c", program, cwd=tmp_path).splitlines()
    assert (printed[0], printed[-1]) == ("RecurrentAttentionModel", "0")
    assert (tmp_path / "visattn-demo" / "captions" / "test-0.html").is_file()


def test_an_installed_wheel_trains_a_config_by_its_name(installed: Path, tmp_path: Path) -> None:
    command = "fit --config scenes_demo --trainer.max_steps 2 --trainer.val_check_interval 2"
    command += " --trainer.limit_val_batches 1 --data.train 32 --data.val 16 --data.batch_size 16"
    run(installed, "-m", "visattn", *command.split(), cwd=tmp_path)
    assert (tmp_path / "runs" / "scenes_demo" / "1" / "checkpoints" / "last.ckpt").is_file()
