"""The checkpoint of the best score, which stays the best wherever its run is moved or copied."""

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from visattn.training.checkpoint.reader import read_progress, read_recorded_score
from visattn.training.run_dir.checkpoints import set_aside


class BestCheckpoint(ModelCheckpoint):
    """Keep the state with the best score of a run as `best.ckpt`.

    A run that is resumed has as its best what lies in its folder as `best.ckpt`, with the score
    that this file itself records. Lightning's own class goes by an absolute path in the checkpoint
    that is resumed from: in a folder that was moved or copied it forgets the best score.

    Args:
        folder: Where it is kept.
        monitor: Name of the score.
        mode: Whether its `max` or its `min` is best.
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

    @property
    def state_key(self) -> str:
        """Return the name of its state in a checkpoint, that of Lightning's own class."""
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__, 1)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing over: the file of the best checkpoint says all."""

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let Lightning's own of a config remember their scores too, wherever the run lies now."""
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback is not self:
                state = checkpoint["callbacks"].get(callback.state_key)
                if isinstance(state, dict) and state.get("dirpath") != callback.dirpath:
                    relocate(state, str(callback.dirpath))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the best checkpoint of a run that is resumed.

        One that was chosen by another score is kept under another name.
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
        """Return the score of the best checkpoint in the folder, if there is one."""
        if not self.file.is_file():
            return None
        score = read_recorded_score(self.file, self.state_key)
        if score is None:
            set_aside([self.file], self.run, f".step-{read_progress(self.file).step}")
        return score


def relocate(state: dict[str, Any], folder: str) -> None:
    """Change the state of a `ModelCheckpoint` to what it would be, had the run been in this folder.

    Files that are not there are left out: the run may be another one, which begins from that state.

    Args:
        state: As a checkpoint holds it.
        folder: Where the callback keeps its files now.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "a.ckpt").touch()
        >>> state = {"dirpath": "/old", "best_model_path": "/old/a.ckpt", "best_model_score": 7}
        >>> state |= {"best_k_models": {"/old/a.ckpt": 7}, "kth_best_model_path": "/old/a.ckpt"}
        >>> relocate(state, str(folder))
        >>> [Path(path).parent == folder for path in state["best_k_models"]]
        [True]
    """
    names = ("best_model_path", "kth_best_model_path", "last_model_path")
    old = [path for path in (*map(state.get, names), *state.get("best_k_models", ())) if path]
    moved = {path: str(Path(folder) / Path(path).name) for path in old}
    if not all(Path(path).is_file() for path in moved.values()):
        return
    state["dirpath"] = folder
    state |= {name: moved.get(state.get(name), "") for name in names}
    state["best_k_models"] = {moved[path]: score for path, score in state["best_k_models"].items()}
