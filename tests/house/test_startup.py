"""Imports are light: fast help, and no heavy package before it is needed."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "torchvision", "timm", "lightning", "numpy", "PIL", "cv2", "matplotlib", "rich"}
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "visattn").rglob("*.py"))
]
REPORT = "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
COMMANDS = ("fit", "test", "blocks", "caption", "overlay", "glimpse", "export", "data", "score")
HELPS = ["--help", "--version", "", *(f"{name} --help" for name in COMMANDS)]
HELPS += ["score captions --help", "score maps --help"]


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    # Shape checks are not part of the installed package.
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "JAXTYPING_DISABLE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize("words", HELPS)
def test_help_takes_under_half_a_second_and_loads_nothing_heavy(words: str) -> None:
    before = cpu_seconds()
    done = run(
        f"import sys; from visattn.cli import main; main(sys.argv[1:]); {REPORT}", *words.split()
    )
    assert cpu_seconds() - before < 0.5
    assert "visattn" in done.stdout
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.slow
def test_a_block_loads_only_torch() -> None:
    done = run(f"import sys, visattn.blocks.cbam, visattn.functional; {REPORT}")
    assert HEAVY & {*done.stderr.split()} == {"torch", "numpy"}  # torch imports numpy


@pytest.mark.slow
def test_commands_load_no_libraries_of_models_that_they_do_not_run(tmp_path: Path) -> None:
    program = f"""
import sys
from PIL import Image
from visattn.cli import main
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.saving import save
from visattn.results.kinds import SPECIAL_TOKENS

photo, model = {str(tmp_path / "a.png")!r}, {str(tmp_path / "a.safetensors")!r}
Image.new("RGB", (37, 41), "red").save(photo)
words = (*SPECIAL_TOKENS, "red")
encoder = SmallEncoder((16, 32), channels=4)
captioner = ShowAttendTell(words, encoder, embed_dim=3, hidden_size=5, attention_dim=3)
save(captioner, model)
assert main(["caption", photo, "--model", model, "--out", {str(tmp_path / "c")!r}]) == 0
zoos = {{"timm", "torchvision"}} & set(sys.modules)
assert not zoos, zoos
"""
    run(program)


@pytest.mark.slow
def test_every_module_imports_alone_and_without_opencv() -> None:
    # On a bare machine opencv-python lacks its system libraries and cannot be imported; and what
    # only imports after something else has, fails for whoever needs it alone.
    program = """
import importlib, os, sys, traceback
sys.modules["cv2"] = None
import lightning.pytorch.cli, matplotlib, timm, torchvision  # once for all; visattn is what we ask
for name in sys.argv[1:]:
    child = os.fork()  # each in a process of its own, without paying for torch each time
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            print(name, traceback.format_exc(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert run(program, *MODULES).stdout == ""
    assert "visattn.pipelines" in MODULES
