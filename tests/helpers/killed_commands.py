"""Commands that are killed over the results of other settings, at each of their steps on the disk.

`python killed_commands.py FOLDER NAME EVERY` prints, as JSON, how many runs were killed and which
files differ from those of an unbroken run after the command was repeated. A process of its own
forks the runs, so that it never has threads.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

import torch
from command_sandbox import fill
from killed_steps import killed_at

from visattn.cli import main
from visattn.io.written_files import RECORD

ONE = "--batch-size 1"  # in other batches sums round in another way
GRADCAM = f"overlay photos --model cnn.safetensors {ONE} --method gradcam"
COMMANDS = {  # words, and more words for other settings
    "caption": (f"caption photos --model captioner.safetensors {ONE}", "--beam-size 2 --gif"),
    "ask": ("ask photos color? --model asks.safetensors", "--num-answers 2"),
    "glimpse": (f"glimpse photos --model eye.safetensors {ONE}", "--resize-mode squash"),
    "segment": ("segment photos --model areas.safetensors", "--resize-mode crop"),
    "detect": ("detect photos --model boxes.safetensors --threshold 0", "--layer 0"),
    "overlay": (f"{GRADCAM} occlusion", "--target ant"),
    "overlay-scale": (f"{GRADCAM} --normalize global", "--target ant"),
    "overlay-explorer": (f"{GRADCAM} --explorer", "--colormap jet"),
    "score-maps": (
        "score maps --model cnn.safetensors --data photos --masks masks --methods gradcam "
        "--scores localization",
        "--tolerance 2",
    ),
    "score-words": (
        "score words --model captioner.safetensors --data scenes:scenes_demo --limit 2",
        "--methods gradcam",
    ),
    "overlay-video": (
        "overlay clip.mp4 --model cnn.safetensors --method input_gradient",
        "--target ant",
    ),
}


def run(words: str, out: str) -> None:
    """Run a command line, without its prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main([*words.split(), "--out", out])
    if code != 0:
        raise RuntimeError(printed.getvalue())


def forked(words: str, out: str) -> None:
    """Run a command line in a process of its own."""
    if child := os.fork():
        if os.waitpid(child, 0)[1] != 0:
            raise RuntimeError(f"{words} failed")
        return
    run(words, out)
    os._exit(0)


def contents(folder: str) -> dict[str, bytes]:
    """Return all files but the record of shared files, which keeps earlier digests."""
    paths = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != RECORD)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def differences(name: str, every: int) -> dict[str, object]:
    """Kill a run at every n-th of its steps; return what differs after the repeated commands."""
    first, more = COMMANDS[name]
    second = f"{first} {more}"
    forked(first, "first")
    forked(second, "second")
    wanted = {first: contents("first"), second: contents("second")}
    killed, wrong, step = 0, [], 0
    while True:
        out = f"out-{step}"
        shutil.copytree("first", out)
        if not killed_at(step, lambda out=out: run(second, out)):
            break
        killed += 1
        for words in (first, second):
            forked(words, out)
            now = contents(out)
            changed = [
                path for path in {*now, *wanted[words]} if now.get(path) != wanted[words].get(path)
            ]
            wrong += [f"step {step}, {words}: {path}" for path in changed]
        shutil.rmtree(out)
        step += every
    return {"killed": killed, "wrong": wrong}


def add_models(folder: Path) -> None:
    """Add a segmentation model and a clip to the sandbox."""
    from video_data import block_frame, write_clip

    import visattn as va
    from visattn.models import SmallEncoder, UNet

    torch.manual_seed(0)
    unet = UNet(("sky", "ant", "bee"), SmallEncoder((24, 40), channels=8), block="gate")
    va.save(unet, folder / "areas.safetensors")
    write_clip(folder / "clip.mp4", [block_frame(4 * i, 2 * i) for i in range(3)])


if __name__ == "__main__":
    place = Path(sys.argv[1])
    os.chdir(place)
    if not (filler := os.fork()):  # this process never computes: its threads would be missing
        fill(place)
        add_models(place)
        os._exit(0)
    os.waitpid(filler, 0)
    sys.stdout.write(json.dumps(differences(sys.argv[2], int(sys.argv[3]))))
