"""Callbacks of Lightning: the documented table is run, and what fails is refused early."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning import Callback
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from visattn import training
from visattn.cli import main
from visattn.training.callbacks.lightning_callbacks import REFUSED, prepare_callbacks

PAGE = Path(__file__).parents[3] / "docs/reference/lightning_callbacks.md"
ROWS = re.findall(r"^\| `(.+?)` \| (yes|no) \|", PAGE.read_text(), re.MULTILINE)
pytestmark = pytest.mark.filterwarnings("ignore")  # those of Lightning about small runs


class Task:
    """What `prepare_callbacks` reads of a task."""

    val_scores = ("val/loss", "val/caption_accuracy")


def parsed(row: str) -> dict[str, Any]:
    """Return the class path and arguments of a callback in the table."""
    content = yaml.safe_load(row)
    if isinstance(content, str):
        return {"class_path": content}
    ((name, arguments),) = content.items()
    return {"class_path": name, "init_args": arguments}


def is_callback(row: str) -> bool:
    return not row.startswith(("logger", "profiler"))


def built(row: str) -> Callback:
    spec = parsed(row)
    name = spec["class_path"]
    kind = getattr(training if name in dir(training) else lightning_callbacks, name)
    return kind(**spec.get("init_args", {}))


def check(*callbacks: Callback) -> None:
    task: Any = Task()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxtyping.config.jaxtyping_disable", True)
        prepare_callbacks(callbacks, task, Path("run/checkpoints"))


def fit(tiny: Path, folder: Path, trainer: dict[str, Any]) -> int:
    second = folder / "more.yaml"
    quiet = {"callbacks": []} | trainer
    bar = any(c["class_path"].endswith("ProgressBar") for c in quiet["callbacks"])
    second.write_text(yaml.safe_dump({"trainer": quiet | {"enable_progress_bar": bar}}))
    arguments = ["fit", "--config", str(tiny), "--config", str(second), "--run", str(folder / "r")]
    return main(arguments)


def test_the_table_says_what_is_refused() -> None:
    works = {row for row, answer in ROWS if answer == "yes"}
    assert len(ROWS) == len(dict(ROWS)) > 25
    for row, _ in ROWS:
        if not is_callback(row):
            continue
        if row in works:
            check(built(row))
        else:
            with pytest.raises(ValueError, match=r"must n|filename must not"):
                check(built(row))
    named = {parsed(row)["class_path"] for row, answer in ROWS if answer == "no"}
    assert {kind.__name__ for kind in REFUSED} < named


def test_callbacks_beside_those_of_visattn_keep_their_files(tiny: Path, tmp_path: Path) -> None:
    rows = [
        "ModelCheckpoint: {monitor: val/caption_accuracy, mode: max, filename: top}",
        "EarlyStopping: {monitor: val/loss, patience: 3}",
        "Timer: {duration: {minutes: 1}}",
    ]
    assert fit(tiny, tmp_path, {"callbacks": list(map(parsed, rows))}) == 0
    files = {path.name for path in (tmp_path / "r" / "checkpoints").iterdir()}
    assert files == {"best.ckpt", "last.ckpt", "top.ckpt"}
    resumed = ["--ckpt_path", "last", "--trainer.max_steps", "5", "--trainer.max_epochs", "5"]
    configs = ["--config", str(tiny), "--config", str(tmp_path / "more.yaml")]
    assert main(["fit", *configs, "--run", str(tmp_path / "r"), *resumed]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("row", "answer"), ROWS)
def test_each_row_of_the_table(
    row: str, answer: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = {"callbacks": [parsed(row)]} if is_callback(row) else yaml.safe_load(row)
    assert fit(tiny, tmp_path, trainer) == (0 if answer == "yes" else 1)
    error = capsys.readouterr().err
    assert "Traceback" not in error
    written = {path.name for path in tmp_path.rglob("*.ckpt")}
    if answer == "yes":
        assert {"best.ckpt", "last.ckpt"} <= written
    else:
        assert not written  # refused before the first step
        assert error.splitlines()[-1].startswith("visattn: ")


def test_wrong_metrics_are_refused_with_the_right_ones() -> None:
    with pytest.raises(
        ValueError, match="EarlyStopping: monitor .* got 'val_loss'; .* val/caption_"
    ):
        check(EarlyStopping("val_loss"))
    with pytest.raises(ValueError, match="ModelCheckpoint: monitor .* got 'val/acc'"):
        check(ModelCheckpoint(monitor="val/acc"))
    check(EarlyStopping("train/loss"), ModelCheckpoint())


@pytest.mark.filterwarnings("error")
def test_the_wrong_direction_of_a_metric_is_said() -> None:
    with pytest.warns(UserWarning, match="the min of val/caption_accuracy .* set mode: max"):
        check(EarlyStopping("val/caption_accuracy"))
    check(EarlyStopping("val/caption_accuracy", mode="max"), EarlyStopping("val/loss"))
