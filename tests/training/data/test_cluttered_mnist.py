"""MNIST on canvases as data: which digits, on which canvases, in which epoch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from class_miniatures import write_digits
from lightning import Trainer

from visattn.data.classification.cluttered_mnist import ClutteredMNIST
from visattn.data.classification.datasets import LabeledBatch
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.training.data.cluttered_mnist import ClutteredMNISTDataModule
from visattn.training.tasks.classification import ClassificationTask
from visattn.training.tasks.glimpse import GlimpseTask


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits of which those for the test are the only ones with pixels of 77."""
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    test = folder / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    test.write_bytes(test.read_bytes().replace(bytes([250]), bytes([77])))
    return folder


def digits(root: Path, **options: Any) -> ClutteredMNISTDataModule:
    asked = {"canvas": (31, 37), "pieces": 2, "piece": 5, "validation": 5, "batch": 6, **options}
    return ClutteredMNISTDataModule(root=str(root), **asked)


class Watching(ClassificationTask):
    """A task that remembers what it was shown in training."""

    shown: list[torch.Tensor]

    def training_step(self, batch: LabeledBatch, batch_idx: int) -> torch.Tensor:
        self.shown.append(batch.images)
        return super().training_step(batch, batch_idx)


def watching(data: ClutteredMNISTDataModule) -> Watching:
    task = Watching(
        lambda classes: AttentionResNet(
            classes, depth=8, width=4, size=(31, 37), mean=(0.1,), std=(0.3,)
        ),
        data.data_info,
    )
    task.shown = []
    return task


def fit(task: Watching, data: ClutteredMNISTDataModule, epochs: int) -> None:
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    trainer.fit(task, datamodule=data)


def test_every_part_holds_its_digits_with_their_labels(root: Path) -> None:
    data = digits(root, pieces=0)
    assert data.data_info == {"classes": list("0123456789")}
    data.setup("fit")
    data.setup("test")
    counts = []
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        seen = [pair for batch in loader for pair in zip(*batch, strict=True)]
        counts.append(len(seen))
        for image, label in seen:
            (row,) = set(torch.nonzero(image[0])[:, 0].tolist())
            top = row - 4 - 2 * int(label)
            assert image.shape == (1, 31, 37)
            assert 0 <= top <= 3
    assert counts == [18, 5, 11]


def test_no_test_digit_and_none_for_validation_is_cut_up(root: Path) -> None:
    data = digits(root, pieces=40)
    training = data.laid("train")
    for split in ("train", "validation", "test"):
        assert data.laid(split).clutter is training.digits
    test = data.laid("test")
    images, _ = test[[*range(11)]]
    for image, (top, left) in zip(images, test.placements(range(11)).digits.tolist(), strict=True):
        outside = image[0].clone()
        outside[top : top + 28, left : left + 28] = 0
        assert set(outside.unique().tolist()) <= {0, 250, 255}
    assert 77 in images
    assert not (training[[*range(18)]].images == 77).any()


def test_epochs_have_canvases_of_their_own_which_come_again(root: Path) -> None:
    shown = []
    for _ in range(2):
        data = digits(root)
        task = watching(data)
        torch.manual_seed(len(shown))
        fit(task, data, epochs=2)
        shown.append(torch.cat(task.shown))
    assert torch.equal(*shown)
    first, second = shown[0].split(18)
    epochs = [{image.numpy().tobytes() for image in epoch} for epoch in (first, second)]
    assert [len(epoch) for epoch in epochs] == [18, 18]
    assert not epochs[0] & epochs[1]


def test_validation_and_test_stay_as_they_are(root: Path) -> None:
    data, again = digits(root), digits(root, seed=5)
    other = digits(root, split_seed=1)
    for split in ("validation", "test"):
        assert data.laid(split).digest() == again.laid(split).digest()
        assert data.laid(split).digest() != other.laid(split).digest()
    every = [*range(5)]
    assert not torch.equal(data.laid("train")[every].images, again.laid("train")[every].images)
    test, validation = data.laid("test"), data.laid("validation")
    places = [one.placements(range(5)).digits for one in (test, validation)]
    assert not torch.equal(*places)


def test_the_test_notes_its_canvases(root: Path) -> None:
    data = digits(root)
    task = watching(data)
    data.trainer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        lightning_module=task, global_rank=0, world_size=1
    )
    data.setup("fit")
    assert task.notes == {}
    data.setup("test")
    assert task.notes == {"test_canvases": f"sha256 {data.laid('test').digest()}"}


def test_centers_come_in_the_order_of_the_test(root: Path) -> None:
    data = digits(root, pieces=0)
    before = data.centers()
    data.setup("test")
    assert torch.equal(data.centers(), before)
    batches = torch.cat([batch.images for batch in data.test_dataloader()])
    for image, (x, _) in zip(batches, before.tolist(), strict=True):
        columns = torch.nonzero(image[0])[:, 1].float()  # a digit is a row from 4 to 24 of 28
        assert 2 * (columns.mean() + 0.5) / 37 - 1 == pytest.approx(x, abs=1e-6)
    assert data.centers("validation").shape == (5, 2)


def test_a_model_that_looks_is_tried_from_the_digit_itself_too(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(classes: list[str]) -> RecurrentAttentionModel:
        return RecurrentAttentionModel(
            classes, (31, 37), [0.1], [0.3], glimpse=5, glimpses=3, width=8
        )

    task, data = GlimpseTask(model, {"classes": list("0123456789")}), digits(root)
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, max_epochs=1,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        use_distributed_sampler=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(task, datamodule=data)
    assert "val/error_aimed" not in trainer.callback_metrics
    roll_out, starts = task.model.roll_out, []
    monkeypatch.setattr(
        task.model, "roll_out", lambda *a, **o: starts.append(o.get("start")) or roll_out(*a, **o)
    )
    (scores,) = trainer.test(task, datamodule=data, verbose=False)
    monkeypatch.undo()
    assert any(start is not None and torch.equal(start, data.centers()) for start in starts)
    shown = data.laid("test")[list(range(len(data.laid("test"))))]
    looks = task.model.eval().look(shown.images, start=data.centers())
    wrong = (looks.scores[:, 0].argmax(-1) != shown.labels[:, None]).float().mean(0)
    assert scores["test/error_aimed"] == pytest.approx(wrong[-1].item())
    noted = task.notes["test_error_after_each_glimpse"]["aimed"]
    assert noted == pytest.approx(wrong.tolist())


def test_other_processes_make_the_same_canvases(root: Path) -> None:
    shown = []
    for workers in (0, 1):
        data = digits(root, workers=workers)
        data.setup("fit")
        loader = data.train_dataloader()
        batches = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
            batches += [batch.images for batch in loader]
        shown.append(torch.cat(batches))
    assert torch.equal(*shown)


def test_what_does_not_fit_is_said_before_training(root: Path) -> None:
    with pytest.raises(ValueError, match="must fit on the canvas"):
        digits(root, canvas=(20, 60))
    with pytest.raises(ValueError, match="must fit into other digits"):
        digits(root, piece=29)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        digits(root, seed=-1)
    with pytest.raises(FileNotFoundError, match="does not hold MNIST"):
        digits(root / "nowhere")


def test_examples_are_canvases(root: Path) -> None:
    data = digits(root)
    assert [image.shape for image in data.examples(3)] == [(31, 37, 3)] * 3
    assert isinstance(data.parts["validation"], ClutteredMNIST)
