"""Scenes as images with classes."""

import pytest
import torch

from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.single_object import LONE, lone_things
from visattn.training.data.classification import Loader, Split
from visattn.training.data.single_object_scenes import SingleObjectDataModule


def small(**options: object) -> SingleObjectDataModule:
    asked = {"train": 23, "validation": 7, "test": 11, "size": 17, "batch": 5, **options}
    return SingleObjectDataModule(**asked)  # pyright: ignore[reportArgumentType]


def test_parts_hold_their_scenes() -> None:
    data = small(seed=2)
    assert data.data_info["classes"] == ["circle", "square", "triangle", "cross", "ring", "star"]
    data.setup("fit")
    data.setup("test")
    batches = list(data.train_dataloader())
    assert [batch.images.shape for batch in batches] == [(5, 3, 17, 17)] * 4
    parts: list[tuple[Split, Loader]] = [
        ("validation", data.val_dataloader()),
        ("test", data.test_dataloader()),
    ]
    for split, loader in parts:
        (batch,) = loader
        drawn = lone_things(Scenes(len(batch.labels), size=17, seed=2, split=split, kinds=LONE))
        assert torch.equal(batch.images, drawn.images)
        assert torch.equal(batch.labels, drawn.shapes)
        assert torch.equal(data.centers(split), drawn.centers)


def test_classes_are_the_shapes_that_appear() -> None:
    data = small(shapes=["star", "ring"], colors=["cyan"])
    assert data.data_info == {"classes": ["star", "ring"]}
    data.setup("fit")
    assert set(data.parts["train"].labels.tolist()) == {0, 1}


def test_only_training_images_are_changed() -> None:
    data = small(augment=[{"RandomTranslate": {"pixels": 3}}])
    data.setup("fit")
    assert data.parts["train"].augmentations
    assert not data.parts["validation"].augmentations


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test": 0}, "count must be >= 1"),
        ({"size": 15}, "size >= 16"),
        ({"seed": -1}, "seed >= 0"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"shapes": ["heart"]}, "shapes must be chosen from circle"),
    ],
)
def test_numbers_without_sense_are_refused_at_once(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small(**options)
