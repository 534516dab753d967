"""Callback that keeps the best checkpoint of a run, also if the run folder is moved or copied."""

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from visattn.models.saving.checkpoint import read_progress, read_recorded_score
from visattn.training.run_dir.checkpoints import set_aside


class BestCheckpoint(ModelCheckpoint):
    """Keep the state with the best score of a run as `best.ckpt`.

    When a run is resumed, the best score so far is read from the `best.ckpt` in its folder.
    Lightning's `ModelCheckpoint` takes it from an absolute path in the resumed checkpoint, and
    loses it if the folder was moved or copied.

    Args:
        folder: Directory of `best.ckpt`.
        monitor: Name of the metric.
        mode: Whether the maximum (`max`) or the minimum (`min`) is best.
    """

    def __init__(self, folder: Path, *, monitor: str, mode: str) -> None:
        super().__init__(
            folder,
            "best",
            monitor=monitor,
            mode=mode,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )
        self.run = folder.parent
        self.file = Path(self.format_checkpoint_name({}))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Ignore the saved state; `on_fit_start` reads `best.ckpt` instead."""

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Update the paths in the states of the `ModelCheckpoint` callbacks of the config."""
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback is not self:
                state = checkpoint["callbacks"].get(callback.state_key)
                if isinstance(state, dict) and state.get("dirpath") != callback.dirpath:
                    relocate_checkpoint_paths(state, str(callback.dirpath))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue with the best checkpoint of a resumed run.

        A checkpoint that was selected by another metric is renamed and kept.
        """
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        score = self._recorded_score() if trainer.is_global_zero else None
        score = trainer.strategy.broadcast(score)
        if score is not None:
            self.best_model_path = self.kth_best_model_path = str(self.file)
            self.best_model_score = self.kth_value = torch.tensor(score, device=pl_module.device)
            self.best_k_models = {str(self.file): self.best_model_score}

    def _recorded_score(self) -> float | None:
        """Return the score of the best checkpoint in the folder; None without one."""
        if not self.file.is_file():
            return None
        # Runs of visattn 0.1 have the state under the key of Lightning's class.
        earlier = self.state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__, 1)
        scores = (read_recorded_score(self.file, key) for key in (self.state_key, earlier))
        score = next((score for score in scores if score is not None), None)
        if score is None:
            set_aside([self.file], self.run, f".step-{read_progress(self.file).step}")
        return score


def relocate_checkpoint_paths(state: dict[str, Any], folder: str) -> None:
    """Replace the folder in the saved state of a `ModelCheckpoint`, in place.

    The state stays as it is if a file is missing in the folder: a new run may start from a
    checkpoint of another one.

    Args:
        state: Saved state of the callback.
        folder: Current directory of its files.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "a.ckpt").touch()
        >>> state = {"dirpath": "/old", "best_model_path": "/old/a.ckpt", "best_model_score": 7}
        >>> state |= {"best_k_models": {"/old/a.ckpt": 7}, "kth_best_model_path": "/old/a.ckpt"}
        >>> relocate_checkpoint_paths(state, str(folder))
        >>> [Path(path).parent == folder for path in state["best_k_models"]]
        [True]
    """
    names = ("best_model_path", "kth_best_model_path", "last_model_path")
    paths = [path for path in (*map(state.get, names), *state.get("best_k_models", ())) if path]
    moved = {path: str(Path(folder) / Path(path).name) for path in paths}
    if not all(Path(path).is_file() for path in moved.values()):
        return
    state["dirpath"] = folder
    state |= {name: moved.get(state.get(name), "") for name in names}
    state["best_k_models"] = {moved[path]: score for path, score in state["best_k_models"].items()}
