"""`visattn caption` with models of transformers."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import visattn as va
from visattn.cli import main
from visattn.results.captions import Caption

pytest.importorskip("transformers")

from tests.helpers.tiny_vlms import WORDS, build

Capsys = pytest.CaptureFixture[str]


def with_words(name: str) -> tuple[Any, Any]:
    """A tiny model that generates only tokens that are words."""
    model, processor = build(name)
    words = range(len(processor[1] if isinstance(processor, tuple) else processor.tokenizer))
    first = len(words) - len(WORDS)
    model.generation_config.forced_eos_token_id = None
    model.generation_config.suppress_tokens = [*range(first), *range(len(words), 200)]
    return model, processor


def save(name: str, folder: Path) -> Path:
    model, processor = with_words(name)
    model.save_pretrained(folder / name)
    for part in processor if isinstance(processor, tuple) else [processor]:
        part.save_pretrained(folder / name)
    return folder / name


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llava", tmp_path_factory.mktemp("models"))


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A portrait, a panorama and a file that is no image."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(3)
    for name, size in {"portrait": (90, 41), "panorama": (30, 160)}.items():
        pixels = generator.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    (folder / "broken.jpg").write_text("no image")
    return folder


def run(model: Path, *words: object, generate: tuple[str, ...] = ()) -> int:
    options = ("--generate", "max_new_tokens=4", *generate)
    return main(["caption", *map(str, words), "--model", f"hf:{model}", *options])


def record_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "portrait.json").read_text())


def test_a_folder_yields_rows_pages_and_arrays(
    llava: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    assert run(llava, photos, "--out", out) == 1
    lines, errors = capsys.readouterr()
    rows = dict(line.split("\t") for line in lines.splitlines())
    assert set(rows) == {"portrait", "panorama"}
    assert "broken.jpg" in errors
    record = record_of(out)
    assert record["caption"] == rows["portrait"]
    maps = np.load(out / "portrait.npz")["maps"]
    np.testing.assert_allclose(maps.sum((1, 2)), record["gates"], rtol=1e-4)
    page = (out / "portrait.html").read_text()
    assert "attention of LlavaForConditionalGeneration; mean of 2 layers; mean of heads" in page
    model, processor = with_words("llava")
    photo = photos / "portrait.png"
    [known] = va.caption(model, photo, processor=processor, max_new_tokens=4)
    np.testing.assert_allclose(maps, known.maps.values.numpy(), atol=1e-5)


def test_options_reach_the_model_and_the_maps(llava: Path, photos: Path, tmp_path: Path) -> None:
    photo = photos / "portrait.png"
    controls = ["--layers", "-1", "--heads", "0", "2", "--relative"]
    assert run(llava, photo, "--out", tmp_path / "controls", *controls) == 0
    made = record_of(tmp_path / "controls")["maps"]["info"]["more"]
    assert (made["layers"], made["heads"], made["relative"]) == ([-1], [0, 2], True)
    records = {}
    for method in ("attention", "gradient_attention", "occlusion"):
        assert run(llava, photo, "--out", tmp_path / method, "--method", method) == 0
        records[method] = record_of(tmp_path / method)
    assert len({json.dumps(each["maps"]["values"]) for each in records.values()}) == 3
    assert len({each["caption"] for each in records.values()}) == 1
    sampled = ("do_sample=true", "temperature=2.0", "num_return_sequences=3")
    texts = []
    for name in ("a", "b"):
        assert run(llava, photo, "--out", tmp_path / name, "--seed", 5, generate=sampled) == 0
        texts.append(record_of(tmp_path / name))
    assert texts[0] == texts[1]
    assert len(texts[0]["alternatives"]) == 2
    assert run(llava, photo, "--out", tmp_path / "b", "--seed", 6, generate=sampled) == 0
    assert record_of(tmp_path / "b")["log_probs"] != texts[1]["log_probs"]


def test_image_processor_and_tokenizer_suffice(photos: Path, tmp_path: Path) -> None:
    assert run(save("ved", tmp_path), photos / "portrait.png") == 0


def test_the_network_is_not_used(
    llava: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert run(llava, photos / "portrait.png") == 0
    assert run(Path("Salesforce/blip-image-captioning-base"), photos / "portrait.png") == 1
    assert "visattn downloads nothing" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run(llava, photos / "portrait.png", "--overwrite") == 1
    assert "pip install 'visattn[hf]'" in capsys.readouterr().err


def test_photos_that_a_model_cannot_process_are_skipped(
    llava: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    from visattn.pipelines.words import captions

    original = captions.words_of_photo

    def fails(process: Any, photo: Any, *args: Any, **kwargs: Any) -> Any:
        if photo.name.endswith("portrait.png"):
            raise IndexError("index out of range in self")
        return original(process, photo, *args, **kwargs)

    monkeypatch.setattr(captions, "words_of_photo", fails)
    assert run(llava, photos) == 1
    lines, errors = capsys.readouterr()
    assert lines.startswith("panorama")
    assert "LlavaForConditionalGeneration fails on this photo: index out of range" in errors
    assert "2 of 3 images skipped" in errors
    assert run(llava, photos / "portrait.png", "--out", "alone") == 1
    assert "skipped" not in capsys.readouterr().err  # it failed on the first photo


def test_captions_without_words_are_written(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    model, processor = build("llava")
    model.generation_config.suppress_tokens = [
        token for token in range(200) if token != model.generation_config.eos_token_id
    ]
    for part in (model, processor):
        part.save_pretrained(tmp_path / "silent")
    out = tmp_path / "out"
    words = (photos / "portrait.png", "--out", out, "--figures", "png", "--boxes")
    assert run(tmp_path / "silent", *words) == 0
    assert capsys.readouterr().out == "portrait\t\n"
    record = record_of(out)
    assert (record["caption"], record["words"]) == ("", [])
    assert Caption.from_dict(record).maps.values.shape[0] == 0
    assert "(no words)" in (out / "portrait.html").read_text()
