"""`visattn caption --model hf:DIRECTORY` of photos together and of videos, and what draws them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.commands.caption.test_language import run, save
from tests.helpers.video_data import block_frame, write_clip
from visattn.cli import main
from visattn.geometry.affine import Geometry
from visattn.images.video import VideoReader
from visattn.pipelines.video import caption_video
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.records import read_saved_maps
from visattn.viz.alignment import alignment_figure
from visattn.viz.caption_images import drawn_images
from visattn.viz.captions import caption_figure, caption_gif
from visattn.viz.html.caption_page import caption_html

pytest.importorskip("transformers")

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("qwen2_vl", tmp_path_factory.mktemp("models"))


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(3)
    files = [tmp_path / "portrait.png", tmp_path / "panorama.png"]
    for file, size in zip(files, [(90, 41), (30, 110)], strict=True):
        Image.fromarray(generator.integers(0, 255, (*size, 3), dtype=np.uint8)).save(file)
    return files


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "clip.avi", [block_frame(2 * n, 8) for n in range(11)])


def test_photos_together_have_one_caption(
    qwen: Path, photos: list[Path], tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    assert run(qwen, *photos, "--together", "--out", out) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("portrait\t")
    record = json.loads((out / "portrait.json").read_text())
    assert [Path(name).name for name in record["image"]] == ["portrait.png", "panorama.png"]
    assert [each["image_size"] for each in record["geometry"]] == [[90, 41], [30, 110]]
    arrays = np.load(out / "portrait.npz")
    for number, name in enumerate(("maps", "photo2_maps")):
        np.testing.assert_allclose(arrays[name], record["maps"][number], atol=1e-7)
    second = read_saved_maps(out / "portrait.json", "panorama.png")
    np.testing.assert_allclose(second.maps, record["maps"][1])
    assert main(["overlay", str(photos[1]), "--maps", str(out / "portrait.json"), "--out",
                 str(tmp_path / "drawn")]) == 0  # fmt: skip
    with pytest.raises(ValueError, match=r"maps on portrait.png, panorama.png, got the photo a"):
        read_saved_maps(out / "portrait.json", "a.png")
    assert (out / "portrait.html").read_text().count("<figure>") == 2
    capsys.readouterr()
    assert run(qwen, *photos, "--together", "--out", out) == 0  # nothing is computed again
    assert capsys.readouterr().out.splitlines()[0] == line


def test_a_video_has_one_caption_and_a_movie(
    qwen: Path, clip: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    broken = clip.with_name("broken.mp4")
    broken.write_bytes(clip.read_bytes()[:200])
    assert run(qwen, clip, broken, "--num-frames", 4, "--out", out) == 1
    lines, errors = capsys.readouterr()
    assert lines.count("\n") == 1
    assert "broken.mp4" in errors
    record = json.loads((out / "clip.json").read_text())
    assert record["frames"] == [0, 2, 5, 8]
    assert record["seconds"] == pytest.approx([0.0, 0.2, 0.5, 0.8])
    assert np.array(record["maps"]).shape[:2] == (len(record["words"]), 4)
    with VideoReader(out / "clip.caption.mp4") as movie:
        assert len(list(movie)) == 4
    assert {"clip.html", "clip.png", "clip.npz", "clip.caption.png"} <= {
        file.name for file in out.iterdir()
    }
    words = ["overlay", str(out / "clip.png"), "--maps", str(out / "clip.json"), "--out"]
    assert main([*words, str(tmp_path / "drawn")]) == 1
    assert "maps of a video" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["a.mp4", "--every", "3", "--out", "o"], "--every is for captioners of visattn"),
        (["a.mp4"], "a video needs an output folder"),
        (["a.mp4", "--together", "--out", "o"], "--together is for photos"),
        (["a.mp4", "--gif", "--out", "o"], "--gif is for single photos, not for a video"),
        (["a.jpg", "--num-frames", "3"], "--num-frames is for videos"),
        (["a.jpg", "--together", "--alignment", "--out", "o"], "--alignment is for single photos"),
        (["a.jpg", "--together", "--shard", "1/2", "--out", "o"], "--together makes one caption"),
        (["a.jpg", "--together", "--method", "occlusion", "--out", "o"], "--method occlusion is"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], match: str, capsys: Capsys) -> None:
    assert main(["caption", "--model", "hf:model", *words]) == 2
    assert match in capsys.readouterr().err


def test_together_needs_a_model_of_transformers(capsys: Capsys) -> None:
    assert main(["caption", "a.jpg", "--weights", "scenes-captioner", "--together"]) == 2
    assert "--together needs a model of transformers" in capsys.readouterr().err


def of_video() -> Caption:
    """A caption of two words on a video whose second frame has all attention of the second."""
    values = torch.full((2, 2, 3, 5), 0.01)
    values[1, 1, 1, 2] = 0.7
    info = MapInfo(frames=[0, 2], seconds=[0.0, 0.2])
    place = Geometry.identity((48, 64))
    maps = AttentionMap(values, "attend", "words", place, info, ("a", "b"))
    return Caption(("a", "b"), (-0.1, -0.2), (0.3, 0.9), maps, -0.3, finished=True)


def test_a_word_of_a_video_is_drawn_on_its_frame(clip: Path, tmp_path: Path) -> None:
    caption = of_video()
    frames = drawn_images(clip, caption)
    assert [each.label for each in frames] == ["0:00.00", "0:00.20"]
    gains: list[float] = []
    for word in (0, 1):
        movie = caption_video(clip, caption, tmp_path / "word", word=word)
        with VideoReader(movie.movie) as video:
            first, second = (frame.pixels[16:32, 26:38].astype(float) for frame in video)
        gains.append(second.mean() - first.mean())
    assert gains[1] > gains[0] + 20
    assert movie.classes == ["b (2 of 2)"] * 2
    assert caption_video(clip, caption, tmp_path / "all").classes == ["a b"] * 2
    for word in (2, -3):
        with pytest.raises(ValueError, match="below the number of words, 2"):
            caption_video(clip, caption, tmp_path / "none", word=word)


def test_all_images_share_one_scale() -> None:
    caption = of_video()
    assert caption.display_range() == (0.0, pytest.approx(4 / 30))  # four times even attention
    assert caption.is_video
    assert [each.values.shape for each in caption.image_maps] == [(2, 3, 5)] * 2


def test_the_page_marks_even_attention_over_all_images(clip: Path) -> None:
    page = caption_html(clip, of_video())
    match = re.search(r'id="page-data">(.*?)</script>', page)
    assert match is not None
    assert json.loads(match[1])["even"] == [pytest.approx(1 / 30), "uniform attention"]


def test_drawings_of_one_photo_refuse_several(clip: Path) -> None:
    caption = of_video()
    frame = np.zeros((48, 64, 3), np.uint8)
    for draw in (alignment_figure, caption_gif):
        draw_any: Any = draw
        with pytest.raises(ValueError, match="shows one photo, but the caption has maps on 2"):
            draw_any(frame, caption)
    for draw in (lambda *args: caption_figure(*args).to_bytes(), caption_html):
        draw_any = draw
        with pytest.raises(ValueError, match="maps on 2 images, got 1: pass all frames"):
            draw_any(frame, caption)
        assert len(draw_any(clip, caption)) > 100
        assert len(draw_any([frame, frame], caption)) > 100


def test_a_panel_of_many_frames_draws_some_and_bars_of_all() -> None:
    frames = [np.full((6, 8, 3), 10 * n, np.uint8) for n in range(14)]
    values = torch.zeros(1, 14, 2, 2)
    values[0, 13] = 0.25
    seconds = [float(n) for n in range(14)]
    info = MapInfo(frames=list(range(14)), seconds=seconds)
    maps = AttentionMap(values, "attend", "words", Geometry.identity((6, 8)), info)
    said = Caption(("dog",), (), (), maps, score=0.0, finished=True)
    assert caption_figure(frames, said, width=700).image.width == 700
    with pytest.raises(ValueError, match="maps on 14 images, got 13"):
        caption_figure(frames[:13], said)
    with pytest.raises(ValueError, match="a width of 300 pixels at scale 1, got 2 tiles and 299"):
        caption_figure(frames, said, width=299)
