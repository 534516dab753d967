"""Data module of digit sequences: splits, epochs, workers, and what tasks learn from it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from classification_data import write_digits

from visattn.results.kinds import SPECIAL_TOKENS
from visattn.training.sequences.data import DigitSequenceDataModule


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder, train=41, test=13)
    return folder


def digits(root: Path, **options: Any) -> DigitSequenceDataModule:
    settings = {"canvas_size": (29, 79), "max_digits": 3, "val": 11, "batch_size": 5, **options}
    return DigitSequenceDataModule(root=str(root), **settings)


def images(loader: Any) -> torch.Tensor:
    return torch.cat([batch.images for batch in loader])


def test_splits_are_fixed_and_training_changes_with_the_epoch(root: Path) -> None:
    data, other_seed = digits(root), digits(root, seed=3)
    other_split = digits(root, split_seed=1)
    for module in (data, other_seed, other_split):
        module.setup("fit")
        module.setup("test")
    validation, test = images(data.val_dataloader()), images(data.test_dataloader()[0])
    assert (len(validation), len(test)) == (11, 13)
    assert torch.equal(validation, images(other_seed.val_dataloader()))
    assert torch.equal(test, images(other_seed.test_dataloader()[0]))
    assert not torch.equal(validation, images(other_split.val_dataloader()))
    assert not torch.equal(test, images(other_split.test_dataloader()[0]))
    loader = data.train_dataloader()
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
        epochs.append({image.numpy().tobytes() for image in images(loader)})
    assert [len(epoch) for epoch in epochs] == [30, 30]
    assert not epochs[0] & epochs[1]
    other = {image.numpy().tobytes() for image in images(other_seed.train_dataloader())}
    assert not epochs[0] & other
    digest = data.open_dataset("test").digest()
    assert data.test_notes() == {"test_canvases": f"sha256 {digest}"}


def test_workers_draw_the_same_canvases(root: Path) -> None:
    shown = []
    for num_workers in (0, 1):
        data = digits(root, num_workers=num_workers, layout="scattered", canvas_size=(31, 89))
        data.setup("fit")
        shown.append(images(data.train_dataloader()))
    assert torch.equal(*shown)


def test_digits_of_the_splits_are_disjoint_and_distractors_come_from_training(root: Path) -> None:
    data = digits(root, num_distractors=1)
    train = data.open_dataset("train").digits
    for split in ("validation", "test"):
        assert data.open_dataset(split).distractor_source is train
    assert len(data.open_dataset("validation").digits) == 11
    labels = data.splits.images("validation")[1]
    assert torch.equal(data.open_dataset("validation").labels, labels)


def test_data_info_names_classes_words_and_length(root: Path) -> None:
    info = digits(root).data_info
    assert info["class_names"] == list("0123456789")
    assert info["words"] == [*SPECIAL_TOKENS, *"0123456789"]
    assert info["max_length"] == 3
    info = digits(root, target="addition", max_digits=2).data_info
    assert (len(info["class_names"]), info["max_length"]) == (19, 1)


def test_examples_are_validation_canvases(root: Path) -> None:
    data = digits(root)
    (first, second) = data.examples(2)
    batch = data.open_dataset("validation")[[0, 1]]
    assert first.shape == (29, 79, 3)
    assert (torch.from_numpy(second) == batch.images[1, 0, :, :, None]).all()


def test_options_that_do_not_fit_are_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="need a canvas of at least"):
        digits(root, max_digits=4)
    with pytest.raises(FileNotFoundError, match="does not hold MNIST"):
        digits(root / "nowhere")
