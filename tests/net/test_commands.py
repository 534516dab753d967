"""Output of every command prints and writes for two photos: tables, records, pages and images."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_values import KEPT, Keep
from PIL import Image

from visattn.cli import main

# NAME: a command without visattn, where OUT is the folder that is looked at
LINES = (Path(__file__).parent / "commands.txt").read_text().splitlines()
CASES = dict(line.split(": ", 1) for line in LINES)
SIDE = 240  # pixels of a kept name
GRAY_LEVELS = 2.0
# what is drawn as an array; figures are matplotlib's, and letters differ between its releases
ARRAYS = re.compile(r"\.(gradcam|occlusion|attention)\.png$|^(masks|overlays)/|^test-")
VOLATILE = ("torch", "visattn", "sha256", "thumbnail")


@pytest.mark.parametrize("name", CASES)
def test_output_and_files(
    name: str,
    sandbox: Path,
    keep: Keep,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(sandbox)
    monkeypatch.setattr(sys, "argv", ["visattn"])
    monkeypatch.setenv("COLUMNS", "80")
    out = sandbox / "results" / name
    words = [word.replace("OUT", f"results/{name}") for word in shlex.split(CASES[name])]
    torch.manual_seed(0)
    code = main(words)
    printed = capsys.readouterr()
    # Without the record of written files, whose digests depend on the encoders of images.
    files = sorted(path for path in out.rglob("[!.]*") if path.is_file())
    keep(
        f"commands/{name}",
        {
            "command": CASES[name],
            "code": code,
            "stdout": _numbered(printed.out),
            "stderr": _numbered(printed.err),
            "files": {path.relative_to(out).as_posix(): _content(path) for path in files},
        },
    )
    for path in (path for path in files if ARRAYS.search(path.relative_to(out).as_posix())):
        image_name = f"{name}-{path.relative_to(out).as_posix().replace('/', '-')}"
        _compare_image(image_name, path, writing=bool(request.config.getoption("--write-golden")))


def _numbered(text: str) -> Any:
    """Return lines as texts and numbers, so that the numbers may be rounded in another way."""
    return [_split(line) for line in text.splitlines()]


def _split(line: str) -> Any:
    parts = re.split(r"(?<![\w.-])(-?\d+\.\d+)(?![\w.])", line)
    if len(parts) == 1:
        return line
    return [float(part) if index % 2 else part for index, part in enumerate(parts)]


def _content(path: Path) -> Any:
    """Return what can be compared of a file: records, texts, sizes of arrays and images."""
    if path.suffix == ".json":
        return _lasting(json.loads(path.read_text()))
    if path.suffix in (".csv", ".jsonl", ".md", ".txt"):
        return _numbered(path.read_text())
    if path.suffix == ".html":
        return _numbered(_structure(path.read_text()))
    if path.suffix in (".png", ".jpg"):
        with Image.open(path) as image:
            return [image.mode, *image.size]
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {key: _values(arrays[key]) for key in arrays}
    return None


def _values(array: np.ndarray) -> Any:
    """Return a map; of the arrays of captions, whose records have the values, dtype and shape."""
    return array if array.ndim == 2 else [str(array.dtype), list(array.shape)]


def _lasting(value: Any) -> Any:
    """Return a record without versions, hashes and what depends on encoders of images."""
    if isinstance(value, dict) and isinstance(value.get("files"), list):
        value = {**value, "files": sorted(value["files"])}
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in value.items() if key not in VOLATILE}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def _structure(page: str) -> str:
    """Return a page without its styles, scripts and images, a tag per line."""
    page = re.sub(r"<(style|script)\b[^>]*>.*?</\1>", r"<\1>", page, flags=re.DOTALL)
    page = re.sub(r"sha256-[\w/+=]+", "sha256", page)
    page = re.sub(r"data:[\w/+-]+;base64,[\w+/=]+", "data", page)
    return re.sub(r">\s*<", ">\n<", page)


def _compare_image(name: str, path: Path, *, writing: bool) -> None:
    with Image.open(path) as image:
        whole = image.convert("RGB")
    whole.thumbnail((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=None)
    kept = KEPT / "images" / name
    if writing:
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole.save(kept, optimize=True)
        return
    with Image.open(kept) as before:
        difference = np.abs(np.asarray(before, float) - np.asarray(whole, float))
    assert difference.max() <= GRAY_LEVELS, f"{name} differs by {difference.max():.0f} gray levels"
