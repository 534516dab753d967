"""A Lightning callback that follows attention maps of the same images during training."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from visattn.images.reader import ImageLike
from visattn.pipelines.attention_history import AttentionHistory
from visattn.training.callbacks.image_logging import require_whole_model
from visattn.training.task import Task


class AttentionLogger(Callback):
    """Draws attention maps of the same images every few hundred steps, of any LightningModule.

    `Trainer(callbacks=[AttentionLogger("photos")])`. The maps lie in `FOLDER` with a page
    (`index.html`) and a table (`maps.csv`), see `AttentionHistory`; TensorBoard and Weights &
    Biases get them as images `attention/NAME`. The first maps are drawn before the first step, so
    that an argument that does not fit stops the run there; later errors are warnings. One process
    draws; the model is returned as it was.

    Args:
        images: Images to follow: a folder, files, PIL images or RGB arrays, of any size.
        method: Method of `visattn.explain`; `visattn.methods_for(model)` lists those that fit.
        target: Class to explain; None explains the predicted class of each step.
        every_n_steps: Optimizer steps between two logs; None draws at the end of each validation.
        folder: Folder of the maps; by default `attention` in the run's folder.
        module: Name of the network inside the LightningModule, such as `net`; by default the
            LightningModule itself (without a `forward`, its one part with parameters), or `model`
            of a task of visattn.
        max_cost: Largest share of the training time that maps may take.
        options: Further arguments of `visattn.explain`: `transform`, `img_size`, `class_names`,
            `layer` and others.

    Raises:
        TypeError: If the strategy splits the model.
        ValueError: If the method does not fit the model, or the LightningModule has no such module.

    Example:
        >>> from lightning import LightningModule, Trainer
        >>> from visattn.models import AttentionResNet
        >>> class Module(LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
        >>> photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
        >>> logger = AttentionLogger(photo, method="gradcam", module="net", every_n_steps=100)
        >>> logger.every_n_steps
        100
    """

    def __init__(
        self,
        images: Iterable[ImageLike] | ImageLike,
        method: str = "gradcam",
        target: Any = None,
        *,
        every_n_steps: int | None = 500,
        folder: str | Path | None = None,
        module: str | None = None,
        max_cost: float = 0.05,
        **options: Any,
    ) -> None:
        if isinstance(images, str | Path) and Path(images).is_dir():
            images = sorted(path for path in Path(images).iterdir() if path.is_file())
        self.images, self.method, self.target = images, method, target
        self.every_n_steps, self.folder, self.module = every_n_steps, folder, module
        self.max_cost, self.options = max_cost, options
        self.history: AttentionHistory | None = None
        self._restored: dict[str, torch.Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the last maps, with which the next ones are compared."""
        return {} if self.history is None else {"last_maps": dict(self.history.last_maps)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the last maps for the history, which begins with the training."""
        self._restored = state_dict["last_maps"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the images and draw the first maps; a resumed run continues its table.

        In `on_fit_start` a resumed run has its weights already, but still counts from step 0.
        """
        require_whole_model(trainer, type(self).__name__)
        if not trainer.is_global_zero:
            return
        root = Path(trainer.log_dir or trainer.default_root_dir)
        self.history = AttentionHistory(
            self.images, self.folder or root / "attention", method=self.method,
            target=self.target, every_n_steps=self.every_n_steps or sys.maxsize,
            max_cost=self.max_cost, **self.options,
        )  # fmt: skip
        if self.history.resume(trainer.global_step, self._restored):
            self.history.check(self._network(pl_module))
        else:
            self._log(trainer, pl_module, force=True, strict=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Draw the maps if they are due."""
        self._log(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the maps after a validation, without `every_n_steps`."""
        if self.every_n_steps is None and not trainer.sanity_checking:
            self._log(trainer, pl_module, force=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the last maps."""
        self._log(trainer, pl_module, force=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the last maps of a run that was killed between its last checkpoint and these."""
        if self.history is None and trainer.is_global_zero:  # nothing was left to train
            self.on_train_start(trainer, pl_module)
            self._log(trainer, pl_module, force=True)

    def _network(self, pl_module: LightningModule) -> nn.Module:
        if self.module is None:
            return pl_module.model if isinstance(pl_module, Task) else _default_network(pl_module)
        try:
            return pl_module.get_submodule(self.module)
        except AttributeError as error:
            names = ", ".join(name for name, _ in pl_module.named_children())
            raise ValueError(
                f"module must name a part of {type(pl_module).__name__} ({names}), got "
                f"{self.module!r}"
            ) from error

    def _log(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        *,
        force: bool = False,
        strict: bool = False,
    ) -> None:
        history, step = self.history, trainer.global_step
        if history is None or any(record.step == step for record in history.records[-1:]):
            return
        try:
            panels = history.log(self._network(pl_module), step, force=force)
        except (OSError, RuntimeError, ValueError) as error:
            if strict:
                raise
            rank_zero_warn(f"AttentionLogger drew no maps after step {step}: {error}")
            return
        for name, panel in zip(history.names, panels, strict=False):
            _send(trainer, f"attention/{name}", panel)


def _default_network(pl_module: LightningModule) -> nn.Module:
    """Return the LightningModule, or its one part with parameters if it has no `forward`."""
    if type(pl_module).forward is not LightningModule.forward:
        return pl_module
    parts = {
        name: part
        for name, part in pl_module.named_children()
        if next(part.parameters(), None) is not None
    }
    if len(parts) == 1:
        return next(iter(parts.values()))
    kind = type(pl_module).__name__
    raise ValueError(
        f"{kind} has no forward: name its network, as in AttentionLogger(..., module='net'); "
        f"parts of {kind} with parameters are {', '.join(parts) or 'none'}"
    )


def _send(trainer: Trainer, name: str, panel: np.ndarray) -> None:
    """Send an image to the loggers that take images."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            image = torch.from_numpy(panel)
            logger.experiment.add_image(name, image, trainer.global_step, dataformats="HWC")
        elif log_image := getattr(logger, "log_image", None):  # Weights & Biases, Comet and alike
            log_image(name, [panel], step=trainer.global_step)
