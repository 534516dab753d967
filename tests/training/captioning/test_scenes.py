"""Data module of rendered scenes with a single object."""

import pytest
import torch

from visattn.data.scenes.dataset import SINGLE_OBJECT, Scenes, single_object_scenes
from visattn.results.kinds import Split
from visattn.training.classification.data import SingleObjectDataModule


def small(**options: object) -> SingleObjectDataModule:
    arguments = {"train": 23, "val": 7, "test": 11, "image_size": 17, "batch_size": 5, **options}
    return SingleObjectDataModule(**arguments)  # pyright: ignore[reportArgumentType]


def test_splits_have_their_scenes() -> None:
    data = small(seed=2)
    assert data.data_info["class_names"] == [
        "circle",
        "square",
        "triangle",
        "cross",
        "ring",
        "star",
    ]
    data.setup("fit")
    data.setup("test")
    batches = list(data.train_dataloader())
    assert [batch.images.shape for batch in batches] == [(5, 3, 17, 17)] * 4
    splits: tuple[Split, ...] = ("validation", "test")
    for split, loader in zip(splits, (data.val_dataloader(), *data.test_dataloader()), strict=True):
        (batch,) = loader
        scenes = single_object_scenes(
            Scenes(len(batch.labels), size=17, seed=2, split=split, config=SINGLE_OBJECT)
        )
        assert torch.equal(batch.images, scenes.images)
        assert torch.equal(batch.labels, scenes.shapes)
        assert torch.equal(data.centers(split), scenes.centers)


def test_classes_are_the_shapes_that_appear() -> None:
    data = small(shapes=["star", "ring"], colors=["cyan"])
    assert data.data_info == {"class_names": ["star", "ring"]}
    data.setup("fit")
    assert set(data.datasets["train"].labels.tolist()) == {0, 1}


def test_only_training_images_are_augmented() -> None:
    data = small(train_transforms=[{"RandomTranslate": {"pixels": 3}}])
    data.setup("fit")
    assert data.datasets["train"].augmentations
    assert not data.datasets["validation"].augmentations


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"shapes": ["heart"]}, "shapes must be chosen from circle"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)
