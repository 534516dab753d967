"""What there is to know about a model before one asks where it looked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from visattn.recording.model_outputs import OutputLayout, class_scores

Source = Literal["visattn", "timm", "torchvision", "transformers", "other"]
Pooling = Literal["class", "distilled", "mean", "attention", "none"]
FeatureLayout = Literal["b c y x", "b y x c", "b n c", "b c n"]


@dataclass(frozen=True)
class AttentionLayer:
    """One layer of attention among tokens.

    Args:
        site: Path of the module in the model.
        grid: Rows and columns of the tokens that ask.
        heads: How many there are, or None if nobody said.
        roles: Of the tokens that stand before the grid, in their order.
        keys: Rows and columns of the tokens that are looked at, if it is another grid.
        window: Height and width of the windows that attention stays in, or None.
        shift: By how many rows and columns the windows are moved.
        lone: Whether there is one query for all of the grid, as in pooling and class attention.
    """

    site: str
    grid: tuple[int, int]
    heads: int | None = None
    roles: tuple[str, ...] = ()
    keys: tuple[int, int] | None = None
    window: tuple[int, int] | None = None
    shift: tuple[int, int] = (0, 0)
    lone: bool = False


@dataclass(frozen=True)
class FeatureSite:
    """A place in the model whose activations lie on a grid, as gradient maps of a layer need it.

    Args:
        site: Path of the module whose output they are.
        layout: The order of their axes.
        grid: Rows and columns.
        before: Tokens that stand before the grid, for `b n c` and `b c n`.
        after: Tokens that stand after it.
        run: Which of the module's runs counts, from 1; None for the last.
    """

    site: str
    layout: FeatureLayout
    grid: tuple[int, int]
    before: int = 0
    after: int = 0
    run: int | None = None


@dataclass(frozen=True)
class ModelInfo:
    """What a model is made for and made of; printed, it is a table.

    Args:
        name: Of the architecture.
        source: Whose model it is.
        size: Height and width of the images it is made for.
        mean: Mean of each color channel of those images, in [0, 1].
        std: Spread of each color channel.
        pooling: What the scores are made of: the class token, it and a distillation token, the
            mean of the patches, an attention pool, or no tokens at all.
        layers: Attention among tokens, in the order of the model; () for a CNN.
        features: Where activations lie on a grid, from the image to the scores; the last one
            is the usual place of a gradient map.
        refusal: Why the attention of this model cannot be shown as maps; "" if it can.
        refused: Layers that cannot be shown although others can, and why.
        output: Where the class scores are in what the model returns.
        no_features: Why it cannot be said which features its scores are pooled from; "" if it can.
    """

    name: str
    source: Source
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pooling: Pooling
    layers: tuple[AttentionLayer, ...] = ()
    features: tuple[FeatureSite, ...] = ()
    refusal: str = ""
    refused: tuple[tuple[str, str], ...] = ()
    output: OutputLayout = field(default_factory=OutputLayout)
    no_features: str = ""

    def __str__(self) -> str:
        """Return the table."""
        return card_table(self)


@dataclass(frozen=True)
class ExplainedModel:
    """A model as the methods see it: normalized images in, what it makes of them out.

    Args:
        model: What is listened to.
        card: What is known about it.
        forward: From normalized images to what the model returns.
        classes: Names of the classes, or () if nobody said.
    """

    model: nn.Module
    card: ModelInfo
    forward: Callable[[Float[Tensor, "b c y x"]], Any]
    classes: tuple[str, ...] = ()

    def scores(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the scores of the classes, before softmax.

        Args:
            images: Normalized.

        Raises:
            ValueError: If the model returns no class scores.
        """
        if self.card.output.refusal:
            raise ValueError(
                f"{self.card.name} has no class to explain: {self.card.output.refusal}"
            )
        return class_scores(self.forward(images), len(images))


def card_table(card: ModelInfo) -> str:
    """Return what is known about a model as lines of text.

    Args:
        card: Of the model.

    Example:
        >>> layer = AttentionLayer("blocks.0.attn", (3, 5), 2, ("class",))
        >>> print(ModelInfo("tiny", "timm", (48, 80), (0.5,), (0.5,), "class", (layer,)))
        tiny (timm)
          input      48 x 80, mean 0.5, std 0.5
          pooling    class
          attention  1 layer
            blocks.0.attn  3 x 5, 2 heads, after class
    """
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (card.mean, card.std))
    lines = [
        f"{card.name} ({card.source})",
        f"  input      {_by(card.size)}, mean {mean}, std {std}",
        f"  pooling    {card.pooling}",
    ]
    if card.output.scores or card.output.refusal:
        lines.append(
            f"  scores     {card.output.refusal or f'the {card.output.scores} of its output'}"
        )
    if card.refusal:
        lines.append(f"  attention  not shown: {card.refusal}")
    else:
        lines.append(f"  attention  {_counted(len(card.layers), 'layer')}")
    lines += _columns([(layer.site, _layer_line(layer)) for layer in card.layers])
    lines += _columns([(site, f"not shown: {reason}") for site, reason in card.refused])
    if card.no_features:
        lines.append(f"  features   not known: {card.no_features}")
    elif card.features:
        lines.append(f"  features   {_counted(len(card.features), 'layer')}")
    lines += _columns([(one.site, f"{_by(one.grid)}, [{one.layout}]") for one in card.features])
    return "\n".join(lines)


def _layer_line(layer: AttentionLayer) -> str:
    parts = [_by(layer.grid)]
    if layer.heads is not None:
        parts.append(_counted(layer.heads, "head"))
    if layer.roles:
        kinds = dict.fromkeys(layer.roles)
        counts = {kind: layer.roles.count(kind) for kind in kinds}
        told = (kind if count == 1 else f"{count} {kind}" for kind, count in counts.items())
        parts.append(f"after {', '.join(told)}")
    if layer.keys is not None:
        parts.append(f"looks at {_by(layer.keys)}")
    if layer.window is not None:
        moved = f" moved by {_by(layer.shift)}" if any(layer.shift) else ""
        parts.append(f"windows {_by(layer.window)}{moved}")
    return ", ".join([*parts, *(["one query for all"] if layer.lone else [])])


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = max((len(left) for left, _ in rows), default=0)
    return [f"    {left:{width}}  {right}" for left, right in rows]


def _by(sides: tuple[int, int]) -> str:
    return f"{sides[0]} x {sides[1]}"


def _counted(count: int, of: str) -> str:
    return f"{count} {of}" if count == 1 else f"{count} {of}s"
