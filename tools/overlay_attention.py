"""Lay attention maps on a photo, from a checkout: any model's maps, one file or a whole folder.

    python tools/overlay_attention.py PHOTO MAPS --out FILE.png
    python tools/overlay_attention.py dog.jpg maps.npy --fit crop --size 224 --out overlays/

MAPS is an array in a .npy, .npz or .json file: one map [y, x], several [t, y, x], or several with
their grid written in one row, [t, n] (with --grid, or with one word for each row and a square
grid). Or it is the JSON that `visattn caption` writes: then words and place are known.
"""

import argparse
import json
import math
import re
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from visattn.data.pictures import Picture
    from visattn.maps.attention_maps import AttentionMap

ROOT = Path(__file__).resolve().parents[1]
_LARGEST = 2**30  # bytes of a file of maps


@dataclass
class Given:
    """What the file of maps holds: the array, and what `visattn caption` says about it."""

    maps: np.ndarray
    words: list[str] = field(default_factory=list)
    geometry: dict[str, Any] | None = None
    gates: list[float] | None = None
    log_probabilities: list[float] | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the command line asks for; return 0. A mistake in it ends with a sentence and 2."""
    options = _parser()
    asked = options.parse_args(argv)
    if str(ROOT) not in sys.path:  # a checkout need not be installed
        sys.path.insert(0, str(ROOT))
    try:
        for path in _draw(asked):
            print(path)
    except (ValueError, OSError) as error:
        options.error(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="overlay_attention.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("photo", type=Path, metavar="PHOTO")
    add("maps", type=Path, metavar="MAPS")
    add("--out", type=Path, required=True, metavar="FILE_OR_DIR",
        help="FILE.png: the overlay, or for several maps a panel of all; DIR: every overlay at the "
        "size of the photo, and the panel")  # fmt: skip
    add("--fit", choices=["crop", "squash", "pad"],
        help="how the photo came into the network; squash, where the maps cover it all, unless the "
        "JSON says where they lie")  # fmt: skip
    add("--size", type=_sides, default=(224, 224), metavar="N|YxX", help="network input (224)")
    add("--shorter", type=int, metavar="N", help="with crop: the short side before the cut")
    add("--grid", type=_sides, metavar="N|YxX", help="the last axis of the array is this grid")
    add("--words", nargs="+", default=[], metavar="WORD", help="one for each map")
    add("--scale", choices=["shared", "each"], default="shared",
        help="one scale for all maps, or each map in full up to its own peak")  # fmt: skip
    add("--high", type=float, help="the value that shows in full (by --scale)")
    add("--low", type=float, default=0.0, help="the value that begins to show (0)")
    add("--colours", default="magma", help="a colour map of matplotlib (magma)")
    add("--style", choices=["heat", "light"], default="heat", help="colours, or the photo's light")
    add("--opacity", type=float, default=0.7, help="how far colours cover the photo (0.7)")
    add("--cells", action="store_true", help="show the cells of the grid, not smooth hills")
    return made


def _sides(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    y, x = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(y, x) < 1:
        raise argparse.ArgumentTypeError(f"must be N or HEIGHTxWIDTH, got {text!r}")
    return y, x


def _draw(asked: argparse.Namespace) -> list[Path]:
    """Write the files that are asked for and return their paths."""
    from visattn.data.pictures import read_picture

    picture, given = read_picture(asked.photo), _read(asked.maps)
    words = asked.words or given.words
    maps = _placed(_shaped(given.maps, len(words), asked.grid), picture, given, asked)
    if words and len(words) != len(maps):
        raise ValueError(
            f"there are {len(maps)} maps and {len(words)} words; give one word for each, "
            "or say with --grid that the last axis is a whole grid"
        )
    given.words = words or [str(number) for number in range(1, len(maps) + 1)]
    file = asked.out.suffix.lower() == ".png" and not asked.out.is_dir()
    paths = [asked.out] if file else _paths(asked.out, given.words)
    if asked.photo.resolve() in {path.resolve() for path in paths}:
        raise ValueError(f"--out would put an overlay in place of the photo {asked.photo}")
    if not file:
        for index, path in enumerate(paths[:-1]):
            _save(_overlay(picture, maps, index, asked), path)
    single = file and len(maps) == 1
    last = _overlay(picture, maps, 0, asked) if single else _panel(picture, maps, given, asked)
    _save(last, paths[-1])
    return paths


def _paths(folder: Path, words: Sequence[str]) -> list[Path]:
    """Make the folder; return where each map goes, and last the panel of all."""
    if folder.suffix and not folder.is_dir():
        raise ValueError(f"--out must be a .png file or a folder, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    plain = [re.sub(r"[^0-9A-Za-z-]+", "_", word)[:40] for word in words]
    names = [f"{index:02}_{word}.png" for index, word in enumerate(plain, start=1)]
    return [folder / name for name in [*names, "panel.png"]]


def _read(path: Path) -> Given:
    """Return what a file of maps holds; nothing in it is executed."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file of maps")
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path} is longer than {_LARGEST:,} bytes")
    readers = {".npy": _read_numpy, ".npz": _read_numpy, ".json": _read_json}
    if path.suffix.lower() not in readers:
        raise ValueError(f"maps must be a .npy, .npz or .json file, got {path.name}")
    try:
        return readers[path.suffix.lower()](path)
    except (ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}") from error


def _read_numpy(path: Path) -> Given:
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return Given(loaded)
    with loaded:
        name = "maps" if "maps" in loaded.files else loaded.files[0] if loaded.files else ""
        if len(loaded.files) != 1 and name != "maps":
            raise ValueError(f"must hold one array, or one called maps, got {loaded.files}")
        return Given(loaded[name])


def _read_json(path: Path) -> Given:
    loaded = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(loaded, list):
        return Given(np.array(loaded, dtype=np.float64))
    if not isinstance(loaded, dict) or "maps" not in loaded:
        raise ValueError("must be nested lists, or hold them under the key maps")
    return Given(
        np.array(loaded["maps"], dtype=np.float64),
        [str(word) for word in loaded.get("words") or loaded.get("tokens") or []],
        loaded.get("geometry"),
        loaded.get("gates"),
        loaded.get("log_probabilities"),
    )


def _shaped(maps: np.ndarray, words: int, grid: tuple[int, int] | None) -> np.ndarray:
    """Return an array as `[t, y, x]` in 32 bits."""
    if not (np.issubdtype(maps.dtype, np.number) or maps.dtype == np.bool_) or not maps.size:
        raise ValueError(f"maps must be numbers, got {maps.dtype} {maps.shape}")
    if grid is None and maps.ndim == 2 and words == len(maps) > 1:
        side = math.isqrt(maps.shape[1])
        grid = (side, side) if side * side == maps.shape[1] else None
    if grid is not None:
        if maps.shape[-1] != grid[0] * grid[1]:
            raise ValueError(f"a grid of {grid[0]} x {grid[1]} does not fill {maps.shape}")
        maps = maps.reshape(*maps.shape[:-1], *grid)
    if maps.ndim not in (2, 3):
        raise ValueError(f"maps must be [y, x], [t, y, x], or [t, n] with --grid, got {maps.shape}")
    maps = maps.reshape(-1, *maps.shape[-2:]).astype(np.float32)
    if not np.isfinite(maps).all():
        raise ValueError("maps must be finite, got NaN or infinity")
    return maps


def _placed(
    values: np.ndarray, picture: "Picture", given: Given, asked: argparse.Namespace
) -> "AttentionMap":
    """Return the maps in their place on the photo."""
    import torch

    from visattn.data.framings import Framing, frame
    from visattn.maps import AttentionMap, Geometry

    if given.geometry is not None and asked.fit is None:
        geometry = Geometry.from_dict(given.geometry)
        if geometry.picture_size != picture.size:
            raise ValueError(
                f"{asked.maps} was made from a picture of {geometry.picture_size} pixels, "
                f"{picture.name} has {picture.size}; give the same photo"
            )
    else:
        framing = Framing(asked.size, asked.fit or "squash", asked.shorter)
        _, geometry = frame(picture, framing)
    return AttentionMap(torch.from_numpy(values), str(asked.maps), "gradient", geometry)


def _top(maps: "AttentionMap", asked: argparse.Namespace) -> float:
    return maps.scale()[1] if asked.high is None else asked.high


def _overlay(
    picture: "Picture", maps: "AttentionMap", index: int, asked: argparse.Namespace
) -> np.ndarray:
    from visattn.viz.overlays import overlay

    return overlay(
        picture.pixels,
        maps[index].on_picture(smooth=not asked.cells).numpy(),
        low=asked.low,
        high=_top(maps[index] if asked.scale == "each" else maps, asked),
        colours=asked.colours,
        opacity=asked.opacity,
        style=asked.style,
    )


def _panel(
    picture: "Picture", maps: "AttentionMap", given: Given, asked: argparse.Namespace
) -> np.ndarray:
    from visattn.viz.layouts import tile_size
    from visattn.viz.panels import caption_panel

    drawn = maps.on_picture(tile_size(picture.size, len(maps)), smooth=not asked.cells).numpy()
    each = asked.scale == "each" and asked.high is None
    if each:
        tops = np.array([_top(one, asked) for one in maps], dtype=np.float32)
        drawn = drawn / tops[:, None, None]
    return caption_panel(
        picture.pixels,
        given.words,
        drawn,
        log_probabilities=given.log_probabilities,
        gates=given.gates,
        low=asked.low,
        high=1.0 if each else _top(maps, asked),
        colours=asked.colours,
        opacity=asked.opacity,
        style=asked.style,
    )


def _save(drawn: np.ndarray, path: Path) -> None:
    from PIL import Image

    Image.fromarray(drawn).save(path)


if __name__ == "__main__":
    sys.exit(main())
