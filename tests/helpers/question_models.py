"""Small models that answer questions about images, and tiny ones of transformers."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from jaxtyping import Float, Int
from tiny_vlms import IDS, SMALL, TILES, VOCABULARY, tokenizer
from torch import Tensor
from torch.nn.functional import avg_pool2d

from visattn.models.base import ImageEncoder, SmallEncoder
from visattn.models.vqa.mac import MAC
from visattn.models.vqa.model import AnswerOutput, VQAModel
from visattn.results.kinds import SPECIAL_TOKENS

hf: Any = transformers
QUESTION_WORDS = (*SPECIAL_TOKENS, "what", "color", "is", "the", "ring", "left", "on")
QUESTION_ANSWERS = ("red", "blue", "yes")


def small_mac(steps: int = 2) -> MAC:
    """Return an untrained model with maps over cells and words."""
    torch.manual_seed(0)
    encoder = SmallEncoder((16, 24), channels=8)
    model = MAC(QUESTION_WORDS, QUESTION_ANSWERS, encoder, dim=8, steps=steps)
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


@torch.no_grad()
def _score_by_brightness(attention: Any) -> None:
    """Let the attention of all tokens be a softmax of the first feature of the keys."""
    for layer in (attention.query, attention.key):
        layer.weight.zero_()
        layer.bias.zero_()
    attention.query.bias[0] = 1.0
    attention.key.weight[0, 0] = 20.0


@torch.no_grad()
def _embed_brightness(projection: Any) -> None:
    """Let the first feature of a patch be its mean, and the others zero."""
    projection.weight.zero_()
    projection.bias.zero_()
    projection.weight[0] = 100.0 / projection.weight[0].numel()


@torch.no_grad()
def bright_vilt(answers: Sequence[str] = QUESTION_ANSWERS) -> tuple[Any, Any]:
    """Return a tiny ViLT whose first layer attends to bright patches, and its processor."""
    torch.manual_seed(0)
    labels = dict(enumerate(answers))
    config = hf.ViltConfig(
        **SMALL, vocab_size=VOCABULARY, image_size=32, patch_size=8, max_image_length=-1,
        max_position_embeddings=40, id2label=labels,
        label2id={name: index for index, name in labels.items()},
    )  # fmt: skip
    model = hf.ViltForQuestionAnswering(config).eval()
    embeddings = model.vilt.embeddings
    _embed_brightness(embeddings.patch_embeddings.projection)
    embeddings.position_embeddings.zero_()
    embeddings.token_type_embeddings.weight.zero_()
    _score_by_brightness(model.vilt.encoder.layer[0].attention.attention)
    images = hf.ViltImageProcessor(size={"shortest_edge": 32}, size_divisor=8)
    return model, hf.ViltProcessor(images, tokenizer())


@torch.no_grad()
def bright_blip() -> tuple[Any, Any]:
    """Return a tiny BLIP whose question encoder attends to bright patches, and its processor."""
    torch.manual_seed(0)
    text = {**SMALL, **IDS, "vocab_size": VOCABULARY, "encoder_hidden_size": 16, "sep_token_id": 2}
    config = hf.BlipConfig(text_config=text, vision_config={**SMALL, **TILES})
    model = hf.BlipForQuestionAnswering(config).eval()
    embeddings = model.vision_model.embeddings
    _embed_brightness(embeddings.patch_embedding)
    embeddings.position_embedding.zero_()
    for layer in model.vision_model.encoder.layers:
        for output in (layer.self_attn.projection, layer.mlp.fc2):
            output.weight.zero_()
            output.bias.zero_()
    for layer in model.text_encoder.encoder.layer:
        _score_by_brightness(layer.crossattention.self)
    images = hf.BlipImageProcessor(size={"height": 32, "width": 32})
    return model, hf.BlipProcessor(images, tokenizer())
