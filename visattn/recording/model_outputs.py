"""What a model returns: where its class scores are, and what it holds besides."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor

_SCORES = ("logits", "out", "scores", "class_logits", "class_scores", "pred_logits", "predictions")
_FEATURES = frozenset({
    "loss", "last_hidden_state", "hidden_states", "pooler_output", "attentions", "features",
    "feature_maps", "embedding", "embeddings", "image_embeds", "text_embeds", "vision_embeds",
    "boxes", "pred_boxes",
})  # fmt: skip
_LISTED = 4  # tensors of an output that a message names


@dataclass(frozen=True)
class OutputLayout:
    """Where the class scores of a model are in what it returns.

    Args:
        scores: Name or position of the scores, "" if they are the output itself.
        classes: How many there are; None if the output holds no class scores.
        refusal: Why there are no class scores; "" if there are.
    """

    scores: str = ""
    classes: int | None = None
    refusal: str = ""


def output_layout(output: Any, batch: int) -> OutputLayout:
    """Return where the class scores of a model are in what it returned.

    Class scores are a tensor `[b, k]`: the output itself, or a part of it called `logits`, `out`
    or the like, or the first such tensor that is not known to be something else.

    Args:
        output: As the model returned it.
        batch: Images that it was given.

    Example:
        >>> import torch
        >>> output_layout({"features": torch.zeros(2, 7), "logits": torch.zeros(2, 5)}, 2)
        OutputLayout(scores='logits', classes=5, refusal='')
        >>> print(output_layout({"out": torch.zeros(2, 21, 8, 8)}, 2).refusal)
        it returns no class scores [b, k] but out [2, 21, 8, 8]; pass a function of its output, as \
in target=lambda output: output['out'][:, 3].mean((1, 2))
    """
    parts = _parts(output)
    named = {name: part for name, _, part in parts}
    usual = next((name for name in _SCORES if name in named), None)
    if usual is not None:
        candidates = [usual]
    else:
        candidates = [name for name, _, _ in parts if name not in _FEATURES]
    for name in candidates:
        if (scores := _class_scores(named[name], batch)) is not None:
            return OutputLayout(name, scores.shape[1])
    return OutputLayout(refusal=_refusal(output, parts, usual))


def class_scores(output: Any, batch: int | None = None) -> Float[Tensor, "b k"]:
    """Return the class scores that a model returned, wherever they are in its output.

    Args:
        output: As the model returned it.
        batch: Images that it was given; None if that is not known.

    Raises:
        ValueError: If there are none; the message shows a function that makes a target of it.

    Example:
        >>> import torch
        >>> class_scores((torch.zeros(2, 5), torch.zeros(2, 3))).shape
        torch.Size([2, 5])
    """
    if isinstance(output, Tensor) and output.ndim == 2:
        return output
    count = batch if batch is not None else _batch(output)
    layout = output_layout(output, count)
    if layout.refusal:
        raise ValueError(f"there is no class to explain: {layout.refusal}")
    [part] = [part for name, _, part in _parts(output) if name == layout.scores]
    return cast("Tensor", _class_scores(part, count))


def described_output(output: Any) -> str:
    """Return what a model returned in a few words.

    Example:
        >>> import torch
        >>> described_output([{"boxes": torch.zeros(3, 4)}])
        'a list: [0] a dict (boxes)'
    """
    if isinstance(output, Tensor):
        return f"a tensor {list(output.shape)}"
    return f"a {type(output).__name__}: {_listed(_all_parts(output)) or 'empty'}"


def _refusal(output: Any, parts: list[tuple[str, str, Tensor]], usual: str | None) -> str:
    shown = _listed([(name, part) for name, _, part in parts]) if parts else None
    what = shown or described_output(output)
    return (
        f"it returns no class scores [b, k] but {what}; pass a function of its output, as in "
        f"target=lambda output: {_example(output, parts, usual)}"
    )


def _example(output: Any, parts: list[tuple[str, str, Tensor]], usual: str | None) -> str:
    """Return the body of a function that makes one number for each image of an output."""
    if not parts:
        first = output[0] if isinstance(output, Sequence) and output else None
        if isinstance(first, Mapping):  # one mapping for each image, as detectors return
            key = next((key for key in ("scores", *first) if key in first), "scores")
            return f"torch.stack([one[{key!r}].sum() for one in output])"
        return "one number for each image"
    fitting = [part for part in parts if part[0] == usual] or [
        part for part in parts if part[2].ndim >= 2
    ]
    _, path, part = (fitting or parts)[0 if usual else -1]
    if part.ndim == 3:
        return f"{path}[:, 0, 3]"
    if part.ndim < 3:
        return f"{path}[:, 3]" if part.ndim == 2 else path
    return f"{path}[:, 3].mean({tuple(range(1, part.ndim - 1))})"


def _class_scores(part: Tensor, batch: int) -> Float[Tensor, "b k"] | None:
    """Return a tensor as class scores of so many images; None if it cannot be that."""
    if not part.is_floating_point() or part.ndim == 0 or len(part) != batch:
        return None
    if part.ndim == 1:  # the one score of a model that says yes or no
        return part[:, None]
    whole = part.flatten(2).squeeze(2) if part.ndim > 2 and part[0, 0].numel() == 1 else part
    return whole if whole.ndim == 2 else None


def _parts(output: Any) -> list[tuple[str, str, Tensor]]:
    """Return the tensors of an output, each with its name and the expression that returns it."""
    if isinstance(output, Tensor):
        return [("", "output", output)]
    dotted = dataclasses.is_dataclass(output) or hasattr(output, "_fields")
    listed = not dotted and isinstance(output, (list, tuple))
    found: list[tuple[str, str, Tensor]] = []
    for name, part in _all_parts(output):
        if isinstance(part, Tensor):
            key = f".{name}" if dotted else name if listed else f"[{name!r}]"
            found.append((name, f"output{key}", part))
    return found


def _all_parts(output: Any) -> list[tuple[str, Any]]:
    if isinstance(output, Mapping):
        return [(str(name), part) for name, part in cast("Mapping[Any, Any]", output).items()]
    if dataclasses.is_dataclass(output):
        return [(one.name, getattr(output, one.name)) for one in dataclasses.fields(output)]
    if hasattr(output, "_fields"):
        return [(name, getattr(output, name)) for name in output._fields]
    if isinstance(output, (list, tuple)):
        return [(f"[{at}]", part) for at, part in enumerate(cast("Sequence[Any]", output))]
    return []


def _listed(parts: Sequence[tuple[str, Any]]) -> str:
    told = [f"{name} {_short(part)}".strip() for name, part in parts[:_LISTED]]
    return ", ".join(told) + (", ..." if len(parts) > _LISTED else "")


def _short(part: Any) -> str:
    if isinstance(part, Tensor):
        return str(list(part.shape))
    if isinstance(part, Mapping):
        return f"a dict ({', '.join(map(str, cast('Mapping[Any, Any]', part)))})"
    return f"a {type(part).__name__}"


def _batch(output: Any) -> int:
    """Return how many images an output is of: as many as its first tensor has rows."""
    return next((len(part) for _, _, part in _parts(output) if part.ndim), 0)
