"""`va.figure` and what all figures share: axes, scales, texts, files, style."""

import re
import threading
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from figure_texts import colors, texts
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch
from PIL import Image

import visattn as va
from visattn.geometry.affine import Geometry
from visattn.images.resize import ResizeSpec
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo, Thing
from visattn.results.scale import MapScale
from visattn.viz.figures import MUTED, TEXT, png, rgb
from visattn.viz.heatmap import overlay
from visattn.viz.html.notebook import notebook_map
from visattn.viz.maps import draw_target

SIZES = ((60, 80), (90, 60))
PHOTOS = [np.full((*size, 3), 40 + 100 * n, np.uint8) for n, size in enumerate(SIZES)]


def placed(top: float = 1.0, photo: int = 0, method: str = "gradcam", **info: Any) -> AttentionMap:
    values = torch.tensor([[0.0, top], [top / 2, 0.0]])
    geometry = Geometry.identity(SIZES[photo])
    return AttentionMap(values, "x", "gradient", geometry, MapInfo(method, **info))


def methods_by_photos() -> list[list[AttentionMap]]:
    return [[placed(1.0 + n, n, method, class_name=name) for method in ("gradcam", "layercam")]
            for n, name in enumerate(("cat", "dog"))]  # fmt: skip


def ends(figure: Figure) -> list[tuple[str, str]]:
    """Return the labels at both ends of each color bar."""
    figure.canvas.draw()
    every = [ax for ax in figure.findobj(Axes) if ax.get_xlabel() == "" and len(ax.get_xticks())]
    labels = [[each.get_text() for each in ax.get_xticklabels()] for ax in every]
    return [(own[0], own[-1]) for own in labels]


def test_columns_are_titled_by_methods_and_rows_by_their_photo_and_class() -> None:
    figure = va.figure(methods_by_photos(), PHOTOS)
    assert isinstance(figure, Figure)
    assert figure.get_suptitle() == ""
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["", "Grad-CAM", "LayerCAM", "", "", ""]
    assert texts(figure).count("cat") == texts(figure).count("dog") == 1
    assert ends(figure) == [("0", "1")] * 2 + [("0", "2")] * 2


def test_columns_of_one_method_are_titled_by_classes_and_by_names_of_a_dictionary() -> None:
    rows = [[placed(1.0, n, class_name=name) for name in ("cat", "dog")] for n in (0, 1)]
    assert {"cat", "dog"} <= {*texts(va.figure(rows, PHOTOS))}
    columns = {"before": [placed(1, 0), placed(1, 1)], "after": [placed(2, 0), placed(2, 1)]}
    written = texts(va.figure(columns, PHOTOS))
    assert {"before", "after"} <= {*written}
    swapped = [{"before": placed(1, n), "after": placed(2, n)} for n in (0, 1)]
    assert texts(va.figure(swapped, PHOTOS)) == written
    swapped[1] = {"shuffled": placed(1, 1), "after": placed(2, 1)}
    titles = [ax.get_title(loc="left") for ax in va.figure(swapped, PHOTOS).axes]
    assert titles == ["", "before", "after", "", "shuffled", "after"]


def test_maps_on_one_scale_have_one_color_bar() -> None:
    assert ends(va.figure(methods_by_photos(), PHOTOS, scales="all")) == [("0", "2")]
    assert ends(va.figure(methods_by_photos(), PHOTOS, scales="column")) == [("0", "2")]
    assert ends(va.figure(methods_by_photos(), PHOTOS, scales="row")) == [
        ("0", "1"), ("0", "1"), ("0", "2"), ("0", "2"),
    ]  # fmt: skip


def test_each_tile_is_the_overlay_on_its_own_scale() -> None:
    # oracle: the overlay of one pixel, at the center of a cell
    scales = [
        MapScale("image", 0.1, 0.9), MapScale("image", 0.0, 2.0, signed=True),
    ]  # fmt: skip
    maps = [placed(0.7), placed(-1.5, signed=True)]
    for style in ("heat", "quantitative", "light"):
        figure = va.figure(maps, PHOTOS[0], scales=scales, style=style, smooth=False)
        centers = [(20.0, 15.0), (60.0, 15.0), (20.0, 45.0)]
        values = np.array([[0.0, 1.0, 0.5]])
        for ax, scale, top in zip(figure.axes[1:], scales, (0.7, -1.5), strict=True):
            limits: dict[str, Any] = {"vmin": scale.vmin, "vmax": scale.vmax, "style": style}
            photo = np.full((1, 3, 3), 40, np.uint8)
            expected = overlay(photo, top * values, signed=scale.signed, **limits)[0]
            np.testing.assert_allclose(colors(figure, ax, centers), expected, atol=2)


def test_color_bars_have_the_colors_of_a_gray_photo() -> None:
    gray = np.full((60, 80, 3), 150, np.uint8)
    figure = va.figure([placed(1.0)], gray, smooth=False)
    [bar] = figure.axes[1].child_axes
    assert isinstance(bar, Axes)
    on_bar = colors(figure, bar, [(0.003, 0.5), (0.5, 0.5), (0.998, 0.5)])
    on_map = colors(figure, figure.axes[1], [(20.0, 15.0), (20.0, 45.0), (60.0, 15.0)])
    np.testing.assert_allclose(on_bar, on_map, atol=6)
    assert len(bar.get_xticks()) == 3


def test_axes_have_the_coordinates_of_their_photo() -> None:
    figure = va.figure(methods_by_photos(), PHOTOS)
    for ax, size in zip(figure.axes, [SIZES[0]] * 3 + [SIZES[1]] * 3, strict=True):
        assert (*ax.get_ylim(), *ax.get_xlim()) == (size[0], 0, 0, size[1])
        box = ax.get_window_extent()
        assert box.height / box.width == pytest.approx(size[0] / size[1], rel=0.02)
    across, down = [ax.get_position() for ax in figure.axes[:2]], figure.axes[3].get_position()
    assert across[0].x1 < across[1].x0
    assert down.y1 < across[0].y0


@pytest.mark.parametrize("size", [(1, 1), (7, 700), (700, 7), (333, 517)])
@pytest.mark.parametrize("count", [1, 5, 15])
def test_everything_lies_on_the_page(size: tuple[int, int], count: int) -> None:
    geometry = Geometry.identity(size)
    info = MapInfo("gradcam", class_name="tench " * 40, note="mean " * 90)
    maps = [AttentionMap(torch.rand(3, 4), "x", "gradient", geometry, info) for _ in range(count)]
    drawn = rgb(va.figure(maps, np.zeros((*size, 3), np.uint8), width=4.5))
    assert drawn.shape[1] == 900
    for edge in (drawn[:5], drawn[-5:], drawn[:, :5], drawn[:, -5:]):
        assert (edge == 255).all()


def test_an_empty_map_has_its_reason_instead_of_a_scale() -> None:
    empty = placed(0.0, empty="the gradient is zero")
    figure = va.figure([[empty, placed(2.0)], [placed(4.0, 1), placed(8.0, 1)]], PHOTOS)
    assert "the gradient is zero" in texts(figure)
    assert ends(figure) == [("0", "2"), ("0", "4"), ("0", "8")]


def test_what_is_said_of_one_photo_names_it(tmp_path: Path) -> None:
    maps, photos = [], []
    assumed = {"preprocessing": {"source": "assumed: ImageNet"}}
    for name, width in (("cat", 40), ("dog", 60)):
        photos.append(tmp_path / f"{name}.png")
        Image.fromarray(PHOTOS[0]).save(photos[-1])
        geometry = Geometry.identity((60, 80)).cropped(0, 0, (60, width))
        info = MapInfo("gradcam", note="last layer 3 of 4", more=assumed)
        maps.append([AttentionMap(torch.eye(5), "x", "gradient", geometry, info)])
    [line] = [each for each in texts(va.figure(maps, photos)) if "last layer" in each]
    assert "cat.png: the model saw 50 %" in line
    assert "dog.png: the model saw 75 %" in line
    assert line.count("last layer") == line.count("assumed: ImageNet") == 1


def test_what_a_map_explains_is_marked_at_any_size() -> None:
    things = Thing("pixel", (20, 10)), Thing("box", box=(10, 4, 30, 16))
    for thing, margin in zip(things, (10, 1), strict=True):  # of the cross: its arms
        marked = draw_target(np.zeros((240, 320, 3), np.uint8), placed(thing=thing))
        rows, columns = np.nonzero(marked[..., 0])
        center = (rows.min() + rows.max()) / 2, (columns.min() + columns.max()) / 2
        assert center == pytest.approx((41.5, 81.5), abs=2)
        assert rows.max() - rows.min() == pytest.approx(2 * margin if margin > 1 else 48, abs=4)
        plain, drawn = (rgb(va.figure(placed(thing=each), PHOTOS[0])) for each in (None, thing))
        assert (plain != drawn).any()


def test_boxes_are_outlined_on_the_axes_of_their_map() -> None:
    maps, box = [placed(), placed(method="layercam")], (20.0, 15.0, 60.0, 30.0)
    figure = va.figure(maps, PHOTOS[0], boxes=[[], [box]])
    assert [len(ax.patches) for ax in figure.axes[:3]] == [0, 0, 1]
    [outline] = figure.axes[2].patches
    assert isinstance(outline, Rectangle)
    assert [*outline.get_bbox().extents] == [*box]


def test_maps_without_photos_are_drawn_on_gray_and_channels_as_bars() -> None:
    words = AttentionMap(torch.rand(3, 2, 2), "x", "words", labels=("a", "red", "ring"))
    assert [ax.get_title(loc="left") for ax in va.figure(words).axes][:3] == ["a", "red", "ring"]
    gates = AttentionMap(torch.tensor([0.49, 0.51, 0.5]), "stage1.se", "channel")
    [ax] = va.figure(gates).axes
    steps = ax.patches[0]
    assert isinstance(steps, StepPatch)
    assert steps.get_data()[0].tolist() == pytest.approx([0.49, 0.51, 0.5])
    assert ax.get_ylim() == (0, 1)  # nothing is stretched


def test_only_what_was_seen_is_shown_with_crop() -> None:
    photo = np.zeros((50, 200, 3), np.uint8)
    photo[:, 80:120] = (10, 200, 30)
    geometry = Geometry.identity((50, 200)).cropped(0, 80, (50, 40))
    spot = AttentionMap(torch.eye(4), "x", "gate", geometry)
    drawn = rgb(va.figure([spot], photo, crop=True))
    assert (drawn == (10, 200, 30)).all(-1).sum() > 20_000
    assert not (drawn == 0).all(-1).any()
    assert (rgb(va.figure([spot], photo)) == 0).all(-1).sum() > 20_000
    thin = AttentionMap(torch.eye(4), "x", "gate", ResizeSpec((16, 16)).geometry((40, 4000)))
    assert rgb(va.figure([thin], np.zeros((40, 4000, 3), np.uint8), crop=True)).size


def test_what_the_model_did_not_see_is_hatched() -> None:
    crop = Geometry.identity((60, 80)).cropped(0, 10, (60, 60))
    hatched = [
        patch.get_bbox().bounds
        for ax in va.figure(placed().with_geometry(crop), PHOTOS[0]).axes
        for patch in ax.patches
        if isinstance(patch, Rectangle) and patch.get_hatch()
    ]
    assert hatched == [(0, 0, 10, 60), (70, 0, 10, 60)]
    whole = va.figure(placed(), PHOTOS[0]).axes
    assert not any(patch.get_hatch() for ax in whole for patch in ax.patches)


def test_axes_of_a_user_get_the_map_alone_in_their_own_style() -> None:
    page = Figure()
    axes = page.subplots(1, 3)
    assert va.figure([placed(), placed(2.0)], PHOTOS[0], ax=axes[:2]) is page
    assert [len(ax.images) for ax in axes] == [1, 1, 0]
    with pytest.raises(ValueError, match=r"argument 2 is (longer|shorter)"):
        va.figure([placed()], PHOTOS[0], ax=axes[:2])


def test_images_have_the_pixels_that_they_have_in_a_file(tmp_path: Path) -> None:
    fine = np.random.default_rng(1).integers(0, 256, (960, 1280, 3)).astype(np.uint8)
    own = placed().with_geometry(Geometry.identity((960, 1280)))
    figure = va.figure([own], fine, width=3.0)
    rough = []
    for dpi in (100, 400):
        figure.savefig(tmp_path / "a.png", dpi=dpi)
        drawn = np.asarray(Image.open(tmp_path / "a.png").convert("L")).astype(int)
        assert drawn.shape[1] == 3 * dpi
        part = drawn[len(drawn) // 5 : len(drawn) // 3, dpi // 4 : dpi]
        rough.append(np.abs(np.diff(part, axis=1)).mean())
    assert rough[1] > rough[0] > 8  # noise stays noise: nothing is enlarged


def test_text_is_text_in_svg_and_pdf(tmp_path: Path) -> None:
    figure = va.figure(
        [placed(class_name="a dog $x_1$ & <b>"), placed(2.0, class_name="cat")], PHOTOS[0]
    )
    figure.savefig(tmp_path / "a.svg")
    figure.savefig(tmp_path / "a.pdf")
    svg = (tmp_path / "a.svg").read_text()
    assert re.search(r"<text[^>]*>a dog \$x_1\$ &amp; &lt;b&gt;</text>", svg)
    assert re.search(rb"/FontFile2|/Subtype /Type0", (tmp_path / "a.pdf").read_bytes())


def test_style_is_that_of_figures_whatever_is_in_force() -> None:
    plain = png(va.figure([placed()], PHOTOS[0]))
    assert plain == png(va.figure([placed()], PHOTOS[0]))
    with mpl.rc_context({"font.size": 30, "figure.facecolor": "red", "image.origin": "lower"}):
        before = dict(mpl.rcParams)
        assert png(va.figure([placed()], PHOTOS[0])) == plain
        assert dict(mpl.rcParams) == before
    other = va.figure([placed()], PHOTOS[0], rc={"figure.facecolor": "red"})
    assert rgb(other)[0, 0].tolist() == [255, 0, 0]


def test_figures_are_drawn_in_threads() -> None:
    expected, found = png(va.figure([placed()], PHOTOS[0])), []
    before = dict(mpl.rcParams)
    threads = [
        threading.Thread(target=lambda: found.append(png(va.figure([placed()], PHOTOS[0]))))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [expected] * 4
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("color", [TEXT, MUTED])
def test_text_has_the_contrast_of_wcag_aa(color: str) -> None:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    assert 1.05 / (np.dot([0.2126, 0.7152, 0.0722], linear) + 0.05) >= 4.5


@pytest.mark.parametrize("shape", [(1, 1), (5, 3, 7), (2, 3, 4, 5), (300, 2), (40, 9, 9)])
def test_notebooks_show_maps_of_any_shape(shape: tuple[int, ...]) -> None:
    info = MapInfo("gradcam", class_name="dog " * 40, target=3, score=2.0)
    for values in (torch.rand(shape), torch.zeros(shape), torch.full(shape, torch.nan)):
        assert notebook_map(AttentionMap(values, "site" * 50, "gradient", info=info))
    assert notebook_map(AttentionMap(torch.rand(0, 2, 2), "x", "gradient")) is None
    assert AttentionMap(torch.rand(2, 8), "x", "channel")._repr_png_()


REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (list, None, {}, "a figure needs maps"),
    (methods_by_photos, PHOTOS[:1], {}, "got 2 rows and 1 photos"),
    (lambda: [placed(photo=1)], PHOTOS[0], {}, "belongs to an image of"),
    (lambda: [placed()], PHOTOS[0], {"scales": "photo"}, "scales must be one of map, row"),
    (lambda: [placed()], PHOTOS[0], {"style": "heatt"}, "style must be one of heat, quanti"),
    (lambda: [placed()], PHOTOS[0], {"opacity": 3}, "opacity must be between 0 and 1, got 3"),
    (lambda: ["a.jpg"], None, {}, "a figure draws maps, got str"),
    (lambda: np.zeros((7, 7)), PHOTOS[0], {}, "a figure draws maps, got ndarray"),
    (lambda: [torch.zeros(7, 7)], PHOTOS, {}, "a figure draws maps, got Tensor"),
]


@pytest.mark.parametrize(("maps", "images", "options", "message"), REFUSED)
def test_what_does_not_fit_is_refused(
    maps: Any, images: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        va.figure(maps(), images, **options)


def test_the_note_of_a_map_stands_under_its_title_and_other_notes_below_the_figure() -> None:
    coarse, layer = "only 2 \N{MULTIPLICATION SIGN} 2 cells", "layer 3 of 4"
    maps = [placed(note=coarse), placed(method="layercam", note=f"{layer}, {coarse}")]
    figure = va.figure(maps, PHOTOS[0])
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert {f"Grad-CAM\n{coarse}", f"LayerCAM\n{coarse}"} <= {*titles}
    below = [each for each in texts(figure) if layer in each]
    assert len(below) == 1
