"""`visattn overlay` over many images: shards, threads, a global scale one image at a time."""

import csv
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from index_cards import parse_index_page

import visattn
from visattn.cli import main
from visattn.commands.boxes import BoxFile
from visattn.commands.files import map_in_threads
from visattn.commands.overlay import job
from visattn.models.resnet import AttentionResNet
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.scale import ValueRange, map_scale


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("weights") / "cnn.safetensors"
    visattn.save(AttentionResNet(("ant", "bee"), depth=8, stem_width=4, img_size=(32, 40)), path)
    return path


def overlay(bulk_photos: Path, cnn: Path, out: Path, *words: str) -> int:
    command = ["overlay", str(bulk_photos), "--model", str(cnn), "--out", str(out)]
    return main([*command, "--method", "gradcam", "--batch-size", "2", *words])


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("words", [("--shard", "3/2"), ("--shard", "1/2", "--normalize", "global")])
def test_senseless_shards_are_refused(words: tuple[str, ...], cnn: Path, bulk_photos: Path) -> None:
    assert overlay(bulk_photos, cnn, bulk_photos.parent / "out", *words) == 2
    assert not (bulk_photos.parent / "out").exists()


def test_global_scale_is_that_of_all_images(cnn: Path, bulk_photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert overlay(bulk_photos, cnn, out, "--normalize", "global") == 1
    ends = {path: path.read_text().split('"vmax": ')[1].split()[0] for path in out.glob("*.json")}
    assert len(ends) == 4
    assert len(set(ends.values())) == 1


def test_value_range_is_the_scale_of_all_maps_at_once() -> None:
    random = torch.Generator().manual_seed(0)
    for info in (MapInfo(), MapInfo(signed=True), MapInfo("rise")):
        maps = [
            AttentionMap(torch.randn(3, 5, generator=random), "x", "gradient", info=info)
            for _ in range(4)
        ]
        ranges = ValueRange()
        for each in maps:
            ranges.add(each)
        assert ranges.scale("global") == map_scale(maps, "global")
        values = torch.stack([each.values for each in maps])
        scale = ranges.scale("global")
        assert scale.vmax == float((values.abs() if info.signed else values).max())
        assert scale.vmin == (float(values.min()) if info.method else 0.0)


def test_results_of_threads_keep_their_order_and_errors() -> None:
    main_thread = threading.get_ident()
    threads: set[int] = set()

    def invert(number: int) -> float:
        threads.add(threading.get_ident())
        return 1 / number

    results = []
    for number, result in map_in_threads(invert, [4, 2, 0, 1, 5]):
        if number:
            results.append(result())
        else:
            with pytest.raises(ZeroDivisionError, match="by zero"):
                result()
    assert results == [0.25, 0.5, 1.0, 0.2]
    assert main_thread not in threads


def test_the_share_of_a_photo_that_the_model_saw_is_reported(
    cnn: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert overlay(photos, cnn, out) == 0
    # The shorter side gets 32 pixels, of the others the model sees 32 high and 40 wide.
    expected = {"deeper/dot": 1.0, "tall": 31 / 59, "wide": 29 * 40 / 32 / 97}
    rows = list(csv.DictReader((out / "overlay.csv").read_text().splitlines()))
    names = [Path(row["image"]).relative_to(photos).with_suffix("").as_posix() for row in rows]
    shares = {name: float(row["seen_share"]) for name, row in zip(names, rows, strict=True)}
    assert shares == pytest.approx(expected, abs=0.02)
    for name, share in shares.items():
        assert json.loads((out / f"{name}.gradcam.json").read_text())["seen_share"] == share
    low, high = (f"{100 * share:.0f} %" for share in (shares["wide"], shares["deeper/dot"]))
    messages = capsys.readouterr().err
    advice = "--resize-mode squash or pad shows all of"
    message = f"visattn: the model saw {low} to {high} of the photos (center crop); {advice} them\n"
    assert messages == f"{message}visattn: open in a browser: {out / 'index.html'}\n"
    command = [
        "overlay",
        str(photos / "tall.png"),
        "--model",
        str(cnn),
        "--out",
        str(tmp_path / "one"),
    ]
    for mode, said in (("crop", True), ("squash", False), ("pad", False)):
        assert main([*command, "--resize-mode", mode, "--overwrite"]) == 0
        messages = capsys.readouterr().err
        tall = f"{100 * shares['tall']:.0f} %"
        assert (f"saw {tall} of the photo (center crop); {advice} it" in messages) is said
        assert f"open {tmp_path / 'one' / 'tall.methods.png'}" in messages


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (("gradcam",), [3]),
        (("gradcam", "occlusion"), [1, 1, 1]),  # a row appears when its photo is done
        (("occlusion", "--batch-size", "2"), [2, 1]),
    ],
)
def test_methods_with_many_passes_take_photos_one_by_one(
    words: tuple[str, ...], sizes: list[int], cnn: Path, photos: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    batches: list[int] = []
    known = job.OverlayJob.infer

    def infer(self: Any, images: Any) -> Any:
        batches.append(len(images))
        return known(self, images)

    monkeypatch.setattr(job.OverlayJob, "infer", infer)
    command = ["overlay", str(photos), "--model", str(cnn), "--out", str(tmp_path / "out")]
    assert main([*command, "--method", *words]) == 0
    assert batches == sizes


def test_an_image_has_one_card_in_the_index(cnn: Path, bulk_photos: Path, tmp_path: Path) -> None:
    overlay(bulk_photos, cnn, tmp_path / "out")
    overlay(bulk_photos, cnn, tmp_path / "out", "--explorer")
    page = (tmp_path / "out" / "index.html").read_text()
    pages = [entry.page for entry in parse_index_page(page)]
    assert pages == ["0.html", "1.html", "3.html", "4.html"]
    before = contents(tmp_path / "out")
    overlay(bulk_photos, cnn, tmp_path / "out")  # the richer pages stay
    assert contents(tmp_path / "out") == before


def test_a_global_scale_searches_once_and_writes_boxes_once(
    cnn: Path, bulk_photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    results = bulk_photos / "results"
    results.mkdir()
    (results / "index.html").write_text('<meta name="generator" content="visattn">')
    written: list[Any] = []
    write = BoxFile.write
    monkeypatch.setattr(BoxFile, "write", lambda file: written.append(file) or write(file))
    boxes = tmp_path / "boxes.json"
    words = ("--normalize", "global", "--boxes", str(boxes))
    assert overlay(bulk_photos, cnn, tmp_path / "out", *words) == 1
    assert capsys.readouterr().err.count("results of visattn") == 1
    assert len(written) == 1
    assert len(json.loads(boxes.read_text())["images"]) == 4


def test_pages_in_subfolders_link_to_the_index(
    cnn: Path, bulk_photos: Path, tmp_path: Path
) -> None:
    (bulk_photos / "sub").mkdir()
    (bulk_photos / "3.png").rename(bulk_photos / "sub" / "3.png")
    overlay(bulk_photos, cnn, tmp_path / "out", "--explorer")
    page = (tmp_path / "out" / "sub" / "3.html").read_text()
    assert 'href="./../index.html"' in page
    index = parse_index_page((tmp_path / "out" / "index.html").read_text())
    assert {card.page for card in index} >= {"sub/3.html", "4.html"}
