"""Small models that answer questions about images, and a small detector."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import avg_pool2d

from visattn.models.base import ImageEncoder, SmallEncoder
from visattn.models.detr import DETR
from visattn.models.vqa.mac import MAC
from visattn.models.vqa.model import AnswerOutput, VQAModel
from visattn.results.kinds import SPECIAL_TOKENS

QUESTION_WORDS = (*SPECIAL_TOKENS, "what", "color", "is", "the", "ring", "left", "on")
QUESTION_ANSWERS = ("red", "blue", "yes")


def small_mac() -> MAC:
    """Return an untrained model with maps over cells and words."""
    torch.manual_seed(0)
    encoder = SmallEncoder((16, 24), channels=8)
    model = MAC(QUESTION_WORDS, QUESTION_ANSWERS, encoder, dim=8, steps=2)
    with torch.no_grad():
        model.read.score.weight.mul_(20)
        model.control.score.weight.mul_(20)
    return model.eval()


class MeanEncoder(ImageEncoder):
    """Mean of each square of 4 x 4 pixels, in each color channel."""

    def __init__(self, img_size: tuple[int, int]) -> None:
        super().__init__(img_size, (0.5,) * 3, (0.25,) * 3)
        self.channels, self.grid_size = 3, (img_size[0] // 4, img_size[1] // 4)
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward_features(
        self, images: Float[Tensor, "b 3 y x"]
    ) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        return (avg_pool2d(images, 4),)


class BrightestCell(VQAModel):
    """Attends to the brightest cell, and answers with the first word of the question."""

    hop_names = ("hop 1",)

    def answer(
        self,
        features: Float[Tensor, "b c y x"],
        questions: Int[Tensor, "r t"],
        image_indices: Int[Tensor, " r"] | None = None,
    ) -> AnswerOutput:
        cells = features.mean(1).flatten(1)[:, None].mul(50).softmax(-1)
        logits = 10 * torch.nn.functional.one_hot(questions[:, 0] % len(self.answers)).float()
        padded = torch.zeros(len(questions), len(self.answers))
        padded[:, : logits.shape[1]] = logits
        return AnswerOutput(padded, cells if image_indices is None else cells[image_indices])


def brightest_cell(img_size: tuple[int, int] = (16, 24)) -> BrightestCell:
    return BrightestCell(QUESTION_WORDS, QUESTION_ANSWERS, MeanEncoder(img_size)).eval()


def small_detector() -> DETR:
    """Return an untrained detector whose boxes differ from each other."""
    torch.manual_seed(4)
    model = DETR(
        ("cat", "dog"),
        SmallEncoder((24, 40), channels=8),
        dim=16, num_queries=5, num_heads=2, num_encoder_layers=0, num_decoder_layers=2,
        mlp_ratio=4.0,
    )  # fmt: skip
    with torch.no_grad():
        heads: Any = model.heads
        heads.boxes[-1].weight.normal_()
        heads.classes.bias.zero_()
    return model.eval()
