"""Panels with the crops of a Spatial Transformer."""

import numpy as np
import pytest
import torch

from visattn.blocks.spatial_transformer import SpatialTransformer
from visattn.models.resnet import AttentionResNet
from visattn.training.callbacks.logging import draw_crops


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
