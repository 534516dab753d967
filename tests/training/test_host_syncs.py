"""Training steps do not wait for a GPU more often than they must."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from lightning import Callback, Trainer
from torch import Tensor
from torch.optim import AdamW
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from visattn.data.captions.batch import CaptionSample, Vocabulary, collate_captions
from visattn.data.classification.datasets import LabeledBatch
from visattn.models import (
    RecurrentAttentionModel,
    ShowAttendTell,
    SmallEncoder,
    VisionTransformer,
)
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
READS = {Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.cpu: "cpu"}


class Reads(TorchFunctionMode):
    """Counts methods that read a tensor without an operation on a CPU."""

    def __init__(self, syncs: Counter[str]) -> None:
        super().__init__()
        self.syncs = syncs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if name := READS.get(func):
            self.syncs[name] += 1
        return func(*args, **(kwargs or {}))


class SyncCounter(TorchDispatchMode):
    """Counts host syncs by name in `syncs`, those of the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: Counter[str] = Counter()
        self._reads = Reads(self.syncs)

    def __enter__(self) -> Any:
        self._reads.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._reads.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # A mask has a size that only the device knows.
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in SYNCS or name.startswith(("unique", "_unique")) or by_mask:
            self.syncs[name] += 1
        return func(*args, **(kwargs or {}))


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

    def build(words: list[str]) -> ShowAttendTell:
        encoder = SmallEncoder((24, 24), channels=8)
        return ShowAttendTell(words, encoder, embed_dim=7, hidden_size=11, attention_dim=5)

    task = CaptioningTask(build, {"words": list(vocabulary.words)}, optim=FUSED)
    return task, collate_captions(samples, vocabulary)


class LastStep(Callback):
    """Keeps the syncs of the last step."""

    def __init__(self, counter: SyncCounter) -> None:
        self.counter, self.syncs = counter, Counter[str]()

    def on_train_batch_start(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.counter.syncs.clear()

    def on_train_batch_end(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.syncs = self.counter.syncs.copy()


@pytest.mark.filterwarnings("ignore:.*no `val_dataloader`")
@pytest.mark.parametrize("build", [vit, ram, captioner])
def test_a_step_waits_twice_at_most(build: Callable[[], tuple[Task, Any]]) -> None:
    task, batch = build()
    counter = SyncCounter()
    last = LastStep(counter)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=10 * STEPS,
        callbacks=[StopAtNonFinite(), last],
    )  # fmt: skip
    with counter:
        trainer.fit(task, DataLoader(cast("Any", [batch] * STEPS), batch_size=None))
    assert 1 <= last.syncs.total() <= 2, last.syncs
