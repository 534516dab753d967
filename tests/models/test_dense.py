"""The base class of dense models: classes, parameter groups, weight decay."""

import pytest
import torch
from torch import Tensor, nn

from visattn.models.base import DenseModel, SmallEncoder


class PixelClassifier(DenseModel):
    """One convolution after the encoder."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        super().__init__(class_names, SmallEncoder((16, 24), channels=8))
        self.head = nn.Conv2d(8, len(class_names), 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images))


def test_the_input_is_that_of_the_encoder() -> None:
    model = PixelClassifier(("background", "cat"))
    assert (model.img_size, model.mean, model.std) == ((16, 24), (0.5,) * 3, (0.25,) * 3)
    assert model(torch.zeros(3, 3, 16, 24, dtype=torch.uint8)).shape == (3, 2, 2, 3)


def test_each_parameter_is_in_one_group() -> None:
    model = PixelClassifier(("background", "cat"))
    groups = model.parameter_groups()
    assert groups["decoder"] == [model.head.weight, model.head.bias]
    assert len(groups["encoder"]) + 2 == len(list(model.parameters()))
    no_decay = {id(weight) for weight in model.no_weight_decay_parameters()}
    assert id(model.head.bias) in no_decay
    assert id(model.head.weight) not in no_decay


@pytest.mark.parametrize("class_names", [(), ("cat", "cat")])
def test_class_names_are_distinct(class_names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="class_names must be distinct names"):
        PixelClassifier(class_names)
