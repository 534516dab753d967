"""The one loop of the commands, with a command that needs no model: the mean of each photo."""

import json
import multiprocessing
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from index_cards import parse_index_page
from killed_steps import killed_at
from PIL import Image

from visattn.cli import main
from visattn.commands import loop
from visattn.commands.loop import Command, Folder, LoopOptions, Made, read_record
from visattn.images.reader import LoadedImage

Files = dict[str, bytes]


def run(
    folder: Path,
    out: Path,
    *,
    name: str = "mean",
    more: bool = False,
    scale: int = 1,
    **options: Any,
) -> tuple[int, list[str]]:
    """Run the command; return its exit code and the photos that were computed."""
    computed: list[str] = []

    def infer(images: Sequence[LoadedImage]) -> list[float | Exception]:
        computed.extend(Path(image.name).stem for image in images)
        return [float(image.pixels.mean()) * scale for image in images]

    def draw(image: LoadedImage, mean: float, files: Sequence[str]) -> Made:
        contents = dict.fromkeys(files, f"{mean:.1f}".encode())
        return Made({"mean": mean}, contents, [(f"{mean:.1f}",)], [{"mean": mean}], f"{mean:.0f}")

    endings = ["{}.txt", *["{}.more.txt"] * more]
    command = Command(name, "Means", {"scale": scale, "more": more}, infer, draw, endings)
    code = loop.run(command, [folder], LoopOptions(out, **options), batch_size=3)
    return code, computed


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    for number, name in enumerate(("a", "b", "sub/c", "sub/a"), start=1):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (11, 7), 10 * number).save(path)
    return folder


def contents(folder: Path) -> Files:
    """Return the files of a folder, without temporary ones of killed processes."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: path.read_bytes() for name, path in files.items() if path.is_file() and name[0] != "."
    }


def test_results_index_and_table(images: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert run(images, out) == (0, ["a", "b", "a", "c"])
    rows = "a\t10.0\nb\t20.0\nsub/a\t40.0\nsub/c\t30.0\n"
    printed = capsys.readouterr()
    assert printed.out == rows
    assert f"open in a browser: {out / 'index.html'}" in printed.err
    names = ("a", "b", "sub/a", "sub/c")
    expected = {f"{name}.{end}" for name in names for end in ("txt", "json")}
    assert contents(out).keys() == expected | {"index.html", "mean.csv"}
    page = (out / "index.html").read_text()
    cards = {card.page: card.caption for card in parse_index_page(page)}
    assert cards == {"a.txt": "10", "b.txt": "20", "sub/a.txt": "40", "sub/c.txt": "30"}
    links = re.findall(r'class="photo" href="([^"]+)"', page)
    base = (out / "index.html").as_uri()
    assert all(Path(unquote(urlsplit(urljoin(base, link)).path)).is_file() for link in links)
    lines = (out / "mean.csv").read_text().splitlines()
    assert [lines[0], lines[2]] == ["photo,mean", f"{images / 'b.png'},20.0"]
    before = contents(out)
    assert run(images, out) == (0, [])  # finished, with the same rows
    assert capsys.readouterr().out == rows
    assert contents(out) == before


def test_parts_together_write_what_one_run_writes(images: Path, tmp_path: Path) -> None:
    run(images, tmp_path / "whole")
    for part, names in (("1/3", ["a"]), ("2/3", ["b"]), ("3/3", ["a", "c"])):
        assert run(images, tmp_path / "parts", shard=part) == (0, names)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.slow  # starts processes
def test_two_processes_share_a_folder(images: Path, tmp_path: Path) -> None:
    run(images, tmp_path / "whole")
    context = multiprocessing.get_context("fork")
    parts = [context.Process(target=run, args=(images, tmp_path / "parts"),
                             kwargs={"shard": f"{part}/2"}) for part in (1, 2)]  # fmt: skip
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    assert [part.exitcode for part in parts] == [0, 0]
    run(images, tmp_path / "parts")  # of two that end at once, one writes the index last
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_the_index_tells_model_day_and_accuracy(images: Path, tmp_path: Path) -> None:
    classes = tmp_path / "classes"
    for name in ("rose/1", "tulip/2"):
        (classes / name).parent.mkdir(parents=True)
        Image.new("L", (5, 4), 80).save(classes / f"{name}.png")
    draw = lambda image, result, files: Made({}, {files[0]: b""}, table=[{"class": "rose"}])  # noqa: E731
    command = Command("name", "Names", {"model": "net"}, lambda photos: photos, draw, ["{}.txt"])
    for known, said in ((("rose", "tulip"), "accuracy 50.0% of 2"), (("rose",), "")):
        out = tmp_path / f"out{len(known)}"
        loop.run(command._replace(classes=known), [classes], LoopOptions(out))
        page = (out / "index.html").read_text()
        assert re.search(rf'<p id="about">net . visattn name . \d+ \w+ \d{{4}}( . )?{said}<', page)
        assert ("wrong: tulip" in page) == bool(said)


@pytest.mark.parametrize("name", ["b.txt", "b.json", "mean.csv", "index.html"])
def test_files_of_others_are_not_replaced(name: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("{}")
    with pytest.raises(FileExistsError, match=rf"{name}.*--overwrite"):
        run(images, out)
    assert contents(out).keys() == {name}
    assert run(images, out, overwrite=True)[0] == 0
    assert (out / name).read_text() != "{}"


def test_results_of_another_photo_or_command_are_kept(images: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    run(images, out)
    other.mkdir()
    Image.new("L", (5, 5), 200).save(other / "b.png")
    with pytest.raises(FileExistsError, match=r"holds b\.json, .*it holds results of .*in/b\.png"):
        run(other, out)
    (images / "b.png").rename(tmp_path / "b.png")
    assert run(tmp_path / "b.png", out) == (0, [])  # the same content elsewhere
    with pytest.raises(FileExistsError, match="it holds results of visattn mean"):
        run(images, out, name="other")


@pytest.mark.parametrize("change", ["photo", "file", "settings", "overwrite"])
def test_what_differs_is_computed_again(change: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(images, out)
    if change == "photo":
        Image.new("L", (11, 7), 99).save(images / "b.png")
    elif change == "file":
        (out / "b.txt").unlink()
    options = {"settings": {"scale": 2}, "overwrite": {"overwrite": True}}.get(change, {})
    code, computed = run(images, out, **options)
    assert code == 0
    assert computed == (["b"] if change in ("photo", "file") else ["a", "b", "a", "c"])
    shown = {"photo": "99.0", "settings": "40.0"}.get(change, "20.0")
    assert (out / "b.txt").read_text() == shown


def test_files_of_other_settings_leave_with_their_record(images: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    run(images, out, more=True)
    assert "b.more.txt" in contents(out)
    run(images, out, scale=2)
    run(images, whole, scale=2)
    assert contents(out) == contents(whole)


def test_a_failing_write_leaves_the_earlier_result(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "out"
    run(images, out)
    before = contents(out)
    stage = Folder._stage

    def full(folder: Folder, content: bytes) -> Path:
        if content == b"40.0":  # of photo b
            raise OSError(28, "No space left on device")
        return stage(folder, content)

    monkeypatch.setattr(Folder, "_stage", full)
    assert run(images, out, scale=2)[0] == 1
    assert "not written: b: " in capsys.readouterr().err
    assert {name: contents(out)[name] for name in ("b.json", "b.txt")} == {
        name: before[name] for name in ("b.json", "b.txt")
    }
    assert json.loads((out / "sub/c.json").read_text())["mean"] == 60.0


def test_no_photo_is_replaced(images: Path) -> None:
    (images / "a.txt").symlink_to(images / "a.png")
    with pytest.raises(ValueError, match=r"would overwrite the input image a\.txt"):
        run(images / "a.png", images, overwrite=True)


def test_records_of_strangers_are_none(tmp_path: Path) -> None:
    made = {"command": "mean", "photo": "a.png", "settings": {}, "sha256": "", "files": []}
    made |= {"name": "a", "rows": [], "table": [], "card": {}}
    outside = {**made, "files": ["../b.txt"]}  # would be removed with the next result
    for content in ([], {"made": 1}, {"made": {"command": 3, "files": {}}}, {"made": outside}):
        (tmp_path / "a.json").write_text(json.dumps(content))
        assert read_record(tmp_path / "a.json") is None
    (tmp_path / "a.json").write_text(json.dumps({"made": made}))
    assert read_record(tmp_path / "a.json") is not None


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_at_any_step_leaves_no_mixture(
    stride: int, images: Path, tmp_path: Path
) -> None:
    def made(out: Path, **options: Any) -> Files:
        assert run(images / "sub", out, **options)[0] == 0
        return contents(out)

    first = made(tmp_path / "first")
    second = made(tmp_path / "second", scale=2, more=True)
    step = 0
    while True:
        out = tmp_path / f"out-{step}"
        shutil.copytree(tmp_path / "first", out)
        if not killed_at(step, lambda out=out: run(images / "sub", out, scale=2, more=True)):
            break
        assert made(out) == first, step
        assert made(out, scale=2, more=True) == second, step
        step += stride
    assert step > 30


def test_what_is_removed_or_unfinished_has_no_card(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run(images, out)
    (out / "a.txt").unlink()
    record = json.loads((out / "b.json").read_text())
    record["made"]["settings"] = None  # as a killed run leaves it
    (out / "b.json").write_text(json.dumps(record))
    (out / "notes.json").write_text("{}")
    monkeypatch.setattr(loop, "_THUMBNAILS", 1)
    run(images / "sub" / "c.png", out)
    names = ["c", "sub/a", "sub/c"]
    assert [card.name for card in parse_index_page((out / "index.html").read_text())] == names
    assert len((out / "mean.csv").read_text().splitlines()) == 4


def test_an_interruption_leaves_index_table_and_no_temporary_file(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, start = tmp_path / "out", Folder.start

    def interrupted(folder: Folder, path: Path) -> Any:
        if path.name == "c.png":
            raise KeyboardInterrupt
        return start(folder, path)

    monkeypatch.setattr(Folder, "start", interrupted)
    with pytest.raises(KeyboardInterrupt, match="3 of 4 images are done"):
        run(images, out)
    assert len(parse_index_page((out / "index.html").read_text())) == 3
    assert not list(out.glob(".*"))


def test_large_photos_do_not_wait_for_a_full_batch(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    infer = loop._infer
    monkeypatch.setattr(loop, "_PIXELS", 2 * 11 * 7)

    def counted(command: Command, batches: Any, skip: Any) -> Any:
        return infer(command, (sizes.append(len(each)) or each for each in batches), skip)

    monkeypatch.setattr(loop, "_infer", counted)
    assert run(images, tmp_path / "out")[0] == 0
    assert sizes == [2, 2]


def test_a_photo_that_changes_while_it_is_read_is_computed_again(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from visattn.images import reader

    read = reader.read_image

    def changing(path: Path) -> LoadedImage:
        image = read(path)
        Image.new("L", (11, 7), 99).save(path)
        return image

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_image", changing)
        run(images / "b.png", tmp_path / "out")
    assert run(images / "b.png", tmp_path / "out") == (0, ["b"])
    assert (tmp_path / "out" / "b.txt").read_text() == "99.0"


def test_values_that_are_no_numbers_are_null() -> None:
    assert loop._encode({"a": [float("nan"), 1.0], "b": (float("inf"),)}) == (
        b'{"a": [null, 1.0], "b": [null]}\n'
    )


@pytest.mark.parametrize("shard", ["0/2", "3/2", "half", "1/"])
def test_parts_have_numbers(shard: str, images: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--shard must be I/N"):
        run(images, tmp_path / "out", shard=shard)


def test_one_photo_by_two_commands_without_a_folder(
    photos: Path, sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["overlay", "in/wide.png", "--model", str(sandbox / "cnn.safetensors")]
    monkeypatch.setattr("sys.argv", ["visattn", *line])
    assert main(line) == 0
    assert main(["caption", *line[1:-1], str(sandbox / "captioner.safetensors")]) == 0
    index = (tmp_path / "visattn-out/overlay/index.html").read_text()
    assert f"visattn overlay in/wide.png --model {line[-1]}" in index
    assert (tmp_path / "visattn-out/overlay/wide.gradcam.png").exists()  # the method that fits
    assert (tmp_path / "visattn-out/caption/wide.html").exists()
