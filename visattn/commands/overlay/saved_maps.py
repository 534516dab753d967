"""Maps from a file, laid on the photo that they were made from."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.folders import png, write_whole

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    import numpy as np

    from visattn.data.images.reader import LoadedImage
    from visattn.data.regions.saved_maps import MapFile
    from visattn.recording.attention_map import AttentionMap


def draw_given_maps(asked: argparse.Namespace) -> list[Path]:
    """Lay the maps of a file on one photo; return the files that were written, or would be.

    Args:
        asked: What the command line says.

    Raises:
        FileNotFoundError: If there is no such file of maps.
        ValueError: If photo, maps and what is said of them do not go together.
        OSError: If a file cannot be written.
    """
    from visattn.data.images.reader import read_image
    from visattn.data.regions.saved_maps import read_maps, shaped_maps

    photo = asked.images[0]
    image, given = read_image(photo), read_maps(asked.maps)
    words = asked.words or given.words
    try:
        values = shaped_maps(given.maps, words=len(words), grid=asked.map_grid)
    except ValueError as error:
        raise ValueError(f"{asked.maps}: {error}") from error
    maps = _placed(values, image, given, asked)
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
            _save(_overlay(image, maps, index, asked), path)
    single = file and len(maps) == 1
    last = _overlay(image, maps, 0, asked) if single else _panel(image, maps, given, asked)
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
    values: "np.ndarray", image: "LoadedImage", given: "MapFile", asked: argparse.Namespace
) -> "AttentionMap":
    """Return the maps in their place on the photo."""
    import torch

    from visattn.data.images.resize import ResizeSpec, frame
    from visattn.geometry.affine import Geometry
    from visattn.recording.attention_map import AttentionMap

    if given.geometry is not None and asked.fit is None:
        try:
            geometry = Geometry.from_dict(given.geometry)
        except ValueError as error:
            raise ValueError(f"{asked.maps}: {error}") from error
        if geometry.image_size != image.size:
            raise ValueError(
                f"{asked.maps} was made from an image of {geometry.image_size} pixels, "
                f"{image.name} has {image.size}; give the same photo"
            )
    else:
        framing = ResizeSpec(asked.size or (224, 224), asked.fit or "squash", asked.shorter)
        _, geometry = frame(image, framing)
    return AttentionMap(torch.from_numpy(values), str(asked.maps), "gradient", geometry)


def _top(maps: "AttentionMap", asked: argparse.Namespace) -> float:
    """Return the value that shows in full, by the rule that was chosen."""
    from visattn.pipelines.scale import map_scale

    if asked.high is not None:
        return asked.high
    return map_scale([maps], "percentile").high if asked.scale == "percentile" else maps.scale()[1]


def _overlay(
    image: "LoadedImage", maps: "AttentionMap", index: int, asked: argparse.Namespace
) -> "np.ndarray":
    from visattn.viz.maps.heatmap import overlay

    return overlay(
        image.pixels,
        maps[index].on_image(smooth=not asked.cells).numpy(),
        low=asked.low,
        high=_top(maps[index] if asked.scale == "image" else maps, asked),
        colors=asked.colors,
        opacity=asked.opacity,
        style=asked.style,
    )


def _panel(
    image: "LoadedImage", maps: "AttentionMap", given: "MapFile", asked: argparse.Namespace
) -> "np.ndarray":
    import numpy as np

    from visattn.viz.captions.panel import caption_panel
    from visattn.viz.layout.grid import tile_size

    drawn = maps.on_image(tile_size(image.size, len(maps)), smooth=not asked.cells).numpy()
    each = asked.scale == "image" and asked.high is None
    if each:
        tops = np.array([_top(one, asked) for one in maps], dtype=np.float32)
        drawn = drawn / tops[:, None, None]
    return caption_panel(
        image.pixels,
        given.words,
        drawn,
        log_probabilities=given.log_probabilities,
        gates=given.gates,
        low=asked.low,
        high=1.0 if each else _top(maps, asked),
        colors=asked.colors,
        opacity=asked.opacity,
        style=asked.style,
    )


def _save(drawn: "np.ndarray", path: Path) -> None:
    write_whole(path, png(drawn))
