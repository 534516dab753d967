"""DETR: queries attend to the image, and each detects at most one object."""

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.blocks.multi_head import MultiHeadAttention
from visattn.functional.boxes import center_to_corners
from visattn.functional.positions import inverse_frequencies
from visattn.models.base import DenseModel, ImageEncoder, Images
from visattn.models.vit import EncoderLayer, feed_forward

_TEMPERATURE = 20.0  # temperature of DAB-DETR


class DetrDecoderLayer(nn.Module):
    """Post-norm decoder layer: self-attention among queries, cross-attention to the image, MLP.

    Example:
        >>> layer = DetrDecoderLayer(8, num_heads=2)
        >>> queries, cells = torch.zeros(1, 5, 8), torch.zeros(1, 6, 8)
        >>> layer(queries, queries, cells, torch.zeros(6, 8), (2, 3)).shape
        torch.Size([1, 5, 8])

    Source:
        Carion et al. 2020, arXiv:2005.12872, appendix A.3.
    """

    def __init__(self, dim: int, *, num_heads: int = 8, mlp_ratio: float = 8.0) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(dim, num_heads=num_heads)
        self.cross_attn = MultiHeadAttention(dim, num_heads=num_heads)
        self.cross_attn.tap.kind = "queries"
        self.mlp = feed_forward(dim, round(mlp_ratio * dim))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "b n c"],
        position: Float[Tensor, "*#b n c"],
        cells: Float[Tensor, "b m c"],
        cell_position: Float[Tensor, "m c"],
        grid: tuple[int, int],
    ) -> Float[Tensor, "b n c"]:
        """Return the updated queries.

        Args:
            x: Content of the queries.
            position: Position embedding of the queries, added to queries and keys.
            cells: Image features, row by row.
            cell_position: Position embedding of the cells.
            grid: Height and width of the feature map.
        """
        query = x + position
        x = self.norm1(x + self.self_attn(query, query, x)[0])
        self.cross_attn.tap.grid = grid
        x = self.norm2(x + self.cross_attn(x + position, cells + cell_position, cells)[0])
        return self.norm3(x + self.mlp(x))


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
    frequencies = inverse_frequencies(dim // (2 * x.shape[-1]), _TEMPERATURE, x.device).to(x)
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


class BoxPrediction(NamedTuple):
    """Class logits and boxes of queries."""

    logits: Float[Tensor, "*b n k"]
    """The last class is "no object"."""
    boxes: Float[Tensor, "*b n 4"]
    """Center x, center y, width, height, relative to the image."""


class PredictedObjects(NamedTuple):
    """The detections of each image with the highest scores, in descending order."""

    boxes: Float[Tensor, "b d 4"]
    """Left, top, right, bottom, relative to the image."""
    labels: Int[Tensor, "b d"]
    scores: Float[Tensor, "b d"]
    queries: Int[Tensor, "b d"]
    """The query of each detection."""


class DETR(DenseModel):
    """Detection transformer.

    Learned queries attend to each other and to the image in each decoder layer, and each predicts
    one box or "no object". A Hungarian matching assigns the true boxes to queries in training, so
    that no duplicates need to be suppressed.

    `model(images)` returns the predictions of the last layer, `detect` the boxes with the highest
    scores. uint8 images are normalized inside; float images must be normalized already.

    Args:
        class_names: Names of the classes, in the order of the logits.
        encoder: Maps images to a grid of features.
        dim: Dimension of the transformer.
        num_queries: Number of queries, which is the maximum number of objects.
        num_heads: Number of attention heads.
        num_encoder_layers: Transformer layers on the feature grid.
        num_decoder_layers: Decoder layers.
        mlp_ratio: Hidden size of the MLPs, as a multiple of `dim`.

    Example:
        >>> from visattn.models.base import SmallEncoder
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = DETR(("cat", "dog"), encoder, dim=16, num_queries=5, num_heads=2).eval()
        >>> model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8)).boxes.shape
        torch.Size([1, 5, 4])

    Source:
        Carion et al. 2020, arXiv:2005.12872. Deviations: the contents of the queries are learned;
        encoder layers are pre-norm.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        encoder: ImageEncoder,
        *,
        dim: int = 256,
        num_queries: int = 100,
        num_heads: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        mlp_ratio: float = 8.0,
    ) -> None:
        super().__init__(class_names, encoder)
        self.dim = dim
        self.num_queries = num_queries
        self.num_decoder_layers = num_decoder_layers
        self.input_proj = nn.Sequential(
            nn.Conv2d(encoder.channels, dim, 1), nn.GroupNorm(num_heads, dim)
        )
        self.encoder_layers = nn.ModuleList(
            EncoderLayer(dim, num_heads, round(mlp_ratio * dim)) for _ in range(num_encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(dim) if num_encoder_layers else nn.Identity()
        self.decoder_layers = nn.ModuleList(
            DetrDecoderLayer(dim, num_heads=num_heads, mlp_ratio=mlp_ratio)
            for _ in range(num_decoder_layers)
        )
        self.heads = PredictionHeads(len(self.class_names), dim)
        self.query_content = nn.Parameter(torch.randn(num_queries, dim) * 0.02)
        self.query_position = nn.Parameter(torch.randn(num_queries, dim))

    def forward(self, images: Images) -> BoxPrediction:
        """Return the predictions of the last layer."""
        logits, boxes = self.decode(self.encode(images))
        return BoxPrediction(logits[-1], boxes[-1])

    def detect(self, images: Images, *, max_detections: int = 100) -> PredictedObjects:
        """Return the detections with the highest scores."""
        return self.select(self(images), max_detections=max_detections)

    def select(self, prediction: BoxPrediction, *, max_detections: int = 100) -> PredictedObjects:
        """Return the detections with the highest scores; each query has one, of its best class.

        Args:
            prediction: Predictions of one layer.
            max_detections: Maximum number of detections per image.
        """
        scores, labels = prediction.logits.softmax(-1)[..., :-1].max(-1)
        # A stable sort, since topk orders equal scores arbitrarily.
        ordered = scores.sort(dim=1, descending=True, stable=True)
        top, query = (tensor[:, :max_detections] for tensor in ordered)
        boxes = center_to_corners(prediction.boxes).clamp(0, 1)
        boxes = boxes.gather(1, query[..., None].expand(-1, -1, 4))
        return PredictedObjects(boxes, labels.gather(1, query), top, query)

    def encode(self, images: Images) -> Float[Tensor, "b c gy gx"]:
        """Return the features that queries attend to."""
        features = self.input_proj(self.encoder(images))
        if not self.encoder_layers:
            return features
        grid = (features.shape[2], features.shape[3])
        tokens = features.flatten(2).mT + self._cell_position(features)
        for layer in self.encoder_layers:
            tokens = layer(tokens, grid)
        return self.encoder_norm(tokens).mT.unflatten(2, grid)

    def decode(self, features: Float[Tensor, "b c gy gx"]) -> BoxPrediction:
        """Return the predictions of all layers; their first axis is the layer."""
        grid = (features.shape[2], features.shape[3])
        cells, position = features.flatten(2).mT, self._cell_position(features)
        x = self.query_content.expand(len(features), -1, -1)
        predictions: list[BoxPrediction] = []
        for layer in self.decoder_layers:
            x = layer(x, self.query_position, cells, position, grid)
            predictions.append(self.heads(x))
        return BoxPrediction(*map(torch.stack, zip(*predictions, strict=True)))

    def _cell_position(self, features: Float[Tensor, "b c gy gx"]) -> Float[Tensor, "m c"]:
        return sine_embed(
            cell_centers((features.shape[2], features.shape[3]), like=features), self.dim
        )


class PredictionHeads(nn.Module):
    """Class logits, the last of which is "no object", and boxes of queries.

    Example:
        >>> PredictionHeads(2, 8)(torch.zeros(1, 8)).boxes.detach()
        tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.classes = nn.Linear(dim, num_classes + 1)
        self.boxes = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4)
        )
        last = cast("nn.Linear", self.boxes[-1])
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Float[Tensor, "*b c"]) -> BoxPrediction:
        """Return logits and boxes."""
        return BoxPrediction(self.classes(x), self.boxes(x).sigmoid())
