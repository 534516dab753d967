"""Models in files, in runs and on the hub: round trips, refusals, nothing executed."""

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from command_sandbox import add_run
from killed_steps import failed_at, killed_at
from model_examples import EXAMPLES
from safetensors.torch import load_file, save_file
from torch import nn
from traps import Trap

import visattn as va
from visattn.cli import main
from visattn.models import AttentionResNet, SmallEncoder
from visattn.models.config import build_model, model_config
from visattn.models.loaded import loaded_with
from visattn.models.model_files import find_run, run_checkpoint, run_config


def small(**options: Any) -> AttentionResNet:
    return AttentionResNet(("cat", "dog"), img_size=(32, 32), depth=8, stem_width=4, **options)


def same(first: nn.Module, second: nn.Module) -> bool:
    mine, its = first.state_dict(), second.state_dict()
    return mine.keys() == its.keys() and all(torch.equal(each, its[k]) for k, each in mine.items())


def test_weights_keep_their_kind(tmp_path: Path) -> None:
    model = SmallEncoder((24, 24), channels=8).half()
    va.save(model, tmp_path / "m.safetensors")
    held = load_file(tmp_path / "m.safetensors")
    assert {k: v.dtype for k, v in held.items()} == {
        k: v.dtype for k, v in model.state_dict().items()
    }


@pytest.mark.parametrize("stopped_at", [failed_at, pytest.param(killed_at, marks=pytest.mark.slow)])
def test_a_stopped_save_leaves_the_old_or_the_new_model(stopped_at: Any, tmp_path: Path) -> None:
    file, step, found = tmp_path / "m.safetensors", 0, []
    models = {"old": small(), "new": small()}

    va.save(models["old"], file)
    while stopped_at(step, lambda: va.save(models["new"], file)):
        loaded = va.load(file)
        found.append(next(name for name, model in models.items() if same(model, loaded)))
        va.save(models["old"], file)
        step += 1
    assert set(found) == {"old", "new"}


def test_a_run_is_its_best_checkpoint(tmp_path: Path) -> None:
    model, run = small(), tmp_path / "runs" / "1"
    add_run(run, model)
    for name in (run, tmp_path / "runs", run / "checkpoints", run / "checkpoints" / "best.ckpt"):
        loaded = va.load(name)
        assert same(loaded, model)
        assert loaded_with(loaded).weights == str(run / "checkpoints" / "best.ckpt")
    (run / "checkpoints" / "best.ckpt").rename(run / "checkpoints" / "last.ckpt")
    assert run_checkpoint(run).name == "last.ckpt"
    for name in ("config-2.yaml", "config-10.yaml", "config-old.yaml", "config-9.yaml.part"):
        (run / name).touch()
    assert run_config(run).name == "config-10.yaml"


OWN = """
from visattn.models import SmallEncoder
class Own{0}(SmallEncoder):
    pass
"""


def test_a_class_of_your_own_is_found_where_its_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules" / "own_nets").mkdir(parents=True)
    for name in ("One", "Two"):
        (tmp_path / "modules" / "own_nets" / f"{name.lower()}.py").write_text(OWN.format(name))
    (tmp_path / "modules" / "own_nets" / "__init__.py").touch()
    encoder = SmallEncoder((24, 24), channels=8)
    config = {**model_config(encoder), "class": "OwnOne"}
    state = {f"model.{name}": each for name, each in encoder.state_dict().items()}
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    torch.save(
        {"visattn": {"model": config}, "state_dict": state}, tmp_path / "run/checkpoints/best.ckpt"
    )
    text = "model:\n  encoder:\n    class_path: own_nets.one.OwnOne\n    init_args: {}\n"
    (tmp_path / "run" / "config.yaml").write_text(text)
    monkeypatch.chdir(tmp_path / "modules")  # "", the working directory, is not in the path yet
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    for trusted in ("", "own_net", "own_nets.two"):
        monkeypatch.setenv("VISATTN_TRUST_MODULES", trusted)
        with pytest.raises(ValueError, match=r"'OwnOne', which is not one.*VISATTN_TRUST_MODULES="):
            va.load(tmp_path / "run")
    assert "own_nets.one" not in sys.modules
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "own_nets")
    loaded = va.load(tmp_path / "run")
    assert (type(loaded).__name__, type(loaded).__module__) == ("OwnOne", "own_nets.one")
    assert same(loaded, encoder)
    # A file says no module: those that are trusted are imported.
    assert main(["export", str(tmp_path / "run")]) == 0
    exported = tmp_path / "run" / "model.safetensors"
    assert type(va.load(exported)) is type(loaded)
    assert '"class": "OwnOne"' in json.dumps(model_config(loaded))


def test_arguments_that_left_are_read_where_they_change_nothing() -> None:
    config = model_config(EXAMPLES["VisionTransformer"])
    old = {"attn_type": "full", "window_size": [7, 7], "num_registers": 0, "norm_eps": 1e-6}
    again = build_model({**config, "arguments": {**config["arguments"], **old}})
    assert model_config(again) == config
    for wrong in ({"num_registers": 4}, {"attn_type": "windows"}, {"norm_eps": 0}, {"sise": 3}):
        arguments = {**config["arguments"], **old, **wrong}
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            build_model({**config, "arguments": arguments})


def test_pickles_do_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for suffix in (".safetensors", ".ckpt", ".pth"):
        file = tmp_path / f"evil{suffix}"
        for content in (Trap(mark), {"visattn": Trap(mark)}, {"state_dict": [Trap(mark)]}):
            for zipped in (True, False):
                torch.save(content, file, _use_new_zipfile_serialization=zipped)
                with pytest.raises(ValueError, match="is damaged"):
                    va.load(file)
        file.write_bytes(pickle.dumps(Trap(mark)))
        with pytest.raises(ValueError, match="is damaged"):
            va.load(file)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()  # the trap works


def header(text: str | None) -> Callable[[Path], object]:
    def load(folder: Path) -> object:
        file = folder / "m.safetensors"
        save_file({"w": torch.ones(2)}, file, None if text is None else {"visattn": text})
        return va.load(file)

    return load


def checkpoint(content: Any) -> Callable[[Path], object]:
    def load(folder: Path) -> object:
        torch.save(content, folder / "m.ckpt")
        return va.load(folder / "m.ckpt")

    return load


def config(name: object, /, **arguments: Any) -> Callable[[Path], object]:
    return checkpoint(
        {"visattn": {"model": {"class": name, "arguments": arguments}}, "state_dict": {}}
    )


def torn(folder: Path) -> object:
    va.save(small(), folder / "m.safetensors")
    content = (folder / "m.safetensors").read_bytes()
    (folder / "m.safetensors").write_bytes(content[: len(content) // 2])
    return va.load(folder / "m.safetensors")


def several_runs(folder: Path) -> object:
    for number in range(1, 12):
        (folder / "runs" / str(number) / "checkpoints").mkdir(parents=True)
    return find_run(folder / "runs")


def nan_argument(folder: Path) -> object:
    encoder = SmallEncoder((24, 24), channels=8)
    encoder.coord_scale = float("nan")
    return va.save(encoder, folder / "m.safetensors")


REFUSED: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "mistyped name": (lambda _: va.load("scene-captioner"), FileNotFoundError, "scenes-captioner"),
    "unknown name": (lambda _: va.load("timn:a"), FileNotFoundError, "named by .*timm:NA"),
    "no file": (lambda f: va.load(f / "a.safetensors"), FileNotFoundError, "no model is named"),
    "no run": (lambda f: va.load(f), FileNotFoundError, "there is no run of visattn fit at"),
    "no config": (lambda f: run_config(f), FileNotFoundError, "no config.yaml in .*--config FILE"),
    "no checkpoint": (lambda f: run_checkpoint(f), FileNotFoundError, "checkpoints: none"),
    "several runs": (several_runs, ValueError, r"11 runs; choose one, .*runs/7, .*runs/11$"),
    "weights alone": (header(None), ValueError, "has no model config: .*weights='m.s"),
    "another format": (header('{"format": "pt"}'), ValueError, "has no model config"),
    "no JSON": (header("{"), ValueError, "invalid JSON"),
    "torn": (torn, ValueError, "is damaged or not a safetensors file"),
    "no checkpoint of ours": (checkpoint({"state_dict": {}}), ValueError, "has no model config"),
    "a list": (checkpoint([1]), ValueError, "has no model config"),
    "another class": (config("os.system", command="true"), ValueError, "'os.system', which is not"),
    "no class": (config(["SmallEncoder"]), ValueError, "which is not one of visattn"),
    "a base class": (config("ImageEncoder"), ValueError, "which is not one of visattn"),
    "a part of another class": (
        config("ShowAttendTell", encoder={"class": "subprocess.Popen", "arguments": {}}),
        ValueError, "'subprocess.Popen', which is not",
    ),
    "a wrong argument": (config("SmallEncoder", img_size="large"), ValueError, "cannot be loaded"),
    "a download": (config("TimmEncoder", name="test_resnet", pretrained=True), ValueError, "not s"),
    "another file": (config("TimmEncoder", name="test_resnet", weights="/x"), ValueError, "not s"),
    "a file of timm's": (
        config("TimmEncoder", name="test_resnet", timm_kwargs={"checkpoint_path": "/x"}),
        ValueError, "may not contain checkpoint_path",
    ),
    "no weights": (config("SmallEncoder", img_size=[24, 24]), ValueError, "missing keys"),
    "text for weights": (
        checkpoint({
            "visattn": {"model": {"class": "SmallEncoder", "arguments": {"img_size": [24, 24]}}},
            "state_dict": {"model.x": "text"},
        }),
        ValueError, "cannot be loaded",
    ),
    "not a model of ours": (
        lambda f: va.save(nn.Linear(2, 3), f / "m.safetensors"), ValueError, "va.load.'FILE.py:",
    ),
    "another suffix": (lambda f: va.save(small(), f / "m.pt"), ValueError, "must end in .safet"),
    "no plain value": (nan_argument, ValueError, "not JSON compliant"),
    "a name on the hub": (lambda _: va.load("hf://user"), ValueError, "is named hf://USER/NAME"),
    "arguments": (
        lambda f: va.load("scenes-captioner", weights=f / "w.pth"), ValueError, "comes with its",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    call, kind, reason = REFUSED[name]
    with pytest.raises(kind, match=reason):
        call(tmp_path)


class FolderHub:
    """The part of `HfApi` that is used, on a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.created: list[Any] = []

    def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> None:
        self.created.append((repo, private))

    def create_branch(self, repo: str, *, branch: str, exist_ok: bool) -> None:
        self.created.append((repo, branch))

    def upload_folder(
        self, *, repo_id: str, folder_path: str, revision: str | None, commit_message: str
    ) -> None:
        shutil.copytree(folder_path, self.folder / repo_id / (revision or "main"))

    def hf_hub_download(self, repo: str, file: str, *, revision: str | None) -> str:
        return str(self.folder / repo / (revision or "main") / file)


def test_models_come_back_from_the_hub_with_their_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = FolderHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: hub)
    first, second, run = small(), small(), tmp_path / "run"
    va.save(first, "hf://user/pets", private=True)
    va.save(second, "hf://user/pets@wide")
    assert hub.created == [("user/pets", True), ("user/pets", False), ("user/pets", "wide")]
    assert same(va.load("hf://user/pets"), first)
    assert same(va.load("hf://user/pets@wide"), second)
    assert loaded_with(va.load("hf://user/pets")).weights == "hf://user/pets"
    add_run(run, first)
    (run / "test.json").write_text('{"test/accuracy": 0.875, "chance": "half"}')
    options = ["--summary", "Cats.", "--license", "mit"]
    assert main(["export", str(run), "--out", "hf://user/cats", *options]) == 0
    assert capsys.readouterr().out.startswith("hf://user/cats\tAttentionResNet")
    text = (hub.folder / "user/cats/main/README.md").read_text()
    for part in (
        "pipeline_tag: image-classification\nlicense: mit\n", "Cats.", '"class": "AttentionResNet"',
        'va.load("hf://user/cats")', '"test/accuracy": 0.875', "max_epochs: 2",
    ):  # fmt: skip
        assert part in text
