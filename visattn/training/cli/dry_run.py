"""A dry run of training: all is built and one batch of each kind looked at; nothing is written."""

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from torch import Tensor, nn

from visattn.models.captioner import Captioner
from visattn.training.cli.lightning_cli import TrainingCLI, main

_KINDS = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",)}
_LOADERS = {
    "train": "train_dataloader",
    "validation": "val_dataloader",
    "test": "test_dataloader",
}
_TITLE = 12  # letters of the first column
_MEGA = 10**6


def rehearse(argv: Sequence[str]) -> int:
    """Do all of a training command but the training, and say what would come of it.

    Args:
        argv: `fit`, `validate` or `test`, and its options.
    """
    return main(argv, kind=DryRunCLI)


class DryRunCLI(TrainingCLI):
    """Looks where another would train or score."""

    def before_instantiate_classes(self) -> None:
        """Fetch nothing, whatever the config says."""
        given = self.config[str(self.subcommand)].data.get("init_args")
        if given is not None and given.get("download"):
            given.download = False
        super().before_instantiate_classes()

    def fit(self, **_given: Any) -> None:
        """Say what `fit` would do."""
        self._look()

    def validate(self, **_given: Any) -> None:
        """Say what `validate` would do."""
        self._look()

    def test(self, **_given: Any) -> None:
        """Say what `test` would do."""
        self._look()

    def after_fit(self) -> None:
        """Say nothing of checkpoints, since there are none."""

    def _look(self) -> None:
        word = str(self.subcommand)
        lines = list(self._lines(word))  # all of them, before the first is printed
        if self.trainer.is_global_zero:
            print(f"visattn {word}, dry run: all is built, nothing is written")  # noqa: T201
            print("\n".join(lines))  # noqa: T201

    def _lines(self, word: str) -> Iterator[str]:
        yield from _model_lines(self.model)
        yield _row("data", type(self.datamodule).__name__)
        kept = _without_cache(self.datamodule)
        loaders = _opened(self.trainer, self.model, self.datamodule, word)
        for name, loader in loaders.items():
            yield from _loader_lines(name, loader, self.model.model)
        if kept:
            yield _row("would keep", kept)
        if word == "fit":
            yield _row("training", _plan(self.trainer, loaders["train"]))
        yield _row("device", _device(self.trainer))
        yield _row("folder", _folder(self.run, word))


def _without_cache(data: Any) -> str:
    """Have features computed as they are needed, since to keep them is to write; say where."""
    cache = getattr(data, "cache", None)
    if cache is None:
        return ""
    data.cache = None
    return f"features of the frozen encoder in {cache}, computed once"


def _opened(trainer: Trainer, task: Any, data: Any, word: str) -> dict[str, Any]:
    """Return the loaders of a command by their names, as the trainer would open them."""
    trainer.strategy.connect(task)
    task.trainer, data.trainer = trainer, trainer
    data.setup(word)
    loaders: dict[str, Any] = {}
    for kind in _KINDS[word]:
        made = getattr(data, _LOADERS[kind])()
        several = made if isinstance(made, list) else [made]
        for number, loader in enumerate(several, start=1):
            loaders[kind if number == 1 else f"{kind} {number}"] = loader
    return loaders


def _model_lines(task: Any) -> Iterator[str]:
    parameters = list(task.model.parameters())
    count = sum(one.numel() for one in parameters)
    learnt = sum(one.numel() for one in parameters if one.requires_grad)
    size = sum(one.numel() * one.element_size() for one in parameters) / _MEGA
    trained = "all" if learnt == count else f"{learnt:,}"
    yield _row("task", type(task).__name__)
    yield _row("model", type(task.model).__name__)
    yield _row("parameters", f"{count:,}, {trained} of them trained ({size:.1f} MB)")


def _loader_lines(name: str, loader: Any, model: nn.Module) -> Iterator[str]:
    """Yield how many batches there are, and what the first holds, once the model has seen it."""
    count = len(loader)
    yield _row(f"  {name}", f"{count:,} batch{'' if count == 1 else 'es'}; the first:")
    first = next(iter(loader), None)
    if first is None:
        raise ValueError(f"the {name} part of the data gives no batch; it needs more samples")
    for title, told in _parts(first):
        yield _row("", f"{title:10} {told}")
    _show_image(model, first)


def _show_image(model: nn.Module, batch: Any) -> None:
    """Let the network see an image of a batch, if there is any: it may be made for another size.

    Raises:
        ValueError: If the network refuses the image.
    """
    images = getattr(batch, "images", None)
    if isinstance(images, Tensor):
        network = model.encoder if isinstance(model, Captioner) else model
        with torch.inference_mode():
            network.eval()(images[:1])


def _parts(batch: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the tensors in a batch with their names.

    Example:
        >>> import torch
        >>> dict(_parts({"images": torch.zeros(2, 3), "ids": ("a", "b")}))
        {'images': 'float32 2 x 3', 'ids': '2 x str'}
    """
    if isinstance(batch, Tensor):
        sides = " x ".join(map(str, batch.shape)) or "one number"
        yield name or "tensor", f"{str(batch.dtype).removeprefix('torch.')} {sides}"
    elif named := _named(batch):
        for key, part in named.items():
            yield from _parts(part, str(key))
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes) and len(batch):
        if any(isinstance(part, Tensor) for part in batch):
            for number, part in enumerate(batch):
                yield from _parts(part, f"{name} {number}".strip())
        else:
            yield name or "list", f"{len(batch)} x {type(batch[0]).__name__}"
    elif batch is not None and not isinstance(batch, Sequence):
        yield name or "value", type(batch).__name__


def _named(batch: Any) -> Mapping[str, Any]:
    """Return the parts of what has names for them, or nothing."""
    if isinstance(batch, Mapping):
        return batch
    if isinstance(batch, tuple) and hasattr(batch, "_asdict"):
        return batch._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if is_dataclass(batch) and not isinstance(batch, type):
        return {one.name: getattr(batch, one.name) for one in fields(batch)}
    return {}


def _plan(trainer: Trainer, loader: Any) -> str:
    """Return how many steps there are, in an epoch and in all."""
    batches = _limited(len(loader), trainer.limit_train_batches)
    each = max(trainer.accumulate_grad_batches, 1)
    steps = math.ceil(batches / each)
    epochs, most = trainer.max_epochs, trainer.max_steps
    ends = [steps * epochs] if epochs is not None and epochs >= 0 else []
    ends += [most] if most >= 0 else []
    told = f"{steps:,} step{'' if steps == 1 else 's'} an epoch"
    if not ends:
        return f"{told}, without end (trainer.max_epochs, trainer.max_steps)"
    whole = min(ends)
    passes = whole / max(steps, 1)
    return f"{told}, {whole:,} in all: {passes:.3g} epoch{'' if passes == 1 else 's'}"


def _limited(count: int, limit: float | None) -> int:
    """Return how many batches are left by `limit_train_batches`: a number, or a share.

    Example:
        >>> _limited(10, 0.5), _limited(10, 3), _limited(10, None)
        (5, 3, 10)
    """
    if limit is None:
        return count
    return min(count, limit) if isinstance(limit, int) else int(count * limit)


def _device(trainer: Trainer) -> str:
    place = str(trainer.strategy.root_device)
    world = trainer.world_size
    several = f"; {world} processes, of which each takes its share" if world > 1 else ""
    return f"{place}, precision {trainer.precision}{several}"


def _folder(run: Path, word: str) -> str:
    """Return what would be written where, and whether there is leave and room."""
    nearest = next(path for path in (run, *run.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise OSError(f"{run} cannot be written: {nearest} is no folder that takes files")
    free = shutil.disk_usage(nearest).free / 10**9
    if word == "fit":
        state = "goes on" if (run / "checkpoints").is_dir() else "new"
        return f"{run} ({state}); {free:.1f} GB free"
    file = run / f"{word}.json"
    return f"{file}{' (would be replaced)' if file.exists() else ''}; {free:.1f} GB free"


def _row(title: str, told: str) -> str:
    return f"{title:{_TITLE}} {told}"
