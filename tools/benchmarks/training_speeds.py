"""Training steps of a ViT, a DETR and a VQA model beside plain PyTorch of the same network."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import timm
import torch
from lightning import Trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.utils.data import DataLoader

from benchmarks.caption_speeds import Comparison
from benchmarks.step_counts import STEPS, Repeated
from visattn.data.classification.datasets import LabeledBatch
from visattn.models.base import SmallEncoder, cell_coordinates
from visattn.models.detr import DETR, BoxPrediction, DetrOutput
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.models.vqa.baselines import RelationNetwork
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.training.classification.task import ClassificationTask
from visattn.training.cli.lightning_cli import silence_lightning
from visattn.training.detection.losses import SetCriterion
from visattn.training.optim import OptimConfig

VIT, IMAGES, CLASSES = "vit_tiny_patch16_224", 8, 1000
VIT_STEPS, VIT_IMAGES = 100, 2  # the start of a trainer takes as long as a part of a step
DIM, HEADS, LAYERS, QUERIES = 128, 8, 3, 50
QUESTIONS = 20  # about an image


# ------------------------------------------------------------------ epoch of a Vision Transformer


def vit_training() -> Comparison:
    """Epoch in a `Trainer`, against a loop over timm's network; a check of few steps before."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    silence_lightning()
    torch.manual_seed(0)
    peer = cast("Any", timm.create_model(VIT).train())
    names = list(map(str, range(CLASSES)))
    ours_model = VisionTransformer.from_timm(peer, class_names=names)
    build = partial(AdamW, lr=1e-5, weight_decay=0.0)
    task = ClassificationTask(lambda *_: ours_model, {"class_names": names},
                              optim=OptimConfig(build))  # fmt: skip
    optimizer = build(peer.parameters())
    pixels = torch.randint(256, (VIT_IMAGES, 3, 224, 224), dtype=torch.uint8)
    batch = LabeledBatch(pixels, torch.arange(VIT_IMAGES))
    mean, std = (torch.tensor(peer.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))

    def plain(steps: int = VIT_STEPS) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = cross_entropy(peer((pixels / 255 - mean) / std), batch.labels)
            loss.backward()
            optimizer.step()

    def ours(steps: int = VIT_STEPS) -> None:
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=1, logger=False, barebones=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(task, DataLoader(Repeated(batch, steps), batch_size=None))

    plain(STEPS)
    ours(STEPS)
    weights = cast("Any", ours_model).patch_embed.proj.weight
    torch.testing.assert_close(weights, peer.patch_embed.proj.weight, atol=1e-5, rtol=1e-3)
    title = (
        f"epoch of {VIT_STEPS} steps of {VIT}, {VIT_IMAGES} images, timm's network in a plain loop"
    )
    return Comparison(title, plain, ours, 1.0)


# ------------------------------------------------------------------ DETR


def detr_training() -> Comparison:
    """Training step of a plain DETR, against `nn.MultiheadAttention` in plain layers."""
    torch.manual_seed(0)
    side, count = 256, 4
    model = DETR(
        tuple("abcdefgh"), SmallEncoder((side, side), channels=64), dim=DIM, num_heads=HEADS,
        num_queries=QUERIES, num_encoder_layers=LAYERS, num_decoder_layers=LAYERS,
        queries="learned", cross_attention="dense", class_probability="softmax",
        num_denoising_groups=0,
    )  # fmt: skip
    criterion = SetCriterion("softmax")
    plain_layers = PlainDetr(model)
    images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8)
    labels = torch.randint(8, (count, 5))
    boxes = torch.rand(count, 5, 4) * 0.4 + 0.3

    def step(predict: Callable[[], DetrOutput]) -> Tensor:
        model.zero_grad()
        plain_layers.zero_grad()
        loss = torch.stack([*criterion.losses(predict(), labels, boxes).values()]).sum()
        loss.backward()
        return loss.detach()

    def ours() -> Tensor:
        return step(lambda: model.decode(model.encode(images)))

    def plain() -> Tensor:
        return step(lambda: plain_layers(images))

    torch.testing.assert_close(ours(), plain(), atol=1e-4, rtol=1e-4)
    title = f"training step of a DETR, {count} images of {side} px, layers of torch.nn"
    return Comparison(title, plain, ours, 1.0)


class PlainDetr(nn.Module):
    """The same DETR from layers of `torch.nn`, with the encoder, heads and weights of `model`."""

    def __init__(self, model: DETR) -> None:
        super().__init__()
        self.model = model
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        for theirs, own in zip(
            cast("Any", self.layers.layers), cast("Any", model.encoder_layers), strict=True
        ):
            theirs.self_attn.in_proj_weight.data.copy_(own.attn.qkv.weight)
            theirs.self_attn.in_proj_bias.data.copy_(own.attn.qkv.bias)
            theirs.self_attn.out_proj.load_state_dict(own.attn.proj.state_dict())
            theirs.linear1.load_state_dict(own.mlp.fc1.state_dict())
            theirs.linear2.load_state_dict(own.mlp.fc2.state_dict())
            theirs.norm1.load_state_dict(own.norm1.state_dict())
            theirs.norm2.load_state_dict(own.norm2.state_dict())
        attentions = [
            packed_attention(attention)
            for own in cast("Any", model.decoder_layers)
            for attention in (own.self_attn, own.cross_attn)
        ]
        self.attentions = nn.ModuleList(attentions)

    def forward(self, images: Tensor) -> DetrOutput:
        """Return the predictions of all layers, as the code of DETR does."""
        model = self.model
        features = model.input_proj(model.encoder(images))
        position = model.encode(images[:0]).position
        memory = model.encoder_norm(self.layers(features.flatten(2).mT + position))
        x = model.query_content.expand(len(images), -1, -1)
        query: Any = model.query_position
        predictions: list[BoxPrediction] = []
        for index, layer in enumerate(cast("Any", model.decoder_layers)):
            own, cross = self.attentions[2 * index : 2 * index + 2]
            at = x + query
            x = layer.norm1(x + own(at, at, x, need_weights=False)[0])
            x = layer.norm2(x + cross(x + query, memory + position, memory, need_weights=False)[0])
            x = layer.norm3(x + layer.mlp.fc2(layer.mlp.act(layer.mlp.fc1(x))))
            predictions.append(model.heads(x))
        stacked = (torch.stack(tensors) for tensors in zip(*predictions, strict=True))
        return DetrOutput(BoxPrediction(*stacked), None, None, ())


def packed_attention(own: Any) -> nn.MultiheadAttention:
    """Return torch's attention with the same weights."""
    attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    parts = (own.query, own.key, own.value)
    attention.in_proj_weight.data.copy_(torch.cat([part.weight for part in parts]))
    attention.in_proj_bias.data.copy_(torch.cat([part.bias for part in parts]))
    attention.out_proj.load_state_dict(own.out.state_dict())
    return attention


# ------------------------------------------------------------------ questions


def vqa_training() -> Comparison:
    """Training step of a relation network, against pairs that are joined, as in its usual code."""
    torch.manual_seed(0)
    words = (*SPECIAL_TOKENS, *map(str, range(20)))
    encoder = SmallEncoder((64, 64), channels=32)
    model = RelationNetwork(words, tuple("abcdefgh"), encoder, dim=64)
    images = torch.randint(256, (IMAGES, 3, 64, 64), dtype=torch.uint8)
    of_image = torch.arange(IMAGES).repeat_interleave(QUESTIONS)
    questions = torch.randint(len(SPECIAL_TOKENS), len(words), (len(of_image), 7))
    answers = torch.randint(8, (len(of_image),))

    def step(answer: Callable[[], Tensor]) -> Tensor:
        model.zero_grad()
        loss = cross_entropy(answer(), answers)
        loss.backward()
        return loss.detach()

    def joined() -> Tensor:
        features = model.encoder(images)
        places = cell_coordinates(features).expand(len(features), -1, -1, -1)
        objects = torch.cat((features, places), 1).flatten(2).mT[of_image]
        count = objects.shape[1]
        vector = model.questions(questions).vector[:, None, None].expand(-1, count, count, -1)
        first = objects[:, :, None].expand(-1, -1, count, -1)
        second = objects[:, None].expand(-1, count, -1, -1)
        pairs = model.first(torch.cat((first, second, vector), -1))
        return model.head(model.pair_mlp(pairs).mean((1, 2)))

    def ours() -> Tensor:
        return step(lambda: model(images, questions, of_image).logits)

    def plain() -> Tensor:
        return step(joined)

    model.eval()  # running statistics of the encoder do not move
    torch.testing.assert_close(ours(), plain(), atol=1e-4, rtol=1e-4)
    title = f"training step of a relation network, {IMAGES} x {QUESTIONS} questions, joined pairs"
    return Comparison(title, plain, ours, 1.0)


COMPARISONS: dict[str, Callable[[], Comparison]] = {
    "vit-training": vit_training,
    "detr-training": detr_training,
    "vqa-training": vqa_training,
}
