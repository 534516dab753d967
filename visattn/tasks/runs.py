"""One folder per run: its config, its checkpoints, its logs and its scores."""

import json
import math
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer


def next_run(name: str, root: Path = Path("runs")) -> Path:
    """Return a folder for a run that no run has had: `root/name/1`, then 2, and so on.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "scenes" / "7").mkdir(parents=True)
        >>> next_run("scenes", folder).name
        '8'
    """
    taken = [int(path.name) for path in (root / name).glob("*") if path.name.isdigit()]
    return root / name / str(max(taken, default=0) + 1)


def run_of(checkpoint: Path) -> Path:
    """Return the folder of the run that wrote a checkpoint.

    Example:
        >>> run_of(Path("runs/scenes/1/checkpoints/best.ckpt")).as_posix()
        'runs/scenes/1'
    """
    folder = checkpoint.parent
    return folder.parent if folder.name == "checkpoints" else folder


class ScoresFile(Callback):
    """Write the scores of `validate` or `test` as JSON into the folder of the run.

    What a task notes beside its scores goes along: a text with them, a list into its own file.

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
            if isinstance(note, str):
                plain[key] = note
            else:
                self._write_json(f"{key}.json", note)
        self._write_json(name, plain)

    def _write_json(self, name: str, content: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (self.folder / name).write_text(text + "\n", encoding="utf-8")
