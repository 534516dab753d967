"""What hostile configs and checkpoints try, row by row; none of it may work."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import yaml
from class_miniatures import believe_miniatures, write_digits
from yaml_bombs import BOMB

from visattn.cli import main

SECRET = "hunter2-the-secret"
Refused = Callable[..., str]


class Spy(ThreadingHTTPServer):
    """A server on this machine that counts what it is asked for."""

    asked: list[str]


class Answer(BaseHTTPRequestHandler):
    """Says yes to everything, as an attacker's server would."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"class_path: evilmod.Evil\n")

    do_HEAD = do_CONNECT = do_POST = do_GET  # noqa: N815 (their names)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (theirs)
        """Say nothing."""


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spy]:
    """A server that also sees whatever is asked of any other one."""
    server = Spy(("127.0.0.1", 0), Answer)
    server.asked = []
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    here = f"http://127.0.0.1:{server.server_port}"
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, here)
        monkeypatch.setenv(name.upper(), here)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("HF_ENDPOINT", here)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that leaves a mark when it is imported."""
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
    """Run the tiny config with a hostile one over it; return what is said of it."""

    def run(over: Any = None, *words: str, code: int = 2) -> str:
        more: list[str] = []
        if over is not None:
            file = tmp_path / "hostile.yaml"
            file.write_text(over if isinstance(over, str) else yaml.safe_dump(over))
            more = ["--config", str(file)]
        assert main(["fit", "--config", str(tiny), *more, *words]) == code, (over, words)
        said = capsys.readouterr()
        told = [line for line in said.err.splitlines() if line.startswith("visattn: ")]
        assert len(told) == 1  # and no traceback
        assert said.out == ""
        assert code != 2 or not Path("runs").exists()
        return said.err[said.err.index("visattn: ") :]

    return run


def test_row_1_and_2_classes_of_others(refused: Refused, evil: Path) -> None:
    captioner = {"class_path": "evilmod.Evil"}
    for over in (
        {"model": {"class_path": "evilmod.Evil"}},
        {"trainer": {"callbacks": [{"class_path": "evilmod.Evil"}]}},
        {"model": {"init_args": {"captioner": captioner}}},
        {"trainer": {"plugins": ["evilmod.Evil"]}},
    ):
        said = refused(over)
        assert "evilmod.Evil may not be imported" in said
        assert "says so by VISATTN_TRUST_MODULES=evilmod\n" in said
        assert len(said.splitlines()) == 1
    assert not evil.exists()


BLOCKS = """\
trainer: {accelerator: cpu, max_epochs: 1, enable_progress_bar: false, logger: false}
model:
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: AttentionResNet
      init_args: {depth: 8, width: 4, size: [28, 28], mean: [0.1], std: [0.3]}
data:
  class_path: TorchvisionDataModule
  init_args: {source: MNIST, root: DIGITS, validation: 5, batch: 6}
"""


def test_row_2_blocks_of_others(
    evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    believe_miniatures(monkeypatch)
    write_digits(tmp_path)
    (tmp_path / "blocks.yaml").write_text(BLOCKS.replace("DIGITS", str(tmp_path)))
    words = ["fit", "--config", "blocks.yaml", "--run", "run"]
    place = "--model.classifier.init_args"
    for key, block in (
        *(("block", "evilmod.Evil"), ("first", "evilmod.Evil"), ("block", "os.system")),
        ("block", "visattn.blocks.external.ModuleType"),
    ):
        assert main([*words, f"{place}.{key}", block]) == 1
        told = [
            line for line in capsys.readouterr().err.splitlines() if line.startswith("visattn:")
        ]
        assert f"{block} may not be imported because a text names it" in told[-1]
    assert not evil.exists()
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "evilmod")
    assert main([*words, f"{place}.block", "evilmod.Evil"]) == 1
    assert "a block is a class of torch.nn.Module" in capsys.readouterr().err
    assert evil.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "torch.load",
        "evilmod.function",
        "visattn.models.serialization.safetensors_file.os.system",
    ],
)
def test_row_3_functions_of_others(name: str, refused: Refused, evil: Path) -> None:
    assert name.split(".")[-1] in refused({"model": {"init_args": {"optimizer": name}}})
    assert not evil.exists()


def test_row_4_a_class_where_anything_may_stand_stays_a_mapping(
    refused: Refused, evil: Path
) -> None:
    encoder = {
        "class_path": "TimmEncoder",
        "init_args": {
            "name": "test_resnet",
            "size": [96, 64],
            "arguments": {"drop_rate": {"class_path": "evilmod.Evil"}},
        },
    }
    over = {"model": {"init_args": {"captioner": {"init_args": {"encoder": encoder}}}}}
    refused(over, code=1)
    assert not evil.exists()


def test_row_5_tags_of_python(refused: Refused, tmp_path: Path) -> None:
    for tag in ("object/apply:os.mkdir", "module:evilmod"):
        said = refused(f"seed_everything: !!python/{tag} ['{tmp_path}/made']\n")
        assert "hostile.yaml, line 1: the tag" in said
    assert not (tmp_path / "made").exists()


def test_row_6_nothing_is_fetched(refused: Refused, spy: Spy, tmp_path: Path) -> None:
    here = f"http://127.0.0.1:{spy.server_port}/x.yaml"
    for address in (here, "s3://bucket/x.yaml"):
        assert "lies on another machine" in refused(None, "--config", address)
        said = refused(None, "--ckpt_path", address, code=1)
        assert f"{address} lies on another machine" in said
    for address in (here, "memory://x.yaml"):
        assert "download it first" in refused(None, "--model", address)
        assert "download it first" in refused({"model": address})
    encoder = {"class_path": "TimmEncoder", "init_args": {"size": [96, 64]}}
    over = {"model": {"init_args": {"captioner": {"init_args": {"encoder": encoder}}}}}
    encoder["init_args"] |= {"name": "test_resnet", "weights": here}  # type: ignore[operator]
    assert "lies on another machine" in refused(over, code=1)
    for name in ("hf-hub:evil/model", f"local-dir:{tmp_path}", here):
        encoder["init_args"] |= {"name": name, "weights": None}  # type: ignore[operator]
        assert "timm knows no model" in refused(over, code=1)
    assert spy.asked == []


def test_the_spy_sees_what_is_fetched(spy: Spy) -> None:
    from urllib.request import urlopen

    urlopen(f"http://127.0.0.1:{spy.server_port}/seen").read()
    assert spy.asked != []


def test_row_7_an_error_shows_nothing_of_a_file(refused: Refused, tmp_path: Path) -> None:
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
        {"model": {"init_args": {"optimizer": str(secret)}}},
    ]
    for turn, content in enumerate(contents):
        secret.write_text(content)
        said = refused(places[turn])
        assert SECRET not in said, content
        assert f"{secret} is no config" in said
    assert SECRET not in refused(None, "--model", str(secret))
    secret.write_text(contents[0])
    assert SECRET not in refused({"trainer": str(secret)})
    assert "names /dev/zero, a pipe or a device" in refused({"model": "/dev/zero"})


def test_row_9_bombs_and_keys_that_stand_twice(refused: Refused, tmp_path: Path) -> None:
    start = time.process_time()
    assert "hostile.yaml, line 6: unfolds to more than 100,000" in refused(BOMB)
    (tmp_path / "inner.yaml").write_text(BOMB)
    assert "inner.yaml, line 6: unfolds to more than" in refused({"model": "inner.yaml"})
    (tmp_path / "bomb.txt").write_text(BOMB)
    assert "bomb.txt is no config" in refused({"model": "bomb.txt"})
    said = refused("seed_everything: 1\ntrainer:\n  max_steps: 3\n  max_steps: 5\n")
    assert "hostile.yaml, line 4: the key max_steps stands there again, after line 3" in said
    assert time.process_time() - start < 5  # most of it is spent on making the parsers


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The last checkpoint, in a folder of its own."""
    path = tmp_path / "copy.ckpt"
    path.write_bytes((run / "checkpoints" / "last.ckpt").read_bytes())
    return path


def test_row_10_settings_in_a_checkpoint_are_not_read(
    tiny: Path, copy: Path, evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = torch.load(copy, weights_only=True)
    saved["hyper_parameters"] = {"_class_path": "evilmod.Evil", "_instantiator": "evilmod.function"}
    saved["hparams_name"] = "kwargs"
    torch.save(saved, copy)
    assert main(["validate", "--config", str(tiny), "--ckpt_path", str(copy)]) == 0
    assert not evil.exists()
    capsys.readouterr()


def test_nobody_can_ask_for_more_than_weights(refused: Refused, copy: Path) -> None:
    words = ("--ckpt_path", str(copy))
    assert "weights_only" in refused({"weights_only": False}, *words)
    assert "weights_only" in refused(None, *words, "--weights_only=false")


def test_one_clear_line_for_a_misspelt_name(refused: Refused) -> None:
    for words, said in (
        (["--model", "CaptionTsk"], "there is no class CaptionTsk; did you mean CaptioningTask?"),
        (["--data.sise", "13"], "Option 'sise' is not accepted; did you mean size?"),
        (["--model", "Zzz"], "there is no class Zzz; there are "),
    ):
        told = refused(None, *words)
        assert said in told
        assert len(told.splitlines()) == 1
