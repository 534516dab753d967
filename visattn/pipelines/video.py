"""Maps of video frames: a video of overlays and a contact sheet."""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.images.video import frame_rate, read_frames, write_mp4
from visattn.pipelines.explainer import Explainer
from visattn.results.attention_map import AttentionMap
from visattn.results.scale import map_scale
from visattn.viz.figures import Tile, png, sheet
from visattn.viz.heatmap import DrawOptions
from visattn.viz.maps import method_title, target_line

_ON_SHEET = 24  # frames of the contact sheet


def overlay_video(
    explainer: Explainer,
    source: str | os.PathLike[str],
    out: Path,
    method: str,
    target: Any = None,
    *,
    every: int = 1,
    batch_size: int = 16,
    drawing: DrawOptions | None = None,
    **method_args: Any,
) -> int:
    """Write the overlays of every n-th frame of a video to `OUT.mp4`, a selection to `OUT.png`.

    All frames share one color scale, so the file is read twice.

    Args:
        explainer: The model with its preprocessing.
        source: The video file.
        out: Files to write, without suffix.
        method: Name of a method, as for `visattn.explain`.
        target: Class to explain; None explains the predicted class of each frame.
        every: Explain every n-th frame; the video has only these.
        batch_size: Frames per batch.
        drawing: Style, colormap and opacity.
        method_args: Arguments of the method.

    Returns:
        The number of frames of the video.

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If a file cannot be written.
        VideoError: If the video cannot be read.
        ValueError: If the method does not fit the model.
    """
    frames, maps = read_frames(source, every=every), list[AttentionMap]()
    while batch := list(islice(frames, batch_size)):
        maps += explainer.map(explainer.prepare(batch), method, target, **method_args)
    rate, tiles = frame_rate(source) / every, list[Tile]()
    scale = map_scale([each for each in maps if not each.info.empty] or maps, "global")
    drawing = replace(drawing or DrawOptions(), vmin=scale.vmin, vmax=scale.vmax)

    def drawn() -> Iterator[UInt8[np.ndarray, "y x 3"]]:
        pairs = zip(read_frames(source, every=every), maps, strict=True)
        for index, (pixels, each) in enumerate(pairs):
            values = each.resize_to_image().numpy()
            frame = drawing.draw(pixels, values, signed=scale.signed)
            if index % -(-len(maps) // _ON_SHEET) == 0:
                title = f"{index / rate:.2f} s"
                tiles.append(Tile(pixels, each, scale, title, note=target_line(each)))
            yield frame

    write_mp4(out.with_name(f"{out.name}.mp4"), drawn(), rate)
    note = f"{method_title(maps[0])}, {len(maps)} frames"
    out.with_name(f"{out.name}.png").write_bytes(png(sheet([tiles], drawing, notes=(note,))))
    return len(maps)
