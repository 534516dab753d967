"""One folder per run: its config, its checkpoints, its logs and its scores."""

import fcntl
import json
import math
from pathlib import Path
from typing import Any, TextIO

from lightning import Callback, LightningModule, Trainer

from visattn.io.atomic import write_whole

_LOCK = ".lock"


def next_run(name: str, root: Path = Path("runs")) -> Path:
    """Return a folder for a run that no run has had: `root/name/1`, then 2, and so on.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "scenes" / "7").mkdir(parents=True)
        >>> next_run("scenes", folder).name
        '8'
    """
    return root / name / str(max(_numbers(root / name), default=0) + 1)


def latest_run(name: str, root: Path = Path("runs")) -> Path:
    """Return the folder of the newest run, or that of the first if there was none.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for number in ("7", "12"):
        ...     (folder / "scenes" / number).mkdir(parents=True)
        >>> latest_run("scenes", folder).name
        '12'
    """
    return root / name / str(max(_numbers(root / name), default=1))


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()]


def claim(run: Path, *, new: bool) -> None:
    """Make the folder of a run.

    Raises:
        FileExistsError: If it is a new one, and another run took the folder at the same moment.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    try:
        run.mkdir(exist_ok=not new)
    except FileExistsError as error:
        if any(run.iterdir()):
            raise FileExistsError(
                f"{run} was taken by a run that began at the same moment; start this one again"
            ) from error


def held(run: Path) -> TextIO:
    """Hold the folder of a run for oneself, as long as what is returned is kept.

    Raises:
        BlockingIOError: If another process trains in it.
    """
    file = (run / _LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # readers ahead do not inherit it
    except (BlockingIOError, PermissionError) as error:
        file.close()
        raise BlockingIOError(
            f"another process is training in {run}; end it first, or choose another --run"
        ) from error
    return file


def refuse_taken(run: Path, way_on: str) -> None:
    """Keep two runs from sharing a folder.

    Args:
        run: The folder of the run that is to begin.
        way_on: The option with which the other one would be gone on with.

    Raises:
        FileExistsError: If there is anything in it.
    """
    if run.exists() and any(run.iterdir()):
        raise FileExistsError(
            f"{run} already holds a run; choose another --run, remove the folder, or go on with "
            f"it by {way_on}"
        )


class ScoresFile(Callback):
    """Write the scores of `validate` or `test` as JSON into the folder of the run.

    What a task notes beside its scores goes along: a text or a number with them, a list into its
    own file.

    Args:
        folder: Of the run; the file is `validate.json` or `test.json`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the scores of `validate`; during `fit` the logs hold them."""
        if trainer.state.fn == "validate":
            self._write(trainer, "validate.json")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the scores of `test`."""
        self._write(trainer, "test.json")

    def _write(self, trainer: Trainer, name: str) -> None:
        if not trainer.is_global_zero or getattr(trainer, "fast_dev_run", False):
            return
        scores = {key: float(value) for key, value in sorted(trainer.callback_metrics.items())}
        plain: dict[str, Any] = {
            key: value if math.isfinite(value) else None for key, value in scores.items()
        }
        for key, note in getattr(trainer.lightning_module, "notes", {}).items():
            if isinstance(note, str | float):
                plain[key] = note
            else:
                self._write_json(f"{key}.json", note)
        self._write_json(name, plain)

    def _write_json(self, name: str, content: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_whole(self.folder / name, text + "\n")
