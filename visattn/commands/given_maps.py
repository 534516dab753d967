"""Maps from a file, laid on the photo that they were made from."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.folders import png, write_whole

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    import numpy as np

    from visattn.data.map_files import MapFile
    from visattn.data.pictures import Picture
    from visattn.maps.attention_maps import AttentionMap


def draw_given_maps(asked: argparse.Namespace) -> list[Path]:
    """Lay the maps of a file on one photo; return the files that were written, or would be.

    Args:
        asked: What the command line says.

    Raises:
        FileNotFoundError: If there is no such file of maps.
        ValueError: If photo, maps and what is said of them do not go together.
        OSError: If a file cannot be written.
    """
    from visattn.data.map_files import read_maps, shaped_maps
    from visattn.data.pictures import read_picture

    photo = asked.pictures[0]
    picture, given = read_picture(photo), read_maps(asked.maps)
    words = asked.words or given.words
    try:
        values = shaped_maps(given.maps, words=len(words), grid=asked.map_grid)
    except ValueError as error:
        raise ValueError(f"{asked.maps}: {error}") from error
    maps = _placed(values, picture, given, asked)
    if words and len(words) != len(maps):
        raise ValueError(
            f"there are {len(maps)} maps and {len(words)} words; give one word for each, "
            "or say with --map-grid that the last axis is a whole grid"
        )
    given.words = words or [str(number) for number in range(1, len(maps) + 1)]
    file = asked.out.suffix.lower() == ".png" and not asked.out.is_dir()
    paths = [asked.out] if file else _paths(asked.out, given.words)
    if photo.resolve() in {path.resolve() for path in paths}:
        raise ValueError(f"--out would put an overlay in place of the photo {photo}")
    if asked.dry_run:
        return paths
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    if not file:
        for index, path in enumerate(paths[:-1]):
            _save(_overlay(picture, maps, index, asked), path)
    single = file and len(maps) == 1
    last = _overlay(picture, maps, 0, asked) if single else _panel(picture, maps, given, asked)
    _save(last, paths[-1])
    return paths


def _paths(folder: Path, words: Sequence[str]) -> list[Path]:
    """Return where each map goes, and last the panel of all."""
    if folder.suffix and not folder.is_dir():
        raise ValueError(f"--out must be a .png file or a folder, got {folder}")
    plain = [re.sub(r"[^0-9A-Za-z-]+", "_", word)[:40] for word in words]
    names = [f"{index:02}_{word}.png" for index, word in enumerate(plain, start=1)]
    return [folder / name for name in [*names, "panel.png"]]


def _placed(
    values: "np.ndarray", picture: "Picture", given: "MapFile", asked: argparse.Namespace
) -> "AttentionMap":
    """Return the maps in their place on the photo."""
    import torch

    from visattn.data.framings import Framing, frame
    from visattn.maps import AttentionMap, Geometry

    if given.geometry is not None and asked.fit is None:
        try:
            geometry = Geometry.from_dict(given.geometry)
        except ValueError as error:
            raise ValueError(f"{asked.maps}: {error}") from error
        if geometry.picture_size != picture.size:
            raise ValueError(
                f"{asked.maps} was made from a picture of {geometry.picture_size} pixels, "
                f"{picture.name} has {picture.size}; give the same photo"
            )
    else:
        framing = Framing(asked.size or (224, 224), asked.fit or "squash", asked.shorter)
        _, geometry = frame(picture, framing)
    return AttentionMap(torch.from_numpy(values), str(asked.maps), "gradient", geometry)


def _top(maps: "AttentionMap", asked: argparse.Namespace) -> float:
    """Return the value that shows in full, by the rule that was chosen."""
    from visattn.seeing.map_scales import map_scale

    if asked.high is not None:
        return asked.high
    return map_scale([maps], "percentile").high if asked.scale == "percentile" else maps.scale()[1]


def _overlay(
    picture: "Picture", maps: "AttentionMap", index: int, asked: argparse.Namespace
) -> "np.ndarray":
    from visattn.viz.overlays import overlay

    return overlay(
        picture.pixels,
        maps[index].on_picture(smooth=not asked.cells).numpy(),
        low=asked.low,
        high=_top(maps[index] if asked.scale == "picture" else maps, asked),
        colours=asked.colours,
        opacity=asked.opacity,
        style=asked.style,
    )


def _panel(
    picture: "Picture", maps: "AttentionMap", given: "MapFile", asked: argparse.Namespace
) -> "np.ndarray":
    import numpy as np

    from visattn.viz.layouts import tile_size
    from visattn.viz.panels import caption_panel

    drawn = maps.on_picture(tile_size(picture.size, len(maps)), smooth=not asked.cells).numpy()
    each = asked.scale == "picture" and asked.high is None
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


def _save(drawn: "np.ndarray", path: Path) -> None:
    write_whole(path, png(drawn))
