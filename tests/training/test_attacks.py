"""Attacks by hostile configs and checkpoints: each is refused, and no code of theirs runs."""

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from classification_data import accept_test_cifar_files, write_digits

from visattn.cli import main

SECRET = "hunter2-the-secret"
Refused = Callable[..., str]


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a hostile module creates when it is imported."""
    mark = tmp_path / "imported"
    (tmp_path / "evilmod.py").write_text(
        f"""\
from lightning import Callback
from pathlib import Path
Path({str(mark)!r}).touch()
class Evil(Callback): pass
def function(*_): pass
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    sys.modules.pop("evilmod", None)


@pytest.fixture
def refused(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that runs the tiny config with a hostile one over it and returns stderr."""

    def run(over: Any = None, *arguments: str, code: int = 2) -> str:
        more: list[str] = []
        if over is not None:
            file = tmp_path / "hostile.yaml"
            file.write_text(over if isinstance(over, str) else yaml.safe_dump(over))
            more = ["--config", str(file)]
        assert main(["fit", "--config", str(tiny), *more, *arguments]) == code, (over, arguments)
        output = capsys.readouterr()
        lines = [line for line in output.err.splitlines() if line.startswith("visattn: ")]
        assert len(lines) == 1  # and no traceback
        assert output.out == ""
        assert code != 2 or not Path("runs").exists()
        return output.err[output.err.index("visattn: ") :]

    return run


def test_untrusted_classes_are_not_imported(refused: Refused, evil: Path) -> None:
    captioner = {"class_path": "evilmod.Evil"}
    for over in (
        {"model": {"class_path": "evilmod.Evil"}},
        {"trainer": {"callbacks": [{"class_path": "evilmod.Evil"}]}},
        {"model": {"init_args": {"captioner": captioner}}},
        {"trainer": {"plugins": ["evilmod.Evil"]}},
    ):
        message = refused(over)
        assert "Importing 'evilmod.Evil' is not allowed" in message
        assert message.endswith("set VISATTN_TRUST_MODULES=evilmod\n")
    assert not evil.exists()


BLOCKS = """\
trainer: {accelerator: cpu, max_epochs: 1, enable_progress_bar: false, logger: false}
model:
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: AttentionResNet
      init_args: {depth: 8, stem_width: 4, img_size: [28, 28], mean: [0.1], std: [0.3]}
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: TorchvisionImages
      init_args:
        {dataset: MNIST, root: DIGITS, val: 5}
    batch_size: 6
"""


def test_untrusted_blocks_are_not_imported(
    evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accept_test_cifar_files(monkeypatch)
    write_digits(tmp_path)
    (tmp_path / "blocks.yaml").write_text(BLOCKS.replace("DIGITS", str(tmp_path)))
    words = ["fit", "--config", "blocks.yaml", "--run", "run"]
    place = "--model.classifier.init_args"
    for key, block in (("block", "evilmod.Evil"), ("stem_block", "os.system")):
        assert main([*words, f"{place}.{key}", block]) == 1
        assert f"there is no block named '{block}'" in capsys.readouterr().err
    assert not evil.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "torch.load",
        "evilmod.function",
        "visattn.models.saving.os.system",
    ],
)
def test_untrusted_functions_are_not_imported(name: str, refused: Refused, evil: Path) -> None:
    assert name.split(".")[-1] in refused({"model": {"init_args": {"optim": {"optimizer": name}}}})
    assert not evil.exists()


def test_a_class_path_in_an_untyped_value_stays_a_mapping(refused: Refused, evil: Path) -> None:
    encoder = {
        "class_path": "TimmEncoder",
        "init_args": {
            "name": "test_resnet",
            "img_size": [96, 64],
            "timm_kwargs": {"drop_rate": {"class_path": "evilmod.Evil"}},
        },
    }
    over = {"model": {"init_args": {"captioner": {"init_args": {"encoder": encoder}}}}}
    refused(over, code=1)
    assert not evil.exists()


def test_python_tags_are_refused(refused: Refused, tmp_path: Path) -> None:
    for tag in ("object/apply:os.mkdir", "module:evilmod"):
        refused(f"seed_everything: !!python/{tag} ['{tmp_path}/made']\n")
    assert not (tmp_path / "made").exists()


def test_nothing_is_downloaded(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: connected.append(address))
    here = "http://127.0.0.1:9/x.yaml"
    for address in (here, "s3://bucket/x.yaml"):
        assert "there is no config" in refused(None, "--config", address)
        message = refused(None, "--ckpt_path", address, code=1)
        assert "No such file" in message
    for address in (here, "memory://x.yaml"):
        assert address in refused(None, "--model", address)
        assert address in refused({"model": address})
    encoder = {"class_path": "TimmEncoder", "init_args": {"img_size": [96, 64]}}
    over = {"model": {"init_args": {"captioner": {"init_args": {"encoder": encoder}}}}}
    encoder["init_args"] |= {"name": "test_resnet", "weights": here}  # type: ignore[operator]
    assert "No such file" in refused(over, code=1)
    for name in ("hf-hub:evil/model", f"local-dir:{tmp_path}", here):
        encoder["init_args"] |= {"name": name, "weights": None}  # type: ignore[operator]
        assert "unknown timm model" in refused(over, code=1)
    classifier = {"class_path": "timm:hf-hub:evil/model"}
    over = {"model": {"class_path": "ClassificationTask", "init_args": {"classifier": classifier}}}
    assert "unknown timm model" in refused(over, "--data", "ClassificationData", code=1)
    assert connected == []


def test_no_error_shows_the_content_of_a_file(refused: Refused, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    contents = (
        f"root:{SECRET}:0:0:root:/root:/bin/bash\ndaemon:x:1:1:{SECRET}\n",
        SECRET,
        f"# a comment\npassword: {SECRET}\n",
        json.dumps({"token": SECRET, "class_path": SECRET}),
        f"-----BEGIN KEY-----\n{SECRET}\n-----END KEY-----\n",
        f"[{SECRET}, {SECRET}]",
    )
    places: list[dict[str, Any]] = [
        {"model": str(secret)},
        {"trainer": {"callbacks": str(secret)}},
        {"model": {"init_args": {"captioner": str(secret)}}},
        {"trainer": {"logger": str(secret)}},
        {"data": "secret"},
        {"model": {"init_args": {"optim": {"optimizer": str(secret)}}}},
    ]
    for turn, content in enumerate(contents):
        secret.write_text(content)
        assert SECRET not in refused(places[turn]), content
    assert SECRET not in refused(None, "--model", str(secret))


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The last checkpoint, in a folder of its own."""
    path = tmp_path / "copy.ckpt"
    path.write_bytes((run / "checkpoints" / "last.ckpt").read_bytes())
    return path


def test_hyperparameters_of_a_checkpoint_are_ignored(
    tiny: Path, copy: Path, evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = torch.load(copy, weights_only=True)
    saved["hyper_parameters"] = {"_class_path": "evilmod.Evil", "_instantiator": "evilmod.function"}
    saved["hparams_name"] = "kwargs"
    torch.save(saved, copy)
    assert main(["validate", "--config", str(tiny), "--ckpt_path", str(copy)]) == 0
    assert not evil.exists()
    capsys.readouterr()


def test_weights_only_cannot_be_disabled(refused: Refused, copy: Path) -> None:
    words = ("--ckpt_path", str(copy))
    assert "weights_only" in refused({"weights_only": False}, *words)
    assert "weights_only" in refused(None, *words, "--weights_only=false")
