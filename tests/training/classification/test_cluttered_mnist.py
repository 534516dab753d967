"""Data module of cluttered MNIST: digits, labels, canvases and their seeds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from classification_data import write_digits
from lightning import Trainer

from visattn.data.classification.cluttered_mnist import ClutteredMNIST
from visattn.data.classification.datasets import LabeledBatch
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.resnet import AttentionResNet
from visattn.training.classification.data import ClutteredMNISTDataModule
from visattn.training.classification.task import ClassificationTask
from visattn.training.glimpses.task import GlimpseTask


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in which only test images have pixels of value 77."""
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    test = folder / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    test.write_bytes(test.read_bytes().replace(bytes([250]), bytes([77])))
    return folder


def digits(root: Path, **options: Any) -> ClutteredMNISTDataModule:
    settings = {
        "canvas_size": (31, 37),
        "num_distractors": 2,
        "distractor_size": 5,
        "val": 5,
        "batch_size": 6,
        **options,
    }
    return ClutteredMNISTDataModule(root=str(root), **settings)


class RecordingTask(ClassificationTask):
    """A task that records its training images."""

    images: list[torch.Tensor]

    def training_step(self, batch: LabeledBatch, batch_idx: int) -> torch.Tensor:
        self.images.append(batch.images)
        return super().training_step(batch, batch_idx)


def recording_task(data: ClutteredMNISTDataModule) -> RecordingTask:
    task = RecordingTask(
        lambda classes: AttentionResNet(
            classes, depth=8, stem_width=4, img_size=(31, 37), mean=(0.1,), std=(0.3,)
        ),
        data.data_info,
    )
    task.images = []
    return task


def fit(task: RecordingTask, data: ClutteredMNISTDataModule, epochs: int) -> None:
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


def test_every_split_has_its_digits_with_their_labels(root: Path) -> None:
    data = digits(root, num_distractors=0)
    assert data.data_info == {"class_names": list("0123456789")}
    data.setup("fit")
    data.setup("test")
    counts = []
    for loader in (data.train_dataloader(), data.val_dataloader(), *data.test_dataloader()):
        pairs = [pair for batch in loader for pair in zip(*batch, strict=True)]
        counts.append(len(pairs))
        for image, label in pairs:
            (row,) = set(torch.nonzero(image[0])[:, 0].tolist())
            top = row - 4 - 2 * int(label)
            assert image.shape == (1, 31, 37)
            assert 0 <= top <= 3
    assert counts == [18, 5, 11]


def test_distractors_are_cropped_from_training_digits_only(root: Path) -> None:
    data = digits(root, num_distractors=40)
    training = data.open_dataset("train")
    for split in ("train", "validation", "test"):
        assert data.open_dataset(split).distractor_source is training.digits
    test = data.open_dataset("test")
    images, _ = test[[*range(11)]]
    for image, (top, left) in zip(images, test.placements(range(11)).digits.tolist(), strict=True):
        outside = image[0].clone()
        outside[top : top + 28, left : left + 28] = 0
        assert set(outside.unique().tolist()) <= {0, 250, 255}
    assert 77 in images
    assert not (training[[*range(18)]].images == 77).any()


def test_each_epoch_has_its_own_reproducible_canvases(root: Path) -> None:
    shown = []
    for _ in range(2):
        data = digits(root)
        task = recording_task(data)
        torch.manual_seed(len(shown))
        fit(task, data, epochs=2)
        shown.append(torch.cat(task.images))
    assert torch.equal(*shown)
    first, second = shown[0].split(18)
    epochs = [{image.numpy().tobytes() for image in epoch} for epoch in (first, second)]
    assert [len(epoch) for epoch in epochs] == [18, 18]
    assert not epochs[0] & epochs[1]


def test_validation_and_test_canvases_depend_on_the_split_seed_only(root: Path) -> None:
    data, again = digits(root), digits(root, seed=5)
    other = digits(root, split_seed=1)
    for split in ("validation", "test"):
        assert data.open_dataset(split).digest() == again.open_dataset(split).digest()
        assert data.open_dataset(split).digest() != other.open_dataset(split).digest()
    indices = [*range(5)]
    assert not torch.equal(
        data.open_dataset("train")[indices].images, again.open_dataset("train")[indices].images
    )
    test, validation = data.open_dataset("test"), data.open_dataset("validation")
    places = [dataset.placements(range(5)).digits for dataset in (test, validation)]
    assert not torch.equal(*places)


def test_test_notes_have_the_digest_of_the_canvases(root: Path) -> None:
    data = digits(root)
    task = recording_task(data)
    data.input_spec = task.input_spec
    data.trainer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        global_rank=0, world_size=1
    )
    data.setup("fit")
    assert data.test_notes() == {}
    data.setup("test")
    assert data.test_notes() == {"test_canvases": f"sha256 {data.open_dataset('test').digest()}"}


def test_centers_are_in_the_order_of_the_test_images(root: Path) -> None:
    data = digits(root, num_distractors=0)
    before = data.centers()
    data.setup("test")
    assert torch.equal(data.centers(), before)
    batches = torch.cat([batch.images for batch in data.test_dataloader()[0]])
    for image, (x, _) in zip(batches, before.tolist(), strict=True):
        columns = torch.nonzero(image[0])[:, 1].float()  # a digit is a row from 4 to 24 of 28
        assert 2 * (columns.mean() + 0.5) / 37 - 1 == pytest.approx(x, abs=1e-6)
    assert data.centers("validation").shape == (5, 2)


def test_glimpse_models_are_also_tested_from_the_center_of_the_digit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(classes: list[str]) -> RecurrentAttentionModel:
        return RecurrentAttentionModel(
            classes, (31, 37), [0.1], [0.3], glimpse_size=5, num_glimpses=3, hidden_size=8
        )

    task, data = GlimpseTask(model, {"class_names": list("0123456789")}), digits(root)
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, max_epochs=1,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        use_distributed_sampler=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(task, datamodule=data)
    assert "val/error_centered" not in trainer.callback_metrics
    rollout, starts = task.model.rollout, []
    monkeypatch.setattr(
        task.model,
        "rollout",
        lambda *a, **o: starts.append(o.get("init_locations")) or rollout(*a, **o),
    )
    (scores,) = trainer.test(task, datamodule=data, verbose=False)
    monkeypatch.undo()
    assert any(start is not None and torch.equal(start, data.centers()) for start in starts)
    test = data.open_dataset("test")[list(range(len(data.open_dataset("test"))))]
    scanpath = task.model.eval().rollout(
        task.model.normalize(test.images), init_locations=data.centers()
    )
    wrong = (scanpath.logits[:, 0].argmax(-1) != test.labels[:, None]).float().mean(0)
    assert scores["test/error_centered"] == pytest.approx(wrong[-1].item())
    per_glimpse = task.notes["test_error_per_glimpse"]["centered"]
    assert per_glimpse == pytest.approx(wrong.tolist())


def test_workers_make_the_same_canvases(root: Path) -> None:
    shown = []
    for num_workers in (0, 1):
        data = digits(root, num_workers=num_workers)
        data.setup("fit")
        loader = data.train_dataloader()
        batches = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
            batches += [batch.images for batch in loader]
        shown.append(torch.cat(batches))
    assert torch.equal(*shown)


def test_options_that_do_not_fit_are_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="must fit on the canvas"):
        digits(root, canvas_size=(20, 60))
    with pytest.raises(ValueError, match="must fit into other digits"):
        digits(root, distractor_size=29)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        digits(root, seed=-1)
    with pytest.raises(FileNotFoundError, match="does not hold MNIST"):
        digits(root / "nowhere")


def test_examples_are_canvases(root: Path) -> None:
    data = digits(root)
    assert [image.shape for image in data.examples(3)] == [(31, 37, 3)] * 3
    assert isinstance(data.datasets["validation"], ClutteredMNIST)
