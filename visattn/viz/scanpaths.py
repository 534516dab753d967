"""Figures of scan paths of glimpse models: windows, patches and class probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.scale import MapScale
from visattn.results.values import ScanPath, format_percent
from visattn.viz.figures import (
    FAINT,
    LINE,
    MARGIN,
    MUTED,
    TEXT,
    WIDTH,
    Figure,
    Tile,
    axes_in_rows,
    halo,
    inches,
    outline,
    png,
    rgb,
    sheet,
    show,
    style,
)
from visattn.viz.heatmap import DrawOptions, colormap_lut, resize_image
from visattn.viz.maps import check_photo
from visattn.viz.text import fit_text, join_notes

_FIRST, _LAST = 80, 240  # colormap indices that are visible on black and on white
_DIMMED = 0.5  # brightness outside all glimpses
_MARGIN = 0.15  # maximum margin around the image, for glimpses outside of it
_MARKER = 0.075  # radius of the circle of a number, in inches
_UNSEEN = 40  # gray level of the mosaic outside all glimpses
_PATCH = 0.75  # maximum side of a patch, in inches
_CLASSES = 5  # number of classes in the plot of probabilities
_TIMES = "\N{MULTIPLICATION SIGN}"


def glimpse_colors(count: int) -> Float[np.ndarray, "t 3"]:
    """Return a color for each glimpse, from violet for the first to yellow for the last.

    Example:
        >>> (255 * glimpse_colors(2)).round().astype(int).tolist()
        [[149, 17, 161], [248, 223, 36]]
    """
    return colormap_lut("plasma")[np.linspace(_FIRST, _LAST, count).round().astype(int)] / 255


def draw_scan_path(ax: Axes, image: ImageLike, scan: ScanPath) -> None:
    """Draw the windows of a glimpse model on an image, which is dimmed outside of them.

    Each glimpse has the box of its finest scale, with its number at the corner; the last one has
    the boxes of all scales. Lines from box to box show the order.

    Args:
        ax: Axes of matplotlib; their coordinates become pixels of the image.
        image: The original image.
        scan: Its scan path.

    Raises:
        ValueError: If the scan path belongs to an image of another size.
    """
    photo, scan = _read(image, scan)
    boxes, colors = scan.boxes.numpy(), glimpse_colors(len(scan.boxes))
    height, width = photo.shape[:2]

    def dimmed(size: tuple[int, int]) -> UInt8[np.ndarray, "y x 3"]:
        placed = boxes * np.tile([size[1] / width, size[0] / height], 2)
        return _dim_outside(resize_image(photo, size), placed)

    limit, finest = _MARGIN * max(height, width), boxes[:, 0]
    low = np.maximum(finest[:, :2].min(0), -limit).clip(max=0)
    high = np.minimum(finest[:, 2:].max(0), np.array([width, height]) + limit)
    high = np.maximum(high, [width, height])
    show(ax, (height, width), dimmed, (*low.tolist(), *high.tolist()))
    ax.set_facecolor(FAINT)
    for scale in range(1, boxes.shape[1]):
        outline(ax, boxes[-1, scale], (*colors[-1], 0.6), 0.6)
    for box, color in zip(finest, colors, strict=True):
        outline(ax, box, color, 1.4)
    for start, end, color in zip(finest, finest[1:], colors[1:], strict=False):
        if line := _line_between(start, end):
            ax.plot(*np.transpose(line), color=color, linewidth=1.2, path_effects=halo(1.2))
    ax.apply_aspect()
    inch = (high[0] - low[0]) / inches(ax)[0]
    radius = _MARKER * inch
    corners = np.clip(finest[:, :2] - 0.6 * radius, low + radius, high - radius)
    places = _separate_points(corners, 2.1 * radius)
    places = places.clip(low + radius, np.maximum(high, low + 2 * radius) - radius)
    for number, place in enumerate(places):
        _draw_number(ax, place.tolist(), number, colors[number])
    for index, text in scan.tags.items():
        left, top, _, bottom = finest[index]
        above = top > 0.2 * inch
        ax.text(max(left, low[0]), top if above else bottom, fit_text(text, 2.0), clip_on=True,
                va="bottom" if above else "top", color=_on(colors[index]),
                bbox={"facecolor": colors[index], "edgecolor": "none", "pad": 1.0})  # fmt: skip


def _draw_number(ax: Axes, place: Sequence[float], number: int, color: Any) -> None:
    """Draw the number of a glimpse, from 0, in a circle."""
    x, y = place
    ax.plot([x], [y], "o", markersize=144 * _MARKER, color=color, markeredgecolor="#101014",
            markeredgewidth=0.6, clip_on=False)  # fmt: skip
    ax.text(x, y, str(number + 1), ha="center", va="center_baseline", color=_on(color),
            fontsize=7 if number < 9 else 5.5)  # fmt: skip


def _on(color: Float[np.ndarray, " 3"]) -> str:
    """Return a text color for a background: dark on bright, bright on dark."""
    return TEXT if color @ [0.3, 0.59, 0.11] > 0.47 else "white"


def _dim_outside(
    image: UInt8[np.ndarray, "y x 3"], boxes: Float[np.ndarray, "t s 4"]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image, darker outside the boxes of the finest scale."""
    scales = boxes.shape[1]
    brightness = np.full(image.shape[:2], _DIMMED, np.float32)
    for scale in reversed(range(scales)):  # the finest scale overwrites coarser ones
        # For two scales: 1 in the finer, 0.75 in the coarser, and 0.5 outside.
        level = 1 - (1 - _DIMMED) * scale / scales
        for left, top, right, bottom in boxes[:, scale].round().astype(int).clip(0).tolist():
            brightness[top:bottom, left:right] = level
    return np.rint(image * brightness[..., None]).astype(np.uint8)


def _line_between(
    start: Float[np.ndarray, " 4"], end: Float[np.ndarray, " 4"]
) -> list[Float[np.ndarray, " 2"]]:
    """Return the part outside both boxes of the line between their centers.

    The content of the boxes stays visible. Overlapping boxes have no line.
    """
    first, last = ((box[:2] + box[2:]) / 2 for box in (start, end))
    step = last - first
    length = np.maximum(np.abs(step), 1e-9)
    leaves = float(((start[2:] - start[:2]) / 2 / length).min())
    enters = 1 - float(((end[2:] - end[:2]) / 2 / length).min())
    return [] if leaves >= enters else [first + share * step for share in (leaves, enters)]


def _separate_points(points: Float[np.ndarray, "t 2"], distance: float) -> Float[np.ndarray, "t 2"]:
    """Return points moved apart to a minimum distance (at most 80 iterations)."""
    moved = points.astype(np.float64)
    # Coincident points have no direction in which they could be moved apart.
    golden = np.arange(len(points)) * 2.39996  # golden angle: distinct directions
    moved += 1e-3 * distance * np.stack([np.cos(golden), np.sin(golden)], -1)
    for _ in range(80):
        gap = moved[:, None] - moved
        length = np.linalg.norm(gap, axis=-1) + np.eye(len(moved)) * 1e9
        push = np.clip(distance - length, 0, None) / 2
        if not push.any():
            break
        moved += (gap / length[..., None] * push[..., None]).sum(1) * 0.7
    return moved


def glimpse_mosaic(
    patches: UInt8[np.ndarray, "t s c g g"],
    boxes: Float[np.ndarray, "t s 4"],
    size: tuple[int, int],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the patches of all glimpses at their positions, at the resolution of the model.

    Where patches overlap, the finest scale is on top, and within a scale the latest glimpse. Pixels
    outside all patches are dark gray.

    Args:
        patches: Pixels of each glimpse and scale, with one or three color channels.
        boxes: Left, top, right and bottom of each glimpse and scale, the finest scale first, in
            pixels of the output.
        size: Height and width of the output.

    Raises:
        ValueError: If the patches have no channels, as in records of `visattn glimpse`.

    Example:
        >>> white = np.full((1, 1, 1, 2, 2), 255, np.uint8)
        >>> glimpse_mosaic(white, np.array([[[0.0, 0, 2, 2]]]), (2, 4))[0, :, 0]
        array([255, 255,  40,  40], dtype=uint8)
    """
    if not patches.shape[2]:
        raise ValueError(
            "the scan path comes from a record without patches: compute it with "
            "glimpses(model, image), or load a file written by ScanPath.save"
        )
    output = np.full((*size, 3), _UNSEEN, np.uint8)
    for scale in reversed(range(boxes.shape[1])):
        for patch, (left, top, right, bottom) in zip(
            patches[:, scale], boxes[:, scale], strict=True
        ):
            rows, from_rows = _nearest_cells(top, bottom, size[0], patch.shape[1])
            columns, from_columns = _nearest_cells(left, right, size[1], patch.shape[2])
            output[rows[:, None], columns] = _rgb(patch)[from_rows[:, None], from_columns]
    return output


def _rgb(patch: UInt8[np.ndarray, "c y x"]) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image of one or three channels, channels first, as RGB, channels last."""
    return np.ascontiguousarray(np.broadcast_to(patch, (3, *patch.shape[1:])).transpose(1, 2, 0))


def _nearest_cells(
    start: float, end: float, length: int, num_cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels of one axis inside an interval, and the patch cell of each."""
    # 0.6 to 3.6 has the centers of pixels 1, 2 and 3, which show cells 0, 1 and 1 of two.
    centers = np.arange(length) + 0.5
    inside = np.flatnonzero((centers >= start) & (centers < end))
    position = (centers[inside] - start) / (end - start)
    return inside, np.minimum((position * num_cells).astype(int), num_cells - 1)


def top_classes(
    probabilities: Float[np.ndarray, "t k"],
    max_classes: int = _CLASSES,
    *,
    glimpses_per_label: int | None = None,
) -> list[int]:
    """Return the classes to plot: the predictions, then their competitors.

    A prediction is made after the last glimpse or, for a sequence of labels, after each
    `glimpses_per_label` glimpses; all of them are returned. Competitors are the classes with the
    highest probability after any glimpse, ordered by their probability after the last one.

    Example:
        >>> top_classes(np.array([[0.1, 0.6, 0.3], [0.2, 0.1, 0.7]]), max_classes=2)
        [2, 1]
    """
    step = glimpses_per_label or len(probabilities)
    read = list(dict.fromkeys(probabilities[step - 1 :: step].argmax(1).tolist()))
    peaks, last = probabilities.max(0), probabilities[-1]
    rivals = [int(index) for index in np.argsort(-peaks, kind="stable") if index not in read]
    rivals = rivals[: max(0, max_classes - len(read))]
    return [*read, *sorted(rivals, key=lambda index: -float(last[index]))]


def draw_probabilities(ax: Axes, scan: ScanPath) -> None:
    """Draw lines of the most probable classes over glimpses.

    For a sequence of labels, lines are interrupted where the next label begins.

    Args:
        ax: Axes of matplotlib.
        scan: A scan path.
    """
    values, count = scan.probabilities.numpy(), len(scan.probabilities)
    step = scan.glimpses_per_label or count
    shown = top_classes(values, glimpses_per_label=scan.glimpses_per_label)
    for rank, index in enumerate(shown):
        color = TEXT if rank == 0 else f"C{rank - 1}"
        for start in range(0, count, step):
            x = np.arange(start, min(start + step, count)) + 1
            label = fit_text(scan.class_names[index], 0.8, size=7) if start == 0 else None
            ax.plot(x, values[start : start + step, index], "o-", color=color, label=label,
                    linewidth=1.8 if rank == 0 else 1.2, markersize=3)  # fmt: skip
    for start in range(step, count, step):
        ax.axvline(start + 0.5, color=FAINT)
    ax.set(ylim=(-0.03, 1.03), xlim=(0.5, count + 0.5), yticks=[0, 0.5, 1])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlabel("glimpse", loc="right")
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.1), ncols=2, borderaxespad=0.2)


def glimpse_figure(
    image: ImageLike,
    scan: ScanPath,
    *,
    width: float | None = None,
    rc: Mapping[str, Any] | None = None,
) -> Figure:
    """Return a figure of a scan path.

    The first row shows the image with the scan path, the mosaic of all glimpses, and the class
    probabilities after each glimpse. Below are the patches of each glimpse, a row per scale, and
    the most probable class after it. Labels of a sequence are written at the glimpse after which
    they are read.

    Args:
        image: The original image.
        scan: Its scan path, from `glimpses`.
        width: See `visattn.figure`.
        rc: See `visattn.figure`.

    Raises:
        ValueError: If the scan path belongs to an image of another size.

    Example:
        >>> from visattn.models import RecurrentAttentionModel
        >>> from visattn.pipelines.scanpath import glimpses
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
        ... )
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [scan] = glimpses(model, photo)
        >>> [ax.get_title(loc="left") for ax in glimpse_figure(photo, scan).axes]
        ['scan path', 'mosaic of all glimpses', 'class probabilities', '']
    """
    photo, read = _read(image, scan)
    height, columns = photo.shape[:2]
    width = width or WIDTH
    count, scales = read.boxes.shape[:2]
    per_row = min(count, max(1, int((width - 2 * MARGIN) / 0.55)))
    per_row = -(-count // -(-count // per_row))  # balances the rows
    side = min(_PATCH, (width - 2 * MARGIN - 0.3) / per_row - 0.06)
    tall = LINE * 1.2 + scales * (side + 0.04) + 2 * LINE  # height of the patches of a glimpse
    note = join_notes(*_note_parts(scan), scan.geometry.seen_text)
    strip = -(-count // per_row) * tall
    with style(rc):
        figure, [axes] = axes_in_rows(
            [max(height / columns, 0.7)], 3, width=width, above=LINE, below=4.4 * LINE,
            foot=strip, rc=rc,
        )  # fmt: skip
        total = figure.get_figheight()
        titles = ("scan path", "mosaic of all glimpses", "class probabilities")
        for ax, title in zip(axes, titles, strict=True):
            ax.set_title(title, loc="left", color=MUTED)
        draw_scan_path(axes[0], photo, read)

        def mosaic(size: tuple[int, int]) -> UInt8[np.ndarray, "y x 3"]:
            places = read.boxes.numpy() * np.tile([size[1] / columns, size[0] / height], 2)
            return glimpse_mosaic(read.patches.numpy(), places, size)

        mosaic((1, 1))  # raises for a record without patches here, not while drawing
        show(axes[1], (height, columns), mosaic)
        draw_probabilities(axes[2], read)
        box = axes[2].get_position()
        axes[2].set_position((box.x0 + 0.04, box.y0, box.width - 0.04, box.height))
        said = f"{read.prediction}, {format_percent(read.probability)}"
        for text, color, size, below in (
            (said, TEXT, 9, 0.5 * LINE),
            (note, MUTED, 6.5, 1.6 * LINE),
        ):
            fitted = fit_text(text, 0.62 * width, size=size, lines=2)
            figure.text(MARGIN / width, box.y0 - below / total, fitted, color=color, fontsize=size,
                        va="top")  # fmt: skip
        ax = figure.add_axes((MARGIN / width, MARGIN / total, 1 - 2 * MARGIN / width,
                              strip / total))  # fmt: skip
        _draw_patches(ax, read, (width - 2 * MARGIN, strip), (side, tall), per_row)
    return figure


def _draw_patches(
    ax: Axes, scan: ScanPath, area: tuple[float, float], cell: tuple[float, float], per_row: int
) -> None:
    """Draw the patches of each glimpse in order, with the most probable class after it.

    With several scales, each row is labeled by its width relative to the finest scale.
    """
    (width, height), (side, tall) = area, cell
    ax.set_axis_off()
    widths = (scan.boxes[..., 2] - scan.boxes[..., 0]).numpy()
    scales = widths.shape[1]
    best = scan.probabilities.argmax(1).tolist()
    for index, color in enumerate(glimpse_colors(len(best))):
        x = 0.3 * (scales > 1) + index % per_row * (side + 0.06)
        y = index // per_row * tall
        _draw_number(ax, (x + _MARKER, y + _MARKER), index, color)
        for scale, patch in enumerate(scan.patches[index].numpy()):
            top = y + 1.2 * LINE + scale * (side + 0.04)
            ax.imshow(_rgb(patch), extent=(x, x + side, top + side, top), interpolation="nearest")
            if scales > 1 and index % per_row == 0:
                factor = widths[index, scale] / widths[index, 0]
                ax.text(x - 0.04, top + side / 2, f"{_TIMES}{factor:.3g}", ha="right", va="center",
                        color=MUTED, fontsize=6.5)  # fmt: skip
        was_read = scan.glimpses_per_label is None or index in scan.tags
        chance = format_percent(float(scan.probabilities[index, best[index]]))
        bottom = y + 1.25 * LINE + scales * (side + 0.04)
        ax.text(x, bottom, fit_text(scan.class_names[best[index]], side + 0.04, size=7), va="top",
                color=TEXT if was_read else MUTED, fontsize=7)  # fmt: skip
        ax.text(x, bottom + LINE, chance, va="top", color=MUTED, fontsize=6.5)
    ax.set(xlim=(0, width), ylim=(height, 0), aspect="auto")


def _note_parts(scan: ScanPath) -> list[str]:
    """Return the description of the glimpses: input size, glimpse size, policy."""
    count, scales, _, side, _ = scan.patches.shape
    text = f"{count} glimpse{'' if count == 1 else 's'} of {side} {_TIMES} {side}"
    text += f" at {scales} scales" if scales > 1 else ""
    text += f", {scan.glimpses_per_label} per label" if scan.glimpses_per_label else ""
    policy = scan.maps.info.policy
    seed = f", seed {scan.maps.info.seed}" if policy in ("sampled", "random") else ""
    height, width = scan.maps.values.shape[1:]
    return [f"network input {width} {_TIMES} {height}", text, f"{policy} policy{seed}"]


def glimpse_overlay(
    image: ImageLike, scan: ScanPath, *, max_side: int = 400
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with its scan path.

    Args:
        image: The original image.
        scan: Its scan path, from `glimpses`.
        max_side: Length of the longer side, in pixels.

    Raises:
        ValueError: If the scan path belongs to an image of another size.
    """
    height, width = scan.geometry.image_size
    size = (np.array([width, height]) * max_side / max(height, width) + 0.01) / 130
    with style():
        figure = Figure((size[0], size[1]))
        figure.set_dpi(130)
        draw_scan_path(figure.add_axes((0, 0, 1, 1)), image, scan)
        return rgb(figure)


def notebook_scanpath(scan: ScanPath) -> bytes | None:
    """Return the scan path on the network's input, as a PNG file for notebooks.

    Args:
        scan: A scan path; None is returned for one from a record without pixels.
    """
    if not len(scan.pixels):
        return None
    boxes = scan.geometry.to_input(scan.boxes.view(-1, 2)).view(scan.boxes.shape)
    on_input = replace(scan, boxes=boxes, geometry=Geometry.identity(scan.geometry.input_size))
    return png(glimpse_figure(_rgb(scan.pixels.numpy()), on_input))


def _read(image: ImageLike, scan: ScanPath) -> tuple[UInt8[np.ndarray, "y x 3"], ScanPath]:
    """Return the pixels of an image, and its scan path up to the end of its sequence of labels."""
    original = read_image(image)
    check_photo(original, scan.geometry, "the scan path")
    return original.pixels, scan.until_end()


class Coverage:
    """Mean scan path and mean resolution maps over many images.

    Example:
        >>> Coverage().count
        0
    """

    def __init__(self) -> None:
        self.count = 0
        self._sums: list[Float[Tensor, "*axes"]] = []

    def add(self, scan: ScanPath) -> None:
        """Add a scan path, of the same model as the others."""
        values = scan.maps.values.double()
        locations = scan.locations.double()
        terms = [values, values.amax(0), locations, locations**2, scan.pixels.double()]
        self._sums = [a + b for a, b in zip(self._sums or [0.0] * 5, terms, strict=True)]
        self.count += 1

    def figure(self, **options: Any) -> Figure:
        """Return a figure of the mean path on the mean image, and a heat map for each glimpse.

        Args:
            options: `width` and `rc`, see `visattn.figure`.
        """
        maps, overall, mean, squares, seen = (total / self.count for total in self._sums)
        std = (squares - mean**2).clamp(min=0).sqrt()
        photo = _rgb(seen.round().byte().numpy())
        place = Geometry.identity((photo.shape[0], photo.shape[1]))
        top = max(float(maps.max()), float(overall.max()), 1e-6)
        tiles = [Tile(photo, title="mean path \N{PLUS-MINUS SIGN} 1 std")]
        for number, each in enumerate([overall, *maps]):
            shown = AttentionMap(each.float(), "resolution", "glimpse", place)
            title = f"glimpse {number}" if number else "all glimpses"
            tiles.append(Tile(photo, shown, MapScale("global", 0.0, top), title))
        images = f"{self.count:,} image{'' if self.count == 1 else 's'}"
        note = "mean resolution at which pixels were seen (1: that of the input, on every image)"
        figure = sheet([tiles], DrawOptions(), notes=(f"{images}; {note}",), **options)
        half = mean.new_tensor([maps.shape[2], maps.shape[1]]) / 2  # from [-1, 1] to pixels
        boxes = torch.cat([(mean - std + 1) * half, (mean + std + 1) * half], -1)
        with style(options.get("rc")):
            for box, color in zip(boxes.numpy(), glimpse_colors(len(boxes)), strict=True):
                outline(figure.axes[0], box, color, 1.4)
        return figure
