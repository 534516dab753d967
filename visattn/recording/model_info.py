"""Model metadata for recording and attribution: input, attention layers, feature layers, output."""

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from visattn.geometry.affine import Margin
from visattn.recording.outputs import OutputLayout

Library = Literal["visattn", "timm", "torchvision", "transformers", "other"]
Pooling = Literal["class", "distilled", "mean", "attention", "mixture", "none"]
FeatureLayout = Literal["b c y x", "b y x c", "b n c", "b c n"]
NO_ATTENTION = "it has no attention among tokens"


@runtime_checkable
class TextScorer(Protocol):
    """A classifier whose classes are texts."""

    def cosine_of(self, logits: Tensor) -> Tensor:
        """Return the cosine similarities of image and texts that belong to logits."""
        ...


@dataclass(frozen=True)
class AttentionLayer:
    """A layer of attention among tokens.

    Args:
        site: Qualified name of the module, as in `named_modules()`.
        grid: Rows and columns of the query tokens.
        num_heads: Number of heads; None if unknown.
        prefix_tokens: Kinds of the tokens before the grid, in order: `class`, `distillation`,
            `register`.
        key_grid: Rows and columns of the key tokens, if they have another grid.
        single_query: Whether one query attends to the whole grid, as in attention pooling and
            class attention.
        pools: Whether its module returns a vector for each image instead of a token for each query.
        num_queries: Number of queries without positions on the image, as in the decoder of a
            detector; None for tokens.
    """

    site: str
    grid: tuple[int, int]
    num_heads: int | None = None
    prefix_tokens: tuple[str, ...] = ()
    key_grid: tuple[int, int] | None = None
    single_query: bool = False
    pools: bool = False
    num_queries: int | None = None


@dataclass(frozen=True)
class ReadRows:
    """Tokens that the scores read after the last attention layer, each with its share.

    Args:
        prefix: Share of each token before the patches.
        patches: Share of all patches together.
        cells: Share of each patch in `patches`, row by row; () if they are equal.
        kinds: Kinds of the tokens before the patches.
        pool: Whether the last layer is the pool, with a single query.
        linear: Whether the shares are the weights of a linear pooling. Otherwise patches count
            equally: pooling is nonlinear (maximum, power mean), or its weights are unknown.

    Example:
        >>> print(ReadRows((0.5, 0.0), 0.5, kinds=("class", "register")))
        class 0.5, patches 0.5
    """

    prefix: tuple[float, ...] = ()
    patches: float = 0.0
    cells: tuple[tuple[float, ...], ...] = ()
    kinds: tuple[str, ...] = ()
    pool: bool = False
    linear: bool = True

    @property
    def pooling(self) -> Pooling:
        """The tokens that are read, as a kind of pooling."""
        if self.pool:
            return "attention"
        read = {kind for kind, share in zip(self.kinds, self.prefix, strict=True) if share}
        if not read:
            return "mixture" if self.cells else "mean"
        if self.patches or read - {"class", "distillation"} or "class" not in read:
            return "mixture"
        if read == {"class"}:
            return "class"
        alike = len({share for share in self.prefix if share}) == 1
        return "distilled" if alike else "mixture"

    def __str__(self) -> str:
        """Return the kinds of tokens with their shares."""
        if self.pool:
            return "query of the attention pool"
        cells = [share for row in self.cells for share in row]
        count = sum(share > 0 for share in cells)
        patches = "patches with individual weights" if cells else "patches"
        shares: dict[str, float] = {}
        for kind, share in zip(self.kinds, self.prefix, strict=True):
            shares[kind] = shares.get(kind, 0.0) + share
        shares[f"{count} of {len(cells)} patches" if count < len(cells) else patches] = self.patches
        read = {kind: share for kind, share in shares.items() if share}
        listed = ", ".join(f"{kind} {share:.2g}" for kind, share in read.items())
        text = next(iter(read)) if len(read) == 1 else listed
        return text if self.linear else f"{text} (patches counted equally: no linear pooling)"


@dataclass(frozen=True)
class FeatureLayer:
    """A layer with activations on a grid, as class activation maps need them.

    Args:
        site: Qualified name of the module, as in `named_modules()`.
        layout: Order of the axes of its output.
        grid: Rows and columns.
        num_prefix_tokens: Tokens before the grid, for `b n c` and `b c n`.
        num_suffix_tokens: Tokens after the grid.
        call: Which forward call of the module in one run of the model, from 1; None for the last.
        levels: Keys of the levels of a feature pyramid in the output of the module, that of `grid`
            first; () for a single tensor.
        margin: Pixels of the input that no cell covers, above and below, and left and right; set
            when the layer is resolved.
        order: Index of the token of each cell, row by row, if tokens are in another order; else ().
    """

    site: str
    layout: FeatureLayout
    grid: tuple[int, int]
    num_prefix_tokens: int = 0
    num_suffix_tokens: int = 0
    call: int | None = None
    levels: tuple[str | int, ...] = ()
    margin: Margin = (0, 0)
    order: tuple[int, ...] = ()

    def fits(self, features: Tensor) -> bool:
        """Whether features have this layout and grid."""
        (rows, columns), axes = self.grid, self.layout.split()
        tokens = self.num_prefix_tokens + rows * columns + self.num_suffix_tokens
        sizes = {"y": rows, "x": columns, "n": tokens}
        pairs = zip(axes, features.shape, strict=False)
        return features.ndim == len(axes) and all(sizes.get(e, size) == size for e, size in pairs)

    def to_grid(self, features: Tensor) -> Float[Tensor, "b d gy gx"]:
        """Return features of any layout as `[b d gy gx]`.

        Raises:
            ValueError: If they do not have this layout.

        Example:
            >>> layer = FeatureLayer("norm", "b n c", (3, 5), num_prefix_tokens=2)
            >>> layer.to_grid(torch.zeros(7, 2 + 15, 4)).shape
            torch.Size([7, 4, 3, 5])
        """
        (rows, columns), start = self.grid, self.num_prefix_tokens
        if not self.fits(features):
            raise ValueError(
                f"{self.site} must return [{self.layout}] with a grid of {rows} x {columns} after "
                f"{start} prefix tokens, got shape {list(features.shape)}"
            )
        if self.layout == "b c y x":
            return features
        if self.layout == "b y x c":
            return features.movedim(-1, 1)
        tokens = features.mT if self.layout == "b n c" else features
        cells = list(self.order) or slice(start, start + rows * columns)
        return tokens[:, :, cells].unflatten(-1, self.grid)


@dataclass(frozen=True)
class ModelInfo:
    """Metadata of a model.

    Args:
        name: Name of the architecture.
        library: Library that the model comes from.
        input_size: Height and width of the input images.
        mean: Mean of each color channel that images are normalized with, in [0, 1].
        std: Standard deviation of each color channel.
        pooling: What the head classifies: the `class` token, class and distillation token
            (`distilled`), the patches (`mean`), an `attention` pool, a `mixture` of these, or
            `none` without tokens.
        attention_layers: Attention among tokens that the scores read, in the order of the model;
            () for a CNN.
        feature_layers: Layers with activations on a grid, from the image to the scores; the last
            one is the default of class activation maps.
        attention_error: Why no attention of the model can be recorded as maps; "" if it can.
        query_layers: Layers in which the queries of a detector attend to the image.
        unsupported_layers: Attention layers that cannot be recorded, and why.
        output: Location of the class scores in the output of the model.
        features_error: Why the features before pooling could not be determined; "" if they were.
        gradient_error: Why no gradient of the scores reaches the image; "" if it does.
        mean_color: Mean color of the images, if the model normalizes them itself; else ().
        read_rows: Tokens that the scores read, as measured; None if `pooling` is by convention.
        pooling_assumed: Why they could not be measured; "" if they were.
        unread_layers: Attention layers that run, but on which no score depends.
        parallel_layers: Names of two attention layers that the scores read but that do not depend
            on each other; () if there are none.
        colors: Where mean and std come from; starts with `assumed` if the model states none.
        preprocessing_error: Why images cannot be prepared without a transform; "" if they can.
        size_source: Where the input size comes from; `assumed` if the model states none.
        gates: Names of the taps of spatial gates, in module order.
        channel_gates: Names of the taps of channel gates.
        resizes_images: Whether the model resizes and pads images, as torchvision's detectors do.
    """

    name: str
    library: Library
    input_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pooling: Pooling = "none"
    attention_layers: tuple[AttentionLayer, ...] = ()
    feature_layers: tuple[FeatureLayer, ...] = ()
    attention_error: str = ""
    query_layers: tuple[AttentionLayer, ...] = ()
    unsupported_layers: tuple[tuple[str, str], ...] = ()
    output: OutputLayout = field(default_factory=OutputLayout)
    features_error: str = ""
    gradient_error: str = ""
    mean_color: tuple[float, ...] = ()
    read_rows: ReadRows | None = None
    pooling_assumed: str = ""
    unread_layers: tuple[AttentionLayer, ...] = ()
    parallel_layers: tuple[str, ...] = ()
    colors: str = ""
    preprocessing_error: str = ""
    size_source: str = ""
    gates: tuple[str, ...] = ()
    channel_gates: tuple[str, ...] = ()
    resizes_images: bool = False
