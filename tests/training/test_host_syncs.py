"""Training steps do not wait for a GPU more often than they must."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning import Callback
from task_runs import small_trainer
from torch import Tensor
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from visattn.data.captions.batch import CaptionSample, Vocabulary, collate_captions
from visattn.data.classification.datasets import LabeledBatch
from visattn.models import RecurrentAttentionModel, ShowAttendTell, SmallEncoder, VisionTransformer
from visattn.training.callbacks import StopAtNonFinite
from visattn.training.captioning.task import CaptioningTask
from visattn.training.classification.task import ClassificationTask
from visattn.training.glimpses.task import GlimpseTask
from visattn.training.optim import OptimConfig
from visattn.training.task import Task

STEPS = 2  # the optimizer makes its states in the first
# Others keep their step numbers on the CPU, and reading these is no sync on a GPU.
FUSED = OptimConfig(partial(AdamW, lr=1e-3, fused=True))
# Operations that read a value of a GPU on the host, or copy one there from pageable memory.
SYNCS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "lift_fresh"}


class SyncCounter(TorchDispatchMode, Callback):
    """Counts host syncs of the last step by name, those of the backward pass included."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.syncs, self.last = Counter[str](), Counter[str]()
        for name in ("tolist", "numpy", "cpu"):  # which need no operation on a CPU
            patch.setattr(Tensor, name, self._counted(name, getattr(Tensor, name)))

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            self.syncs[name] += 1
            return method(*args, **kwargs)

        return read

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # A mask has a size that only the device knows.
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in SYNCS or name.startswith(("unique", "_unique")) or by_mask:
            self.syncs[name] += 1
        return func(*args, **(kwargs or {}))

    def on_train_batch_start(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.syncs.clear()

    def on_train_batch_end(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.last = self.syncs.copy()


def labeled(channels: int, side: int) -> LabeledBatch:
    images = torch.randint(256, (8, channels, side, side), dtype=torch.uint8)
    return LabeledBatch(images, torch.arange(8) % 5)


def vit() -> tuple[Task, Any]:
    model = partial(VisionTransformer, img_size=(32, 32), patch_size=8, embed_dim=24, num_heads=3)
    return ClassificationTask(model, {"class_names": list("abcde")}, optim=FUSED), labeled(3, 32)


def ram() -> tuple[Task, Any]:
    model = partial(RecurrentAttentionModel, img_size=(28, 28), mean=[0.5], std=[0.5])
    return GlimpseTask(model, {"class_names": list("0123456789")}, optim=FUSED), labeled(1, 28)


def captioner() -> tuple[Task, Any]:
    words = [*"abcdefghijklmnop"]
    captions = [" ".join(words[:length]) for length in range(8, 16)]
    vocabulary = Vocabulary.from_captions(captions)
    image = torch.zeros(3, 24, 24, dtype=torch.uint8)
    samples = [CaptionSample(str(n), image, (text,)) for n, text in enumerate(captions)]
    model = partial(
        ShowAttendTell, encoder=SmallEncoder((24, 24), channels=8), embed_dim=7, hidden_size=11
    )
    task = CaptioningTask(model, {"words": list(vocabulary.words)}, optim=FUSED)
    return task, collate_captions(samples, vocabulary)


@pytest.mark.filterwarnings("ignore:.*no `val_dataloader`")
@pytest.mark.parametrize("build", [vit, ram, captioner])
def test_a_step_waits_twice_at_most(
    build: Callable[[], tuple[Task, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, batch = build()
    counter = SyncCounter(monkeypatch)
    options = {"max_epochs": None, "max_steps": STEPS, "log_every_n_steps": 10 * STEPS}
    trainer = small_trainer(tmp_path, StopAtNonFinite(), counter, devices=1, **options)
    with counter:
        trainer.fit(task, DataLoader(cast("Any", [batch] * STEPS), batch_size=None))
    assert 1 <= counter.last.total() <= 2, counter.last
