"""Models on the hub: names, upload and download, by a hub in a folder."""

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from command_sandbox import add_run

import visattn as va
from visattn.cli import main
from visattn.models import SmallEncoder
from visattn.models.resnet import AttentionResNet
from visattn.models.saving.hub import parse_hub_name


class FolderHub:
    """The part of `HfApi` that is used, on a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.created: list[Any] = []

    def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> None:
        self.created.append((repo, private, exist_ok))

    def create_branch(self, repo: str, *, branch: str, exist_ok: bool) -> None:
        self.created.append((repo, branch, exist_ok))

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, revision: str | None, commit_message: str
    ) -> None:
        self.created.append(commit_message)
        shutil.copytree(folder_path, self.folder / repo_id / (revision or "main"))

    def hf_hub_download(self, repo: str, file: str, *, revision: str | None) -> str:
        path = self.folder / repo / (revision or "main") / file
        if not path.exists():
            raise huggingface_hub.errors.LocalEntryNotFoundError(f"no {repo}")
        return str(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderHub:
    made = FolderHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: made)
    return made


def small_encoder() -> SmallEncoder:
    return SmallEncoder((24, 32), channels=8)


def test_names_are_parsed() -> None:
    assert parse_hub_name("hf://user/my.name-2_x@feature/1") == ("user/my.name-2_x", "feature/1")
    assert parse_hub_name("hf:directory") is None
    for wrong in ("hf://user", "hf://user/name/file", "hf://user/name@", "hf://user/na me"):
        with pytest.raises(ValueError, match=r"hf://USER/NAME\[@REVISION\], got 'hf://user"):
            va.load(wrong)


def test_a_model_comes_back_from_the_hub_with_its_card(hub: FolderHub) -> None:
    model = small_encoder()
    image = np.full((5, 7, 3), (200, 30, 90), np.uint8)
    card = va.ModelCard("Features of scenes.", {"accuracy": 0.91}, "seed: 3\n", image, "mit")
    va.save(model, "hf://user/encoder", card=card, private=True)
    assert hub.created == [("user/encoder", True, True), "Upload SmallEncoder"]
    folder = hub.folder / "user/encoder/main"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "example.png", "model.safetensors",
    ]  # fmt: skip
    text = (folder / "README.md").read_text()
    for part in (
        "license: mit", "pipeline_tag: image-feature-extraction", "![example](example.png)",
        'va.load("hf://user/encoder")', "images of 24 x 32 pixels", "| channels | 8 |",
        "| accuracy | 0.91 |", "seed: 3",
    ):  # fmt: skip
        assert part in text
    assert np.array_equal(va.read_image(folder / "example.png").pixels, image)
    loaded = va.load("hf://user/encoder")
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))
    assert va.load_model("hf://user/encoder").weights == "hf://user/encoder"


def test_a_revision_is_a_branch(hub: FolderHub) -> None:
    first, second = small_encoder(), small_encoder()
    va.save(first, "hf://user/encoder")
    va.save(second, "hf://user/encoder@wide")
    assert ("user/encoder", "wide", True) in hub.created
    key = next(iter(first.state_dict()))
    for name, model in (("", first), ("@wide", second)):
        loaded = va.load(f"hf://user/encoder{name}")
        assert torch.equal(loaded.state_dict()[key], model.state_dict()[key])
    with pytest.raises(FileNotFoundError, match="no user/other"):
        va.load("hf://user/other")


def test_a_run_is_exported_with_its_config_and_scores(
    hub: FolderHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    add_run(run, AttentionResNet(("cat", "dog"), depth=8, stem_width=4, img_size=(16, 16)))
    (run / "test.json").write_text('{"test/accuracy": 0.875}')
    assert main(["export", "--run", str(run), "--out", "hf://user/pets"]) == 0
    assert capsys.readouterr().out.startswith("hf://user/pets\tAttentionResNet")
    text = (hub.folder / "user/pets/main/README.md").read_text()
    assert "| test/accuracy | 0.875 |" in text
    assert "max_steps: 2" in text
    assert va.load_model("hf://user/pets").class_names == ("cat", "dog")


def test_the_card_of_a_run_needs_the_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run at"):
        va.ModelCard.from_run(tmp_path / "absent")
