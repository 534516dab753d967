"""DETR: a set of queries attends to the image, and each finds at most one object."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple, Self, cast, get_args

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.transformer.deformable import DeformableAttention, SamplingPoints
from visattn.blocks.transformer.layer import EncoderLayer, FeedForward, run_layers
from visattn.blocks.transformer.multi_head import MultiHeadAttention
from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.functional.boxes import center_to_corners, inverse_sigmoid
from visattn.functional.positions import inverse_frequencies
from visattn.models.base import DenseModel, ImageEncoder
from visattn.results.kinds import NO_OBJECT

_ANCHOR_SIZE = 0.3  # of the image side


class ObjectQueries(NamedTuple):
    """Queries at the start of the decoder."""

    content: Float[Tensor, "b n c"]
    boxes: Float[Tensor, "b n 4"]
    """Anchors: center x, center y, width, height, relative to the image."""
    mask: Bool[Tensor, "b n n"] | None = None
    """True = may attend; None if all may."""

    def append(self, other: Self) -> Self:
        """Return these queries and others, which they do not see; the others see these."""
        batch, count = self.content.shape[:2]
        extra = other.content.shape[1]
        # Denoising queries see the answers, and nothing of them may reach the object queries:
        #
        #                  own    other    (keys)
        #     own queries  yes    no
        #     others       yes    as their mask says
        mask = self.content.new_ones(batch, count + extra, count + extra, dtype=torch.bool)
        mask[:, :count, count:] = False
        if other.mask is not None:
            mask[:, count:, count:] = other.mask
        return self._replace(
            content=torch.cat((self.content, other.content), 1),
            boxes=torch.cat((self.boxes, other.boxes), 1),
            mask=mask,
        )


class DenoisingQueries(nn.Module):
    """Denoising training: noised copies of the true boxes, which the decoder shall restore.

    Each group holds one copy of every object. A copy sees the copies of its group and the object
    queries, and neither other groups nor padding. The object queries see no copy, so that training
    and evaluation agree.

    Args:
        num_classes: Number of classes.
        dim: Dimension of the queries.
        num_groups: Number of groups.
        box_noise: Largest shift of the center, as a fraction of half the side, and largest relative
            change of a side.
        label_noise: Probability that the label of a copy is replaced by a random one.

    Example:
        >>> denoising = DenoisingQueries(3, 8, num_groups=2)
        >>> queries = denoising(torch.tensor([[1, -1]]), torch.full((1, 2, 4), 0.5))
        >>> queries.content.shape, queries.mask[0].int()
        (torch.Size([1, 4, 8]), tensor([[1, 0, 0, 0],
                [1, 0, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 0]], dtype=torch.int32))

    Source:
        Li et al. 2022, arXiv:2203.01305 (DN-DETR), sections 3.3 to 3.5.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        num_groups: int = 3,
        box_noise: float = 0.4,
        label_noise: float = 0.2,
    ) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.box_noise = box_noise
        self.label_noise = label_noise
        self.labels = nn.Embedding(num_classes, dim)

    def forward(self, labels: Int[Tensor, "b m"], boxes: Float[Tensor, "b m 4"]) -> ObjectQueries:
        """Return the queries of all groups, one group after the other.

        Args:
            labels: True classes; `NO_OBJECT` for padding.
            boxes: True boxes: center x, center y, width, height, relative to the image.
        """
        group = torch.arange(self.num_groups, device=labels.device)
        group = group.repeat_interleave(labels.shape[1])
        labels = labels.repeat(1, self.num_groups)
        boxes = boxes.repeat(1, self.num_groups, 1)
        real = labels != NO_OBJECT
        mask = (group[:, None] == group) & real[:, None]
        return ObjectQueries(self._noised_labels(labels), self._noised_boxes(boxes), mask)

    def _noised_labels(self, labels: Int[Tensor, "b q"]) -> Float[Tensor, "b q c"]:
        flipped = torch.rand(labels.shape, device=labels.device) < self.label_noise
        random = torch.randint_like(labels, self.labels.num_embeddings)
        # Padding is -1: it takes some label, and no query sees it.
        return self.labels(labels.where(~flipped, random).clamp(min=0))

    def _noised_boxes(self, boxes: Float[Tensor, "b q 4"]) -> Float[Tensor, "b q 4"]:
        center, size = boxes.split(2, -1)
        shift, scale = (self.box_noise * (2 * torch.rand_like(boxes) - 1)).split(2, -1)
        return torch.cat((center + shift * size / 2, size * (1 + scale)), -1).clamp(0, 1)


def spread_anchors(count: int) -> Float[Tensor, "n 4"]:
    """Return anchors of equal size whose centers cover the image evenly, before the sigmoid.

    Example:
        >>> spread_anchors(2).sigmoid()
        tensor([[0.7549, 0.5698, 0.3000, 0.3000],
                [0.5098, 0.1397, 0.3000, 0.3000]])

    Source:
        The R2 sequence: Roberts 2018, "The unreasonable effectiveness of quasirandom sequences".
    """
    steps = torch.arange(1, count + 1, dtype=torch.float64)[:, None]
    # 1 / p and 1 / p² of the plastic number p = 1.3247, with p³ = p + 1: their multiples, modulo 1,
    # stay far apart for any count.
    centers = (steps * torch.tensor([0.7548776662466927, 0.5698402909980532])) % 1
    anchors = torch.cat((centers, torch.full((count, 2), _ANCHOR_SIZE)), -1)
    return inverse_sigmoid(anchors.float())


def cell_anchors(grid: tuple[int, int], *, like: Tensor) -> Float[Tensor, "m 4"]:
    """Return an anchor at the center of each cell, before the sigmoid.

    Example:
        >>> cell_anchors((1, 2), like=torch.zeros(1)).sigmoid()
        tensor([[0.2500, 0.5000, 0.3000, 0.3000],
                [0.7500, 0.5000, 0.3000, 0.3000]])
    """
    centers = cell_centers(grid, like=like)
    return inverse_sigmoid(torch.cat((centers, torch.full_like(centers, _ANCHOR_SIZE)), -1))


CrossAttention = Literal["dense", "deformable"]
_TEMPERATURE = 20.0  # as in DAB-DETR: wavelengths from the whole image to a twentieth of a turn


class Memory(NamedTuple):
    """Image features that queries attend to."""

    features: Float[Tensor, "b c y x"]
    position: Float[Tensor, "m c"]
    """Position embedding of each cell, row by row."""

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the feature map."""
        return self.features.shape[2], self.features.shape[3]


class DetrDecoderLayer(nn.Module):
    """Post-norm decoder layer: self-attention among queries, cross-attention to the image, MLP.

    For the options see `DETR`.

    Example:
        >>> layer = DetrDecoderLayer(8, num_heads=2)
        >>> memory = Memory(torch.zeros(1, 8, 2, 3), torch.zeros(6, 8))
        >>> queries, boxes = torch.zeros(1, 5, 8), torch.full((1, 5, 4), 0.5)
        >>> output, points = layer(queries, queries, boxes, memory)
        >>> output.shape, points.weights.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 5, 2, 4]))

    Source:
        Carion et al. 2020, arXiv:2005.12872, appendix A.3; Zhu et al. 2020, arXiv:2010.04159,
        section 4.1, for deformable cross-attention.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 8,
        cross_attention: CrossAttention = "deformable",
        num_points: int = 4,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        check_choice("cross_attention", cross_attention, get_args(CrossAttention))
        self.self_attn = MultiHeadAttention(dim, num_heads=num_heads)
        self.cross_attn: DeformableAttention | MultiHeadAttention
        if cross_attention == "deformable":
            self.cross_attn = DeformableAttention(dim, num_heads=num_heads, num_points=num_points)
        else:
            self.cross_attn = MultiHeadAttention(dim, num_heads=num_heads)
            self.cross_attn.tap.kind = "queries"
        self.mlp = FeedForward(dim, round(mlp_ratio * dim))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "b n c"],
        position: Float[Tensor, "*#b n c"],
        boxes: Float[Tensor, "b n 4"],
        memory: Memory,
        mask: Bool[Tensor, "b n n"] | None = None,
    ) -> tuple[Float[Tensor, "b n c"], SamplingPoints | None]:
        """Return the updated queries, and the points that deformable attention sampled.

        Args:
            x: Content of the queries.
            position: Position embedding of the queries, added to queries and keys.
            boxes: Box of each query: center x, center y, width, height, relative to the image.
            memory: Image features.
            mask: True = may attend, among queries.
        """
        query = x + position
        x = self.norm1(x + self.self_attn(query, query, x, mask=mask)[0])
        attended, points = self._attend_image(x + position, boxes, memory)
        x = self.norm2(x + attended)
        return self.norm3(x + self.mlp(x)), points

    def _attend_image(
        self, query: Float[Tensor, "b n c"], boxes: Float[Tensor, "b n 4"], memory: Memory
    ) -> tuple[Float[Tensor, "b n c"], SamplingPoints | None]:
        if isinstance(self.cross_attn, DeformableAttention):
            return self.cross_attn(query, boxes, memory.features)
        values = memory.features.flatten(2).mT
        self.cross_attn.tap.grid = memory.grid
        return self.cross_attn(query, values + memory.position, values)[0], None


def sine_embed(x: Float[Tensor, "*b s"], dim: int) -> Float[Tensor, "*b {dim}"]:
    """Return sines and cosines of each coordinate of the image, at wavelengths from 1 to 20.

    The dimension of the result is a multiple of twice the number of coordinates.

    Example:
        >>> sine_embed(torch.tensor([[0.25]]), 2)
        tensor([[ 1.0000e+00, -4.3711e-08]])

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Liu et al. 2022, arXiv:2201.12329
        (DAB-DETR), equation 4, for boxes, and the temperature of 20.
    """
    count, rest = divmod(dim, 2 * x.shape[-1])
    if rest:
        raise ValueError(f"dim must be a multiple of {2 * x.shape[-1]}, got {dim}")
    frequencies = inverse_frequencies(count, _TEMPERATURE, x.device).to(x)
    angles = 2 * math.pi * x[..., None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), -1).flatten(-2)


def cell_centers(grid: tuple[int, int], *, like: Tensor) -> Float[Tensor, "m 2"]:
    """Return x and y of the centers of all cells relative to the grid, row by row.

    Example:
        >>> cell_centers((1, 2), like=torch.zeros(1)).tolist()
        [[0.25, 0.5], [0.75, 0.5]]
    """
    y, x = ((torch.arange(n, device=like.device, dtype=like.dtype) + 0.5) / n for n in grid)
    return torch.stack((x.expand(len(y), -1), y[:, None].expand(-1, len(x))), -1).flatten(0, 1)


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
        >>> from visattn.models.base import SmallEncoder
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
        self.dim = dim
        self.num_queries = num_queries
        self.num_heads = num_heads
        self.num_encoder_layers = num_encoder_layers
        self.num_decoder_layers = num_decoder_layers
        self.mlp_ratio = mlp_ratio
        self.num_points = num_points
        self.cross_attention: CrossAttention = cross_attention
        self.queries: QueryType = queries
        self.class_probability: ClassProbability = class_probability
        self.two_stage = two_stage
        self.num_denoising_groups = num_denoising_groups
        self._build_transformer()
        self._build_queries()

    def _build_transformer(self) -> None:
        """Create the layers on the features and the queries, and the prediction heads."""
        dim = self.dim
        hidden_dim = round(self.mlp_ratio * dim)
        self.input_proj = nn.Sequential(
            nn.Conv2d(self.encoder.channels, dim, 1), nn.GroupNorm(self.num_heads, dim)
        )
        self.encoder_layers = nn.ModuleList(
            EncoderLayer(
                dim, TokenAttention(dim, num_heads=self.num_heads), FeedForward(dim, hidden_dim)
            )
            for _ in range(self.num_encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(dim) if self.num_encoder_layers else nn.Identity()
        self.decoder_layers = nn.ModuleList(
            DetrDecoderLayer(
                dim,
                num_heads=self.num_heads,
                cross_attention=self.cross_attention,
                num_points=self.num_points,
                mlp_ratio=self.mlp_ratio,
            )
            for _ in range(self.num_decoder_layers)
        )
        build = partial(PredictionHeads, len(self.class_names), dim, self.class_probability)
        self.heads = build()
        self.first_stage = build() if self.two_stage else None

    def _build_queries(self) -> None:
        """Create contents, anchors or positions of the queries, and denoising queries."""
        groups = self.num_denoising_groups
        count = self.num_queries
        dim = self.dim
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
        num_classes = scores.shape[-1]
        count = min(max_detections, scores[0].numel())
        # A stable sort, since topk returns equal scores in any order.
        ordered = scores.flatten(1).sort(dim=1, descending=True, stable=True)
        top, index = (tensor[:, :count] for tensor in ordered)
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
        x = queries.content
        boxes = queries.boxes
        predictions: list[BoxPrediction] = []
        points: list[SamplingPoints] = []
        for layer in self.decoder_layers:
            x, sampled = layer(x, self._position(boxes), boxes, memory, queries.mask)
            reference = inverse_sigmoid(boxes) if self.queries == "anchors" else None
            predictions.append(self.heads(x, reference))
            # Each layer corrects the boxes of the layer before, which are constants for it, as in
            # Deformable DETR.
            boxes = predictions[-1].boxes.detach() if self.queries == "anchors" else boxes
            points += [] if sampled is None else [sampled]
        stacked = (torch.stack(tensors) for tensors in zip(*predictions, strict=True))
        return BoxPrediction(*stacked), points

    def _initial_queries(self, memory: Memory) -> tuple[ObjectQueries, BoxPrediction | None]:
        batch = len(memory.features)
        content = self.query_content.expand(batch, -1, -1)
        if self.queries == "learned":
            # These boxes are not read: attention is dense, and positions are learned.
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


class PredictionHeads(nn.Module):
    """Class logits and boxes of queries; with `softmax` there is a further class, "no object".

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
