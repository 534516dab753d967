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

from command_sandbox import fill
from killed_steps import killed_at

from visattn.cli import main

ONE = "--batch-size 1"  # in other batches sums round in another way
COMMANDS = {  # words, and more words for other settings
    "caption": (f"caption photos --model captioner.safetensors {ONE}", "--beam-size 2"),
    "overlay-scale": (
        f"overlay photos --model cnn.safetensors {ONE} --method gradcam --normalize global",
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
    """Return all files but temporary ones of killed processes."""
    paths = (path for path in Path(folder).rglob("[!.]*") if path.is_file())
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


if __name__ == "__main__":
    place = Path(sys.argv[1])
    os.chdir(place)
    if not (filler := os.fork()):  # this process never computes: its threads would be missing
        fill(place)
        os._exit(0)
    os.waitpid(filler, 0)
    sys.stdout.write(json.dumps(differences(sys.argv[2], int(sys.argv[3]))))
