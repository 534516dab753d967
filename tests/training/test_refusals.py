"""What `fit`, `validate` and `test` refuse: mistakes, and configs and checkpoints of strangers.

Each is refused in one line, and before anything is made, imported or fetched. More of it stands in
tests/exit_codes.md.
"""

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from classification_data import write_digits
from jsonargparse import ArgumentError, ArgumentParser
from task_runs import as_yaml, data, of
from traps import Trap

from visattn.cli import main
from visattn.io.trusted_modules import TRUSTED_MODULES, user_trusted_modules
from visattn.training.parser import trust_modules

Capsys = pytest.CaptureFixture[str]
SECRET = "hunter2-the-secret"
HERE = "http://127.0.0.1:9/x.yaml"
FIT, RUN = "fit --config {tiny} ", "{run}/checkpoints/best.ckpt"
SCORED = "test --config {tiny} --ckpt_path {copy}"
CASES: list[tuple[str, int, str]] = [
    ("validate --config {tiny}", 2, "without a checkpoint the weights are random"),
    ("test --config {tiny} --ckpt_path nowhere.ckpt", 1, "nowhere.ckpt: No such file"),
    ("predict --config {tiny}", 2, "unknown command 'predict'"),
    (FIT + "--data.source.colors [mauve]", 1, "choose from red"),
    (FIT + "--init_from nowhere.ckpt", 1, "no model is named 'nowhere.ckpt'"),
    (FIT + "--model CaptioningTsk", 2, "--model: there is no class CaptioningTsk; did you mean C"),
    (FIT + "--model.captioner.hiden_size 3", 2, "--model.captioner: ShowAttendTell has no option "
     "hiden_size; did you mean hidden_size?"),
    (FIT + "--config option.yaml", 2, "ShowAttendTell has no option widht"),
    (FIT + "--config variable.yaml", 1, "uses ${VISATTN_UNSET}, but this environment variable"),
    (FIT + "--trainer.max_epochs five", 2, "--trainer.max_epochs: expected int, got five"),
    (FIT + "--model.classifier.help Nothing", 1, "there is no class Nothing"),
    ("fit --model mobilenetv2_100", 2, "mobilenetv2_100 is a model of timm: write --model Classif"),
    ("fit --config digits.yaml --model.classifier mobilenetv2_100", 2, "write timm:mobilenetv2_"),
    (FIT + "--model.captioner.attention hard", 1, "train it with HardAttentionTask"),
    (FIT + "--trainer.max_epoch 3", 2, "did you mean --trainer.max_epochs, --trainer.min_epochs"),
    (FIT + "--model.monitor val/cider", 1, "monitor must name a validation metric"),
    (FIT + "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor x", 1,
     "EarlyStopping: monitor must name a validation metric, got 'x'"),
    (FIT + f"--ckpt_path {RUN}", 1, "already has {run}/checkpoints/last.ckpt, which would be"),
    (SCORED + " --data.source.colors [red,pink,cyan]", 1, "was trained with other words"),
    # ------------------------------------------------ classes, functions and blocks of strangers
    (FIT + "--model evilmod.Evil", 2, "set VISATTN_TRUST_MODULES=evilmod"),
    (FIT + "--trainer.callbacks evilmod.Evil", 2, "Importing 'evilmod.Evil' is not allowed"),
    (FIT + "--trainer.plugins [evilmod.Evil]", 2, "Importing 'evilmod.Evil' is not allowed"),
    (FIT + "--model.captioner evilmod.Evil", 2, "Importing 'evilmod.Evil' is not allowed"),
    *((FIT + f"--model.optim.optimizer {name}", 2, name.rpartition(".")[2]) for name in (
        "os.system", "builtins.eval", "torch.load", "evilmod.function",
        "visattn.models.saving.os.system")),
    ("fit --config digits.yaml --model.classifier.init_args.block evilmod.Evil", 1,
     "there is no block named 'evilmod.Evil'"),
    ("fit --config digits.yaml --model.classifier.init_args.stem_block os.system", 1,
     "there is no block named 'os.system'"),
    (FIT + "--config drop.yaml --dry-run", 1, "images must be (96, 64)"),  # a mapping stays one
    (FIT + "--config tag.yaml", 2, "python/object/apply:os.mkdir"),
    # ------------------------------------------------ addresses
    (FIT + f"--config {HERE}", 2, "there is no config"),
    (FIT + "--config s3://bucket/x.yaml", 2, "there is no config"),
    (FIT + f"--ckpt_path {HERE}", 1, "No such file"),
    (FIT + f"--model {HERE}", 2, HERE),
    (FIT + "--config model.yaml", 2, HERE),
    (FIT + f"--config timm.yaml --model.captioner.encoder.weights {HERE}", 1, "No such file"),
    *((FIT + f"--config timm.yaml --model.captioner.encoder.name {name}", 1, "unknown timm model")
      for name in ("hf-hub:evil/model", "local-dir:{tiny}", HERE)),
    (SCORED.replace("test", "fit") + " --weights_only=false", 2, "weights_only"),
]  # fmt: skip
ENCODER = of("TimmEncoder", name="test_resnet", img_size=[96, 64])
DROP = {"timm_kwargs": {"drop_rate": {"class_path": "evilmod.Evil"}}, **ENCODER["init_args"]}
DIGITS = as_yaml(
    of("ClassificationTask", classifier=of("AttentionResNet", depth=8, img_size=[28, 28])),
    data("Classification", of("TorchvisionImages", dataset="MNIST", root=".", val=5)),
)


def with_encoder(encoder: Any) -> str:
    captioner = {"init_args": {"encoder": encoder}}
    return yaml.safe_dump({"model": {"init_args": {"captioner": captioner}}})


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a hostile module creates when it is imported."""
    mark = tmp_path / "imported"
    (tmp_path / "evilmod.py").write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Evil: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return mark


@pytest.mark.parametrize(("words", "code", "message"), CASES)
def test_mistakes_and_attacks_are_refused_in_a_line(
    words: str, code: int, message: str, tiny: Path, copy: Path, run: Path, evil: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Capsys,
) -> None:  # fmt: skip
    if "digits.yaml" in words:
        write_digits(Path())
    Path("digits.yaml").write_text(DIGITS)
    Path("timm.yaml").write_text(with_encoder(ENCODER))
    Path("drop.yaml").write_text(with_encoder({**ENCODER, "init_args": DROP}))
    Path("tag.yaml").write_text("seed_everything: !!python/object/apply:os.mkdir ['made']\n")
    Path("model.yaml").write_text(f"model: {HERE}\n")
    Path("option.yaml").write_text("model: {init_args: {captioner: {init_args: {widht: 3}}}}\n")
    Path("variable.yaml").write_text("data: {init_args: {source: '${VISATTN_UNSET}'}}")
    connected: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: connected.append(address))

    def filled(text: str) -> str:
        for name, path in (("tiny", tiny), ("copy", copy), ("run", run)):
            text = text.replace("{" + name + "}", str(path))
        return text

    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(filled(words).split()) == code
    output = capsys.readouterr()
    assert filled(message) in output.err
    *said, last = output.err.splitlines()
    assert last.startswith("visattn: ")
    assert not [line for line in said if line.startswith("visattn: ") or "jsonargparse" in line]
    assert "Traceback" not in output.err
    assert output.out == ""
    assert not any(Path(name).exists() for name in ("runs", "made", "imported"))
    assert not evil.exists()
    assert connected == []
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_no_error_shows_the_content_of_a_file(tiny: Path, tmp_path: Path, capsys: Capsys) -> None:
    secret = tmp_path / "secret"
    contents = (
        f"root:{SECRET}:0:0:root:/root:/bin/bash\ndaemon:x:1:1:{SECRET}\n",
        f"# a comment\npassword: {SECRET}\n",
        json.dumps({"token": SECRET, "class_path": SECRET}),
        f"[{SECRET}, {SECRET}]",
    )
    places = ("--model", "--trainer.callbacks", "--model.captioner", "--data")
    for place, content in zip(places, contents, strict=True):
        secret.write_text(content)
        assert main(["fit", "--config", str(tiny), place, str(secret)]) == 2
        assert SECRET not in capsys.readouterr().err, place


def accepted(path: str) -> bool:
    """Return whether the parser takes a class by this path."""
    trust_modules()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--x", type=type)
    try:
        parser.parse_args([f"--x={path}"])
    except ArgumentError:
        return False
    return True


def test_modules_are_trusted_while_the_variable_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "friendmod.py").write_text("class Friend: pass\n")
    for names, trusted in (("", False), ("elsewhere, friendmod", True), ("elsewhere", False)):
        monkeypatch.setenv("VISATTN_TRUST_MODULES", names)
        assert accepted("friendmod.Friend") == trusted
        assert ("friendmod" in sys.modules) == (trusted or names == "elsewhere")
    sys.modules.pop("friendmod")
    for text in ("os;", "a b", "*", "a..b", "/x/y", "a,b-c"):
        monkeypatch.setenv("VISATTN_TRUST_MODULES", text)
        with pytest.raises(ValueError, match="VISATTN_TRUST_MODULES must hold module names"):
            user_trusted_modules()
    monkeypatch.delenv("VISATTN_TRUST_MODULES")
    for path, trusted in (
        ("torch.nn.Linear", True),
        ("visattn.models.base.SmallEncoder", True),
        ("torch.utils.data.DataLoader", False),
        ("subprocess.Popen", False),
        ("visattn.models.saving.json.JSONDecoder", False),  # reached through visattn
        ("timm.optim.Lion", False),
        ("lightning.fabric.Fabric", False),
        ("torchmetricsevil.X", False),
    ):
        assert accepted(path) == trusted, path
    assert all(part.isidentifier() for name in TRUSTED_MODULES for part in name.split("."))


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("word", ["fit", "validate", "test"])
def test_a_checkpoint_runs_nothing(
    word: str, tiny: Path, copy: Path, tmp_path: Path, evil: Path, capsys: Capsys
) -> None:
    words = [word, "--config", str(tiny), "--ckpt_path", str(copy)]
    honest = torch.load(copy, weights_only=True)
    torch.save({**honest, "extra": Trap(tmp_path / "mark")}, copy)
    assert main(words) == 1
    assert "is damaged, or holds code" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()
    if word == "validate":
        hyper = {"_class_path": "evilmod.Evil", "_instantiator": "evilmod.function"}
        torch.save({**honest, "hyper_parameters": hyper, "hparams_name": "kwargs"}, copy)
        assert main(words) == 0
        assert not evil.exists()


def test_the_state_of_another_run_is_refused_in_a_line(
    run: Path, tiny: Path, tmp_path: Path, capsys: Capsys
) -> None:
    whole = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    file = tmp_path / "odd" / "checkpoints" / "odd.ckpt"
    file.parent.mkdir(parents=True)
    words = ["--config", str(tiny), "--ckpt_path", str(file), "--trainer.logger", "false"]
    for content, reason in (
        ({**whole, "optimizer_states": [{"state": {}, "param_groups": []}]},
         "different number of parameter"),
        ({**whole, "state_dict": {"model.x": torch.tensor(torch.nan)}},
         "1 unexpected keys .'model.x'"),
        ({key: each for key, each in whole.items() if key != "loops"},
         "odd.ckpt cannot be resumed: it has only weights"),
    ):  # fmt: skip
        torch.save(content, file)
        assert main(["fit", *words]) == 1
        assert re.search(f"visattn: .*{reason}", capsys.readouterr().err), reason
