"""The engine of commands, with a job that needs no model: the mean of each image."""

import argparse
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from index_cards import parse_index_page
from killed_steps import killed_at
from PIL import Image

from visattn.commands import records
from visattn.commands.index import Row, card_image
from visattn.commands.records import Part, Record, ResultFolder
from visattn.commands.run import Job
from visattn.images.reader import LoadedImage
from visattn.results.cards import Card


class MeanJob(Job[float]):
    """The mean of each image, as a text file and in the record."""

    command, title = "mean", "Means"

    def __init__(self, folder: Path, out: Path | None, **options: Any) -> None:
        values: dict[str, Any] = {"scale": 1, "more": False, "strict": False, **options}
        args = argparse.Namespace(images=[folder], out=out, **values)
        self.kinds = ("{}.txt", *["{}.more.txt"] * args.more)
        super().__init__(args)
        self.computed: list[str] = []

    def load(self) -> NoReturn:
        raise NotImplementedError  # it has no model

    def settings(self) -> dict[str, Any]:
        return {"scale": self.args.scale}

    def infer(self, images: Sequence[LoadedImage]) -> list[float]:
        self.computed += [Path(image.name).stem for image in images]
        return [float(image.pixels.mean()) * self.args.scale for image in images]

    def parts(self, name: str, image: LoadedImage, result: float) -> Iterable[Part]:
        record = {"mean": result}
        if self.out is None:
            return [Part(name, record)]
        files = {file: f"{result:.1f}".encode() for file in self.files(name, name)}
        card = Card(name, f"{name}.txt", f"{result:.0f}", card_image(image.pixels))
        return [Part(name, record, files, card)]

    def rows(self, record: Record) -> Iterable[Sequence[object]]:
        return [(f"{record['mean']:.1f}",)]

    @staticmethod
    def table(record: Record) -> Iterable[Row]:
        return [{"mean": record["mean"]}]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    for number, name in enumerate(("a", "b", "sub/c", "sub/a"), start=1):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (11, 7), 10 * number).save(path)
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def cards_of(folder: Path) -> list[Card]:
    return parse_index_page((folder / "index.html").read_text())


def test_results_index_and_table(images: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert MeanJob(images, out).run(batch_size=3) == 0
    assert capsys.readouterr().out == "a\t10.0\nb\t20.0\nsub/a\t40.0\nsub/c\t30.0\n"
    names = ("a", "b", "sub/a", "sub/c")
    shared = {"index.html", "mean.csv"}
    assert files(out) == {f"{name}.{end}" for name in names for end in ("txt", "json")} | shared
    assert [card.name for card in cards_of(out)] == ["a", "b", "sub/a", "sub/c"]
    lines = (out / "mean.csv").read_text().splitlines()
    assert lines[0] == "image,mean,files"
    assert f"{images / 'b.png'},20.0,b.txt" in lines
    again = MeanJob(images, out)
    assert again.run() == 0
    assert again.computed == []


def test_subfolders_are_mirrored(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert MeanJob(images, out).run() == 0
    assert {"a.txt", "b.txt", "sub/a.txt", "sub/c.json", "index.html"} <= files(out)
    cards = {card.page: card.caption for card in cards_of(out)}
    assert cards == {"a.txt": "10", "b.txt": "20", "sub/c.txt": "30", "sub/a.txt": "40"}
    links = re.findall(r'class="photo" href="([^"]+)"', (out / "index.html").read_text())
    assert len(links) == 4
    base = (out / "index.html").as_uri()
    assert all(Path(unquote(urlsplit(urljoin(base, link)).path)).is_file() for link in links)
    assert not any("%2F" in link for link in links)
    job = MeanJob(images, out)
    assert [job.index_link(name) for name in ("a", "sub/a")] == ["index.html", "../index.html"]


@pytest.mark.parametrize("name", ["b.txt", "b.json", "mean.csv", "index.html"])
def test_files_of_others_are_not_replaced(name: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("{}")
    with pytest.raises(FileExistsError, match=rf"{name}.*--overwrite"):
        MeanJob(images, out).run()
    assert files(out) == {name}
    assert MeanJob(images, out, overwrite=True).run() == 0
    assert (out / name).read_text() != "{}"


def test_results_of_another_image_or_command_are_kept(images: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    MeanJob(images, out).run()
    other.mkdir()
    Image.new("L", (5, 5), 200).save(other / "b.png")
    with pytest.raises(FileExistsError, match=r"holds b\.json, .*it holds results of .*in/b\.png"):
        MeanJob(other, out).run()
    (images / "b.png").rename(tmp_path / "b.png")
    assert MeanJob(tmp_path / "b.png", out).run() == 0  # the same content elsewhere
    another = type("OtherJob", (MeanJob,), {"command": "other"})
    with pytest.raises(FileExistsError, match="it holds results of visattn mean"):
        another(images, out).run()


def test_a_changed_image_is_computed_again(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    MeanJob(images, out).run()
    Image.new("L", (11, 7), 99).save(images / "b.png")
    job = MeanJob(images, out)
    assert job.run() == 0
    assert job.computed == ["b"]
    assert (out / "b.txt").read_text() == "99.0"


def test_files_of_former_settings_leave_with_their_record(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    MeanJob(images, out, more=True).run()
    assert "b.more.txt" in files(out)
    MeanJob(images, out).run()  # what is there has more than was requested
    assert "b.more.txt" in files(out)
    MeanJob(images, out, scale=2).run()
    assert "b.more.txt" not in files(out)
    whole = tmp_path / "whole"
    MeanJob(images, whole, scale=2).run()
    assert {name: (out / name).read_bytes() for name in files(out)} == {
        name: (whole / name).read_bytes() for name in files(whole)
    }


def test_a_failing_write_leaves_the_earlier_result(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "out"
    MeanJob(images, out).run()
    before = {name: (out / name).read_bytes() for name in files(out)}
    stage = ResultFolder._stage

    def full(folder: ResultFolder, content: bytes | Path) -> Path:
        if content == b"40.0":  # of image b
            raise OSError(28, "No space left on device")
        return stage(folder, content)

    monkeypatch.setattr(ResultFolder, "_stage", full)
    assert MeanJob(images, out, scale=2).run() == 1
    assert "b.png: " in capsys.readouterr().err
    assert (out / "b.json").read_bytes() == before["b.json"]
    assert (out / "b.txt").read_bytes() == before["b.txt"]
    assert json.loads((out / "sub/c.json").read_text())["mean"] == 60.0


def test_strangers_records_are_no_results(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    made = {"command": "mean", "image": "a.png", "settings": {}, "files": ["../b.txt"]}
    outside = json.dumps({"provenance": made})  # would be removed with the next result
    for content in (
        "[]",
        '{"provenance": 1}',
        '{"provenance": {"command": 3, "files": {}}}',
        outside,
    ):
        (tmp_path / "a.json").write_text(content)
        assert folder.read("a") is None
    assert records.plain_values({"a": (1, Path("b"))}) == {"a": [1, "b"]}


@pytest.mark.parametrize("change", ["file", "request"])
def test_what_is_missing_is_computed_again(change: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    MeanJob(images, out).run()
    if change == "file":
        (out / "b.txt").unlink()
    job = MeanJob(images, out, more=change == "request")
    assert job.run() == 0
    assert job.computed == (["b"] if change == "file" else ["a", "b", "a", "c"])
    assert (out / "b.txt").is_file()
    assert (out / "b.more.txt").is_file() == (change == "request")


def test_a_run_that_is_killed_at_any_step_leaves_no_mixture(images: Path, tmp_path: Path) -> None:
    def contents(out: Path, **options: Any) -> dict[str, bytes]:
        assert MeanJob(images / "sub", out, **options).run() == 0
        # without temporary files of killed processes
        return {name: (out / name).read_bytes() for name in files(out) if name[0] != "."}

    first = contents(tmp_path / "first")
    second = contents(tmp_path / "second", scale=2, more=True)
    step = 0
    while True:
        out = tmp_path / f"out-{step}"
        shutil.copytree(tmp_path / "first", out)
        if not killed_at(step, MeanJob(images / "sub", out, scale=2, more=True).run):
            break
        assert contents(out) == first, step
        assert contents(out, scale=2, more=True) == second, step
        step += 2
    assert step > 20


def test_an_image_is_read_once_for_its_digest(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    digests = MeanJob.digests

    def counted(job: MeanJob, path: Path) -> dict[str, Any]:
        read.append(path.name)
        return digests(job, path)

    monkeypatch.setattr(MeanJob, "digests", counted)
    for _ in range(2):
        read.clear()
        MeanJob(images, tmp_path / "out").run()
        assert sorted(read) == ["a.png", "a.png", "b.png", "c.png"]
