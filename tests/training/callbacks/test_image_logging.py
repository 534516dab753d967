"""Panels with the crops of a Spatial Transformer, and the loggers that get panels."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from visattn.blocks.spatial_transformer import SpatialTransformer
from visattn.models.resnet import AttentionResNet
from visattn.training.callbacks.logging import ImageLogger, draw_crops
from visattn.training.classification.data import SingleObjectDataModule
from visattn.training.classification.task import ClassificationTask


def model(stem_block: str | None) -> AttentionResNet:
    made = AttentionResNet(
        ("a", "b"), depth=8, stem_width=4, stem_block=stem_block, img_size=(28, 28)
    )
    return made.eval()


def test_frame_and_crop_show_the_left_half() -> None:
    images = np.zeros((1, 28, 28, 3), np.uint8)
    images[:, :, :14] = (0, 0, 250)
    classifier = model("stn")
    transformer = classifier.input_block
    assert isinstance(transformer, SpatialTransformer)
    theta = torch.tensor([0.5, 0, -0.5, 0, 1, 0])  # x from -1 to 0: the left half
    torch.nn.init.zeros_(transformer.localization.fc2.weight)
    with torch.no_grad():
        transformer.localization.fc2.bias.copy_(theta)
    panel = draw_crops(classifier, images, height=84)
    image, crop = panel[6:90, 6:90], panel[93:177, 6:90]
    assert (crop[:, 3:-3] == (0, 0, 250)).all()  # the half fills the view but for its edges
    gold = (image[..., 0] > 200) & (image[..., 2] < 100)
    assert gold[10:-10, 40:44].any(1).all()  # a line down the middle
    assert not gold[10:-10, 50:].any()


def test_without_a_transformer_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="has no Spatial Transformer"):
        draw_crops(model(None), np.zeros((1, 28, 28, 3), np.uint8))


def test_loggers_that_take_images_get_the_panels() -> None:
    class Panels(ImageLogger):
        def panels(self, model: Any, data: Any) -> Iterator[tuple[str, np.ndarray]]:
            yield "panels/0", np.zeros((2, 3, 3), np.uint8)

    sent: list[Any] = []
    takes_images = SimpleNamespace(
        log_image=lambda key, images, step: sent.append((key, images[0].shape, step))
    )
    data = SingleObjectDataModule(train=1, val=1, test=1)
    trainer: Any = SimpleNamespace(
        is_global_zero=True, global_step=7, datamodule=data, loggers=[object(), takes_images]
    )
    task = ClassificationTask(lambda _: model(None), {"class_names": ["a", "b"]})
    for index in range(2):
        Panels().on_validation_batch_start(trainer, task, None, index)
    assert sent == [("panels/0", (2, 3, 3), 7)]
