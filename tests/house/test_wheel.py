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


WORK = """
import visattn as va
from visattn.cli import main
print(va.__file__, type(va.load("scenes-glimpses")).__name__)
fit = "fit --config scenes_demo --trainer.max_steps 2 --trainer.val_check_interval 2"
fit += " --trainer.limit_val_batches 1 --data.source.train 32 --data.source.val 16"
fit += " --data.batch_size 16"
overlay = "overlay photo.png --model timm:resnet18 --model-args pretrained=false --method gradcam"
overlay += " --out maps --input-size 32"
for command in ("configs", overlay, "demo photo.png", fit):
    assert main(command.split()) == 0, command
"""


@pytest.mark.slow
def test_an_installed_wheel_draws_captions_and_trains_with_what_it_brings(
    installed: Path, tmp_path: Path
) -> None:
    Image.fromarray(np.full((37, 53, 3), 90, np.uint8)).save(tmp_path / "photo.png")
    printed = run(installed, "-c", WORK, cwd=tmp_path)
    where, kind = printed.splitlines()[0].split()
    assert where.startswith(str(installed.parents[1]))
    assert kind == "RecurrentAttentionModel"
    assert "scenes_demo" in printed
    assert list((tmp_path / "maps").glob("*.png"))
    assert (tmp_path / "visattn-demo" / "captions" / "photo.html").is_file()
    assert (tmp_path / "runs" / "scenes_demo" / "1" / "checkpoints" / "last.ckpt").is_file()
