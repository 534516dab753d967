"""DETR: object detection as set prediction by queries that attend to the image."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple, cast, get_args

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.transformer.deformable import SamplingPoints
from visattn.blocks.transformer.layer import EncoderLayer, FeedForward, run_layers
from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.functional.boxes import center_to_corners, inverse_sigmoid
from visattn.models.dense import DenseModel
from visattn.models.detection.decoder import (
    CrossAttention,
    DetrDecoderLayer,
    Memory,
    cell_centers,
    sine_embed,
)
from visattn.models.detection.queries import (
    DenoisingQueries,
    ObjectQueries,
    cell_anchors,
    spread_anchors,
)
from visattn.models.encoder import ImageEncoder

QueryType = Literal["anchors", "learned"]
ClassProbability = Literal["sigmoid", "softmax"]
_PRIOR = 0.01  # initial probability of each class with the sigmoid


class BoxPrediction(NamedTuple):
    """Class logits and boxes of queries."""

    logits: Float[Tensor, "*b n k"]
    """With softmax, the last class is "no object"."""
    boxes: Float[Tensor, "*b n 4"]
    """Center x, center y, width, height, relative to the image."""


class DetrOutput(NamedTuple):
    """Predictions of all decoder layers."""

    layers: BoxPrediction
    """Of the object queries; the first axis is the layer."""
    denoising: BoxPrediction | None
    """Of the denoising queries, in training."""
    proposals: BoxPrediction | None
    """Of the first stage, one per cell; None with one stage."""
    points: tuple[SamplingPoints, ...]
    """Of the object queries, for each layer; empty with dense cross-attention."""


class PredictedObjects(NamedTuple):
    """The detections of each image with the highest scores, in descending order."""

    boxes: Float[Tensor, "b d 4"]
    """Left, top, right, bottom, relative to the image."""
    labels: Int[Tensor, "b d"]
    scores: Float[Tensor, "b d"]
    queries: Int[Tensor, "b d"]
    """The query of each detection."""


class DETR(DenseModel):
    """Detection transformer with anchor queries and deformable attention.

    Each query has a content and an anchor box. A decoder layer lets the queries attend to each
    other and to the image, and refines their boxes. A Hungarian matching assigns the true boxes to
    queries in training, so that no duplicates need to be suppressed.

    `model(images)` returns the predictions of the last layer, `detect` the boxes with the highest
    scores. uint8 images are normalized inside; float images must be normalized already.

    Plain DETR has `queries="learned"`, `cross_attention="dense"`, `class_probability="softmax"` and
    encoder layers.

    Args:
        class_names: Names of the classes, in the order of the logits.
        encoder: Maps images to a grid of features.
        dim: Dimension of the transformer.
        num_queries: Number of queries, the largest number of objects it can find.
        num_heads: Number of attention heads.
        num_encoder_layers: Transformer layers on the feature grid.
        num_decoder_layers: Decoder layers.
        mlp_ratio: Hidden size of the MLPs, as a multiple of `dim`.
        queries: `anchors`: learned boxes, which each layer refines; `learned`: learned position
            embeddings, from which each layer predicts the box anew.
        cross_attention: `deformable`, at a few points around the box, or `dense`, over all cells.
        num_points: Points per head of deformable attention.
        class_probability: `sigmoid` for each class, for the focal loss; or `softmax` over the
            classes and "no object".
        two_stage: Whether a first stage predicts a box for each cell, and the best ones become the
            anchors.
        num_denoising_groups: Copies of the true boxes in denoising training; 0 for none. They are
            not used outside of training.

    Raises:
        ValueError: If an option is unknown, a number is below 1 or does not fit, or options that
            need anchors are combined with learned position embeddings.

    Example:
        >>> from visattn.models.encoder import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = DETR(("cat", "dog"), encoder, dim=16, num_queries=5, num_heads=2).eval()
        >>> model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8)).boxes.shape
        torch.Size([1, 5, 4])

    Source:
        Carion et al. 2020, arXiv:2005.12872 (DETR); anchors and their refinement: Liu et al. 2022,
        arXiv:2201.12329 (DAB-DETR); deformable attention and two stages: Zhu et al. 2020,
        arXiv:2010.04159; denoising: Li et al. 2022, arXiv:2203.01305. Deviations: one feature
        level; the heads are shared by all decoder layers; encoder layers are pre-norm.
    """

    pipeline_tag = "object-detection"

    def __init__(
        self,
        class_names: Sequence[str],
        encoder: ImageEncoder,
        *,
        dim: int = 256,
        num_queries: int = 100,
        num_heads: int = 8,
        num_encoder_layers: int = 0,
        num_decoder_layers: int = 6,
        mlp_ratio: float = 4.0,
        queries: QueryType = "anchors",
        cross_attention: CrossAttention = "deformable",
        num_points: int = 4,
        class_probability: ClassProbability = "sigmoid",
        two_stage: bool = False,
        num_denoising_groups: int = 0,
    ) -> None:
        super().__init__(class_names, encoder)
        check_choice("queries", queries, get_args(QueryType))
        check_choice("class_probability", class_probability, get_args(ClassProbability))
        needs_anchors = cross_attention == "deformable" or two_stage or num_denoising_groups > 0
        if queries == "learned" and needs_anchors:
            raise ValueError(
                "deformable cross-attention, two_stage and denoising need queries='anchors', got "
                "'learned'; plain DETR has cross_attention='dense'"
            )
        if min(num_queries, num_decoder_layers) < 1 or dim % 8:
            raise ValueError(
                "num_queries and num_decoder_layers must be at least 1, and dim a multiple of 8, "
                f"got {num_queries}, {num_decoder_layers} and {dim}"
            )
        self.dim, self.num_queries, self.num_heads = dim, num_queries, num_heads
        self.num_encoder_layers, self.num_decoder_layers = num_encoder_layers, num_decoder_layers
        self.mlp_ratio, self.num_points = mlp_ratio, num_points
        self.cross_attention: CrossAttention = cross_attention
        self.queries: QueryType = queries
        self.class_probability: ClassProbability = class_probability
        self.two_stage, self.num_denoising_groups = two_stage, num_denoising_groups
        self._build_transformer()
        self._build_queries()

    def _build_transformer(self) -> None:
        """Create the layers on the features and the queries, and the prediction heads."""
        self.input_proj = nn.Sequential(
            nn.Conv2d(self.encoder.channels, self.dim, 1), nn.GroupNorm(self.num_heads, self.dim)
        )
        self.encoder_layers = nn.ModuleList(
            self._encoder_layer() for _ in range(self.num_encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(self.dim) if self.num_encoder_layers else nn.Identity()
        self.decoder_layers = nn.ModuleList(
            self._decoder_layer() for _ in range(self.num_decoder_layers)
        )
        build = partial(PredictionHeads, len(self.class_names), self.dim, self.class_probability)
        self.heads = build()
        self.first_stage = build() if self.two_stage else None

    def _build_queries(self) -> None:
        """Create contents, anchors or positions of the queries, and denoising queries."""
        groups, count, dim = self.num_denoising_groups, self.num_queries, self.dim
        num_classes = len(self.class_names)
        self.denoising = DenoisingQueries(num_classes, dim, num_groups=groups) if groups else None
        self.query_content = nn.Parameter(torch.randn(count, dim) * 0.02)
        self.anchors = self.query_position = None
        if self.queries == "learned":
            self.query_position = nn.Parameter(torch.randn(count, dim))
            return
        self.anchors = None if self.two_stage else nn.Parameter(spread_anchors(count))
        self.anchor_proj = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]) -> BoxPrediction:
        """Return the predictions of the last layer; raises what the encoder raises."""
        logits, boxes = self.decode(self.encode(images)).layers
        return BoxPrediction(logits[-1], boxes[-1])

    def detect(
        self,
        images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"],
        *,
        max_detections: int = 100,
    ) -> PredictedObjects:
        """Return the detections with the highest scores; raises what the encoder raises."""
        return self.select(self(images), max_detections=max_detections)

    def select(self, prediction: BoxPrediction, *, max_detections: int = 100) -> PredictedObjects:
        """Return the detections with the highest scores among all queries and classes.

        With the sigmoid a query may yield several detections, of different classes; with the
        softmax one, of the most probable class.

        Args:
            prediction: Predictions of one layer.
            max_detections: Largest number of detections per image.
        """
        scores = self.class_scores(prediction.logits)
        if self.class_probability == "softmax":
            scores, best = scores.max(-1, keepdim=True)
        else:
            best = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
        count, num_classes = min(max_detections, scores[0].numel()), scores.shape[-1]
        top, index = scores.flatten(1).sort(dim=1, descending=True, stable=True)
        top, index = top[:, :count], index[:, :count]
        query = index // num_classes
        boxes = center_to_corners(prediction.boxes).clamp(0, 1)
        boxes = boxes.gather(1, query[..., None].expand(-1, -1, 4))
        return PredictedObjects(boxes, best.flatten(1).gather(1, index), top, query)

    def class_scores(self, logits: Float[Tensor, "*b k"]) -> Float[Tensor, "*b c"]:
        """Return the probability of each class, without that of "no object"."""
        if self.class_probability == "sigmoid":
            return logits.sigmoid()
        return logits.softmax(-1)[..., :-1]

    def encode(self, images: UInt8[Tensor, "b 3 y x"] | Float[Tensor, "b 3 y x"]) -> Memory:
        """Return the features that queries attend to; raises what the encoder raises."""
        features = self.input_proj(self.encoder(images))
        grid = (features.shape[2], features.shape[3])
        position = sine_embed(cell_centers(grid, like=features), self.dim)
        if self.num_encoder_layers:
            tokens = features.flatten(2).mT + position
            tokens = self.encoder_norm(run_layers(self.encoder_layers, tokens, TokenLayout(grid)))
            features = tokens.mT.unflatten(2, grid)
        return Memory(features, position)

    def decode(
        self,
        memory: Memory,
        targets: tuple[Int[Tensor, "b m"], Float[Tensor, "b m 4"]] | None = None,
    ) -> DetrOutput:
        """Return the predictions of all layers.

        Args:
            memory: What `encode` returned.
            targets: Labels (`NO_OBJECT`: padding) and boxes (center x, center y, width, height,
                relative to the image) for denoising training; None outside of training.
        """
        queries, proposals = self._initial_queries(memory)
        if targets is not None and self.denoising is not None and targets[0].shape[1]:
            queries = queries.append(self.denoising(*targets))
        layers, points = self._run_decoder(queries, memory)
        count = self.num_queries
        own = BoxPrediction(layers.logits[:, :, :count], layers.boxes[:, :, :count])
        noised = BoxPrediction(layers.logits[:, :, count:], layers.boxes[:, :, count:])
        extra = noised if noised.logits.shape[2] else None
        points = tuple(SamplingPoints(at[:, :count], w[:, :count]) for at, w in points)
        return DetrOutput(own, extra, proposals, points)

    def _run_decoder(
        self, queries: ObjectQueries, memory: Memory
    ) -> tuple[BoxPrediction, list[SamplingPoints]]:
        """Return the predictions of all layers, stacked, and the sampled points."""
        x, boxes = queries.content, queries.boxes
        predictions: list[BoxPrediction] = []
        points: list[SamplingPoints] = []
        for layer in self.decoder_layers:
            x, sampled = layer(x, self._position(boxes), boxes, memory, queries.mask)
            reference = inverse_sigmoid(boxes) if self.queries == "anchors" else None
            predictions.append(self.heads(x, reference))
            boxes = predictions[-1].boxes.detach() if self.queries == "anchors" else boxes
            points += [] if sampled is None else [sampled]
        logits, stacked = (torch.stack(part) for part in zip(*predictions, strict=True))
        return BoxPrediction(logits, stacked), points

    def _initial_queries(self, memory: Memory) -> tuple[ObjectQueries, BoxPrediction | None]:
        batch = len(memory.features)
        content = self.query_content.expand(batch, -1, -1)
        if self.queries == "learned":
            return ObjectQueries(content, content.new_full((batch, self.num_queries, 4), 0.5)), None
        if self.first_stage is None:
            anchors = cast("Tensor", self.anchors).sigmoid()
            return ObjectQueries(content, anchors.expand(batch, -1, -1)), None
        proposals = self.first_stage(
            memory.features.flatten(2).mT, cell_anchors(memory.grid, like=memory.features)
        )
        scores = self.class_scores(proposals.logits).amax(-1)
        if scores.shape[1] < self.num_queries:
            raise ValueError(
                f"two stages need at least as many cells as queries ({self.num_queries}), got "
                f"{memory.grid}; lower num_queries, or take a finer feature grid"
            )
        best = scores.topk(self.num_queries, 1).indices[..., None].expand(-1, -1, 4)
        return ObjectQueries(content, proposals.boxes.gather(1, best).detach()), proposals

    def _position(self, boxes: Float[Tensor, "b n 4"]) -> Float[Tensor, "*#b n c"]:
        if self.query_position is not None:
            return self.query_position
        return self.anchor_proj(sine_embed(boxes, 2 * self.dim))

    def _encoder_layer(self) -> EncoderLayer:
        hidden_dim = round(self.mlp_ratio * self.dim)
        attention = TokenAttention(self.dim, num_heads=self.num_heads)
        return EncoderLayer(self.dim, attention, FeedForward(self.dim, hidden_dim))

    def _decoder_layer(self) -> DetrDecoderLayer:
        return DetrDecoderLayer(
            self.dim,
            num_heads=self.num_heads,
            cross_attention=self.cross_attention,
            num_points=self.num_points,
            mlp_ratio=self.mlp_ratio,
        )


class PredictionHeads(nn.Module):
    """Class logits and boxes of queries.

    Args:
        num_classes: Number of classes.
        dim: Dimension of the queries.
        class_probability: With `softmax` there is a further class, "no object".

    Example:
        >>> heads = PredictionHeads(2, 8, "sigmoid")
        >>> heads(torch.zeros(1, 8), torch.zeros(1, 4)).boxes.detach()
        tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """

    def __init__(self, num_classes: int, dim: int, class_probability: ClassProbability) -> None:
        super().__init__()
        softmax = class_probability == "softmax"
        self.classes = nn.Linear(dim, num_classes + softmax)
        self.boxes = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4)
        )
        last = cast("nn.Linear", self.boxes[-1])
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if not softmax:
            nn.init.constant_(self.classes.bias, -math.log(1 / _PRIOR - 1))

    def forward(
        self, x: Float[Tensor, "*b c"], reference: Float[Tensor, "*#b 4"] | None = None
    ) -> BoxPrediction:
        """Return logits and boxes; boxes are relative to a reference before its sigmoid, if any."""
        offsets = self.boxes(x)
        boxes = (offsets if reference is None else offsets + reference).sigmoid()
        return BoxPrediction(self.classes(x), boxes)
