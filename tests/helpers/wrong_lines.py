"""Command lines with one wrong value each, run in this process, and what comes of them.

    python tests/helpers/wrong_lines.py FIRST STEP FOLDER

tries every STEP-th line from number FIRST in a sandbox and prints one line of JSON for each that
fails the rules.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from command_sandbox import fill

from visattn import cli

WRONG = (
    "", "x", "-1", "0", "1.5", "nan", "1e999", "9" * 400, "no/such/file", "torn.ckpt",
    "photos/dog.png", "empty", "\x1b[2J", "é\u202e", "[" * 3000, "a=b", "{", "None",
)  # fmt: skip
BASES = {
    "demo": "demo --count 0",
    "caption": "caption photos/dog.png --weights captioner.safetensors --dry-run",
    "overlay": "overlay photos/dog.png --model cnn.safetensors --dry-run",
    "glimpse": "glimpse photos/dog.png --weights eye.safetensors --dry-run",
    "ask": "ask photos/dog.png red --weights asks.safetensors --dry-run",
    "detect": "detect photos/dog.png --weights boxes.safetensors --dry-run",
    "segment": "segment photos/dog.png --weights cnn.safetensors --dry-run",
    "export": "export runs/tried/1/checkpoints/best.ckpt --dry-run",
    "score captions": "score captions captions.txt --references references.csv",
    "score maps": "score maps --model cnn.safetensors --data photos --dry-run",
    "score words": "score words --weights captioner.safetensors --data no_such",
    "data scenes": "data scenes --count 0",
    "data shards": "data shards --photos none",
    "index": "index none",
    "models": "models none",
    "configs": "configs none",
    "blocks": "blocks none",
    "doctor": "doctor none",
}
TRAINING = ("fit", "validate", "test")
TRAINING_OPTIONS = (
    "--config", "--run", "--ckpt_path", "--timeout", "--model", "--data", "--trainer",
)  # fmt: skip


def wrong_lines() -> Iterator[list[str]]:
    """Yield every option of every command with every wrong value, and training commands."""
    for name, base in BASES.items():
        words, rest = name.split(), shlex.split(base)[len(name.split()) :]
        parser = _parser(words)
        for action in parser._actions:
            options = [each for each in action.option_strings if each.startswith("--")]
            if isinstance(action, argparse._HelpAction):
                continue
            for value in WRONG:
                if not options:
                    yield [*words, value, *rest[1:]]
                elif action.nargs == 0:
                    yield [*words, *rest, f"{options[0]}={value}"]
                else:
                    yield [*words, *_without(rest, options[0]), options[0], value]
        yield [*words, "--no-such-option"]
    for name in TRAINING:
        for option in TRAINING_OPTIONS:
            for value in WRONG:
                yield [name, option, value]


def _parser(words: list[str]) -> argparse.ArgumentParser:
    parser = importlib.import_module(cli.COMMANDS[words[0]][1]).build_parser()
    for word in words[1:]:
        actions = [each for each in parser._actions if hasattr(each, "choices") and each.choices]
        parser = next(each.choices[word] for each in actions if word in (each.choices or {}))
    return parser


def _without(words: list[str], option: str) -> list[str]:
    """Return words without an option and its value."""
    if option not in words:
        return words
    at = words.index(option)
    return words[:at] + words[at + (1 if option == "--dry-run" else 2) :]


def faults(line: list[str]) -> list[str]:
    """Run a line; return what is wrong with what comes of it."""
    out, err, start = io.StringIO(), io.StringIO(), time.thread_time()
    wrong: list[str] = []
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            code = cli.main(line)
        except BaseException as error:  # noqa: BLE001 (which is what is looked for)
            wrong.append(f"traceback: {type(error).__name__}: {str(error)[:200]}")
            code = -1
    text = err.getvalue()
    printed = out.getvalue() + text
    strange = [each for each in printed if not each.isprintable() and each not in "\n\t"]
    if strange:
        wrong.append(f"control characters {strange[:3]!r}")
    if "Traceback" in printed:
        wrong.append("prints a traceback")
    if code in (1, 2) and not text.strip():
        wrong.append(f"exit code {code} without a message")
    if code not in (-1, 0, 1, 2):
        wrong.append(f"exit code {code}")
    if len(text) > 6000:
        wrong.append(f"{len(text):,} characters")
    if time.thread_time() - start > 10:
        wrong.append("over ten seconds")
    return wrong


if __name__ == "__main__":
    first, step, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    sandbox = folder / "sandbox"
    sandbox.mkdir()
    fill(sandbox)
    os.chdir(sandbox)
    sys.argv = ["visattn"]
    listed = list(wrong_lines())[first::step]
    bad = 0
    for line in listed:
        if reasons := faults(line):
            bad += 1
            shown = [word if len(word) < 60 else f"{word[:57]}..." for word in line]
            sys.stdout.write(json.dumps({"line": shlex.join(shown), "faults": reasons}) + "\n")
    sys.stdout.write(json.dumps({"lines": len(listed), "faulty": bad}) + "\n")
