"""Outputs of a model: class scores or dense scores, where they are, or why there are none."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.recording.score_evidence import (
    ends_in_sigmoid,
    features_reason,
    is_sorted,
    last_computed,
)

_SCORE_KEYS = (
    "logits", "out", "scores", "class_logits", "class_scores", "pred_logits", "predictions",
)  # fmt: skip
_FEATURE_KEYS = frozenset({
    "loss", "last_hidden_state", "hidden_states", "pooler_output", "attentions", "features",
    "feature_maps", "embedding", "embeddings", "image_embeds", "text_embeds", "vision_embeds",
    "boxes", "pred_boxes",
})  # fmt: skip
_MAX_LISTED = 4  # parts of an output that a message lists


@dataclass(frozen=True)
class OutputLayout:
    """Location of the class scores in the output of a model.

    Args:
        key: Name or index of the scores; "" if they are the output itself.
        num_classes: Number of classes; None if the output has no class scores.
        error: Why there are no class scores, or which is not known; "" if it is.
        features: Why the scores are features of a network without classifier, by how they are
            computed (see `features_reason`); "" if they are not.
        assumed: Whether that they are scores is assumed: features may be computed like them.
        unnamed: Whether they are not named as scores, but the only or the last of such tensors.
        example: Expression of the score of one class, in terms of `output`.
        is_probability: Whether a sigmoid computes the scores.
        is_binary: Whether one number stands for two classes: their scores are `-x` and `x` for a
            logit `x`, or `1 - x` and `x` for a probability.
    """

    key: str = ""
    num_classes: int | None = None
    error: str = ""
    features: str = ""
    assumed: bool = False
    unnamed: bool = False
    example: str = ""
    is_probability: bool = False
    is_binary: bool = False

    def two_classes(self) -> "OutputLayout":
        """Return the layout of a single number that stands for two classes."""
        return replace(self, num_classes=2, is_binary=True)


def detect_output_layout(
    output: Any, batch_size: int, num_classes: int | None = None
) -> OutputLayout:
    """Return where the class scores are in the output of a model.

    Class scores are a tensor `[b, k]`: the output itself, a part of it named `logits`, `out` or
    similar, or the only such tensor whose name is not known to mean something else. Of several,
    they are the one with `num_classes` columns, or the one that the others are features of (see
    `last_computed`); which one is not guessed.

    Args:
        output: Output of the model; with gradients down to the image, how it was computed is known.

    Example:
        >>> import torch
        >>> output = {"features": torch.zeros(2, 7), "logits": torch.zeros(2, 5)}
        >>> detect_output_layout(output, 2).key
        'logits'
        >>> print(detect_output_layout({"out": torch.zeros(2, 21, 8, 8)}, 2).error)
        its output has no class scores [b, k], got out [2, 21, 8, 8]; name a class at a pixel of \
the photo, target=visattn.PixelTarget(3, x=120, y=80), or its whole region, target=\
visattn.RegionTarget(3); or pass a function of the output, such as target=lambda output: \
output['out'][:, 3].mean((1, 2))
        >>> print(detect_output_layout((torch.zeros(2, 7), torch.zeros(2, 5)), 2).error)
        its output has several tensors that may be class scores: [0] [2, 7], [1] [2, 5]; pass the \
names of its classes, if only one has as many columns, or one of target=lambda output: \
output[0][:, 3], target=lambda output: output[1][:, 3]
    """
    parts = _tensor_parts(output)
    by_name = {name: tensor for name, _, tensor in parts}
    score_key = next((name for name in _SCORE_KEYS if name in by_name), None)
    if score_key is not None:
        names = [score_key]
    else:
        names = [name for name, _, _ in parts if name not in _FEATURE_KEYS]
    scores = {name: _as_class_scores(by_name[name], batch_size) for name in names}
    candidates = {name: tensor for name, tensor in scores.items() if tensor is not None}
    if not candidates:
        return OutputLayout(error=_no_scores_error(output, parts, score_key))
    sizes = {name: tensor.shape[1] for name, tensor in candidates.items()}
    key = _only_candidate({name: by_name[name] for name in sizes}, sizes, num_classes)
    if key is None:
        return OutputLayout(error=_several_scores_error(parts, candidates))
    expression = next(expression for name, expression, _ in parts if name == key)
    layout = OutputLayout(
        key,
        sizes[key],
        unnamed=score_key is None,
        example=f"{expression}{_column(by_name[key])}",
    )
    chosen = by_name[key]
    if chosen.grad_fn is None:
        return layout
    if is_sorted(chosen):
        return OutputLayout(
            error="its output is sorted, so that its columns are ranks and no classes; pass a "
            "model that returns the scores as they are before topk or sort"
        )
    layout = replace(layout, is_probability=ends_in_sigmoid(chosen))
    known = not layout.unnamed or num_classes == layout.num_classes
    if known or batch_size > 1:  # rows of a layer are positions of one image
        return layout
    features, assumed = features_reason(chosen, sizes[key])
    return replace(layout, features=features, assumed=assumed)


def _only_candidate(
    candidates: Mapping[str, Tensor], sizes: Mapping[str, int], num_classes: int | None
) -> str | None:
    """Return which tensor holds the class scores; None if that is not known."""
    if len(candidates) == 1:
        return next(iter(candidates))
    fitting = [name for name, size in sizes.items() if size == num_classes]
    if len(fitting) == 1:
        return fitting[0]
    dependent = {name: tensor for name, tensor in candidates.items() if tensor.requires_grad}
    if len(dependent) == 1:  # others do not depend on the image
        return next(iter(dependent))
    return last_computed(dependent) if dependent else None


def class_scores(
    output: Any, batch_size: int | None = None, layout: OutputLayout | None = None
) -> Float[Tensor, "b k"]:
    """Return the class scores in the output of a model.

    Raises:
        ValueError: If there are none; the message shows a target function for this output.

    Example:
        >>> import torch
        >>> class_scores((torch.zeros(2, 5, 3), torch.zeros(2, 3))).shape
        torch.Size([2, 3])
    """
    if isinstance(output, Tensor) and output.ndim == 2:
        return _two_columns(output, layout)
    count = batch_size if batch_size is not None else _infer_batch_size(output)
    if layout is None or not (layout.num_classes or layout.error):
        layout = detect_output_layout(output, count)
    if layout.error:
        raise ValueError(f"the model has no class to explain: {layout.error}")
    tensor = next(tensor for name, _, tensor in _tensor_parts(output) if name == layout.key)
    return _two_columns(cast("Tensor", _as_class_scores(tensor, len(tensor))), layout)


def _two_columns(scores: Float[Tensor, "b _"], layout: OutputLayout | None) -> Tensor:
    """Return scores, of both classes if one number stands for two."""
    if layout is None or not layout.is_binary or scores.shape[1] != 1:
        return scores
    other = 1 - scores if layout.is_probability else -scores
    return torch.cat([other, scores], 1)


def output_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in an output, at any depth.

    Example:
        >>> import torch
        >>> [tensor.ndim for tensor in output_tensors([{"boxes": torch.zeros(3, 4)}, None])]
        [2]
    """
    if isinstance(output, Tensor):
        yield output
    else:
        for _, value in _named_parts(output):
            yield from output_tensors(value)


def argument_tensors(args: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among the arguments of an operation, also of those that take a list.

    Example:
        >>> import torch
        >>> len(argument_tensors(([torch.zeros(2), torch.zeros(3)], 1)))
        2
    """
    tensors: list[Tensor] = []
    for arg in args:
        if isinstance(arg, Tensor):
            tensors.append(arg)
        elif isinstance(arg, (list, tuple)):
            tensors += [item for item in arg if isinstance(item, Tensor)]
    return tensors


def first_tensor(output: Any) -> tuple[Any, Tensor] | None:
    """Return the first tensor in the output of a module, and its key.

    The key is None if the output itself is a tensor.
    """
    if isinstance(output, Tensor):
        return None, output
    if isinstance(output, Mapping):
        parts: Iterator[tuple[Any, Any]] = iter(cast("Mapping[Any, Any]", output).items())
    elif isinstance(output, (list, tuple)):
        parts = enumerate(cast("list[Any]", output))
    else:
        return None
    return next(((key, value) for key, value in parts if isinstance(value, Tensor)), None)


def describe_output(output: Any) -> str:
    """Return a short description of the output of a model.

    Example:
        >>> import torch
        >>> describe_output([{"boxes": torch.zeros(3, 4)}])
        'a list: [0] a dict (boxes)'
    """
    if isinstance(output, Tensor):
        return f"a tensor {list(output.shape)}"
    return f"a {type(output).__name__}: {_list_parts(_named_parts(output)) or 'empty'}"


_OF_PIXELS = (
    "name a class at a pixel of the photo, target=visattn.PixelTarget(3, x=120, y=80), or its "
    "whole region, target=visattn.RegionTarget(3); or "
)


def _no_scores_error(
    output: Any, parts: list[tuple[str, str, Tensor]], score_key: str | None
) -> str:
    tensors = _list_parts([(name, tensor) for name, _, tensor in parts]) if parts else None
    maps = any(tensor.ndim == 4 and tensor.shape[1] > 1 for _, _, tensor in parts)
    return (
        f"its output has no class scores [b, k], got {tensors or describe_output(output)}; "
        f"{_OF_PIXELS if maps else ''}pass a function of the output, such as target=lambda output: "
        f"{_example_target(output, parts, score_key)}"
    )


def _several_scores_error(
    parts: list[tuple[str, str, Tensor]], candidates: Mapping[str, Tensor]
) -> str:
    several = [named for named in parts if named[0] in candidates]
    listed = ", ".join(f"{name} {list(tensor.shape)}" for name, _, tensor in several)
    functions = ", ".join(
        f"target=lambda output: {expression}{_column(tensor)}" for _, expression, tensor in several
    )
    return (
        f"its output has several tensors that may be class scores: {listed}; pass the names of its "
        f"classes, if only one has as many columns, or one of {functions}"
    )


def _column(tensor: Tensor) -> str:
    """Return the expression of one column of scores."""
    if tensor.ndim == 1:
        return ""
    return f"[:, {min(3, tensor.shape[1] - 1)}" + ", 0" * (tensor.ndim - 2) + "]"


def _example_target(
    output: Any, parts: list[tuple[str, str, Tensor]], score_key: str | None
) -> str:
    """Return the body of a function that computes one number for each image from an output."""
    if not parts:
        first = output[0] if isinstance(output, Sequence) and output else None
        if isinstance(first, Mapping):  # one mapping for each image, as detectors return
            key = next((key for key in ("scores", *first) if key in first), "scores")
            return f"torch.stack([image[{key!r}].sum() for image in output])"
        return "one number for each image"
    suitable = [named for named in parts if named[0] == score_key] or [
        named for named in parts if named[2].ndim >= 2
    ]
    _, expression, tensor = (suitable or parts)[0 if score_key else -1]
    if tensor.ndim == 3:
        return f"{expression}[:, 0, 3]"
    if tensor.ndim < 3:
        return f"{expression}[:, 3]" if tensor.ndim == 2 else expression
    return f"{expression}[:, 3].mean({tuple(range(1, tensor.ndim - 1))})"


def _as_class_scores(tensor: Tensor, batch_size: int) -> Float[Tensor, "b k"] | None:
    """Return a tensor as class scores of a batch; None if it has another shape."""
    if not tensor.is_floating_point() or tensor.ndim == 0 or len(tensor) != batch_size:
        return None
    if tensor.ndim == 1:  # the logit of a binary classifier
        return tensor[:, None]
    singleton = tensor.ndim > 2 and tensor[0, 0].numel() == 1
    scores = tensor.flatten(2).squeeze(2) if singleton else tensor
    return scores if scores.ndim == 2 else None


def _tensor_parts(output: Any) -> list[tuple[str, str, Tensor]]:
    """Return the tensors of an output, each with its name and the expression that returns it."""
    if isinstance(output, Tensor):
        return [("", "output", output)]
    has_attributes = dataclasses.is_dataclass(output) or hasattr(output, "_fields")
    is_sequence = not has_attributes and isinstance(output, (list, tuple))
    parts: list[tuple[str, str, Tensor]] = []
    for name, value in _named_parts(output):
        if isinstance(value, Tensor):
            access = f".{name}" if has_attributes else name if is_sequence else f"[{name!r}]"
            parts.append((name, f"output{access}", value))
    return parts


def _named_parts(output: Any) -> list[tuple[str, Any]]:
    if isinstance(output, Mapping):
        return [(str(name), value) for name, value in cast("Mapping[Any, Any]", output).items()]
    if dataclasses.is_dataclass(output):
        fields = dataclasses.fields(output)
        return [(field.name, getattr(output, field.name)) for field in fields]
    if hasattr(output, "_fields"):
        return [(name, getattr(output, name)) for name in output._fields]
    if isinstance(output, (list, tuple)):
        return [(f"[{index}]", value) for index, value in enumerate(cast("Sequence[Any]", output))]
    return []


def _list_parts(parts: Sequence[tuple[str, Any]]) -> str:
    listed = [f"{name} {_describe_part(named)}".strip() for name, named in parts[:_MAX_LISTED]]
    return ", ".join(listed) + (", ..." if len(parts) > _MAX_LISTED else "")


def _describe_part(part: Any) -> str:
    if isinstance(part, Tensor):
        return str(list(part.shape))
    if isinstance(part, Mapping):
        return f"a dict ({', '.join(map(str, cast('Mapping[Any, Any]', part)))})"
    return f"a {type(part).__name__}"


def _infer_batch_size(output: Any) -> int:
    """Return the length of the first tensor of an output."""
    return next((len(tensor) for _, _, tensor in _tensor_parts(output) if tensor.ndim), 0)


_MAP_KEYS = ("out", "logits", "pred_logits", "masks", "segmentation")
_QUERY_KEYS = ("logits", "pred_logits", "class_queries_logits")
_MASK_KEYS = ("masks_queries_logits", "pred_masks")
_CALLABLE = "pass a function of the output instead, from the output to one number for each image"


@dataclass(frozen=True, eq=False)
class ImageDetections:
    """Detections on one image.

    Args:
        boxes: Left, top, right, bottom in pixels of the network's input.
        scores: Score of each box; or of each box and class, between 0 and 1.
        labels: Class of each box; None if the scores have a column for each class.

    Example:
        >>> scores, labels = torch.tensor([0.9, 0.2]), torch.tensor([3, 5])
        >>> detections = ImageDetections(torch.zeros(2, 4), scores, labels)
        >>> detections.of_class(5)
        tensor([0.0000, 0.2000])
    """

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"] | Float[Tensor, "n k"]
    labels: Int[Tensor, " n"] | None = None

    def of_class(self, index: int) -> Float[Tensor, " n"]:
        """Return the score of a class for each box.

        Raises:
            ValueError: If there is no such class.
        """
        if self.labels is not None:
            return self.scores * (self.labels == index)
        if not 0 <= index < self.scores.shape[1]:
            raise ValueError(
                f"the class must be an index from 0 to {self.scores.shape[1] - 1}, got {index}"
            )
        return self.scores[:, index]

    def best_class(self, index: int) -> tuple[int, float]:
        """Return the class of a box and its score."""
        if self.labels is not None:
            return int(self.labels[index]), float(self.scores[index].detach())
        score, label = self.scores[index].detach().max(0)
        return int(label), float(score)


def segmentation_logits(output: Any) -> Float[Tensor, "b k gy gx"]:
    """Return the score of each class at each cell, from the output of a segmentation model.

    It is the output itself, or its part `out` or `logits`. For models that classify masks (DETR for
    segmentation, MaskFormer, Mask2Former) it is the sum over queries of the class probabilities
    times the mask probabilities.

    Raises:
        ValueError: If it has no such map.

    Example:
        >>> segmentation_logits({"out": torch.zeros(2, 21, 8, 8)}).shape
        torch.Size([2, 21, 8, 8])

    Source:
        Cheng et al. 2021, arXiv:2107.06278, section 3.4 (semantic inference of MaskFormer).
    """
    if _is_map(output):
        return output
    parts = _parts(output)
    masks = next((parts[key] for key in _MASK_KEYS if _is_map(parts.get(key))), None)
    queries = next((parts[key] for key in _QUERY_KEYS if _has_ndim(parts.get(key), 3)), None)
    if masks is not None and queries is not None and masks.shape[1] == queries.shape[1]:
        probabilities = queries.softmax(2)[..., :-1]  # without "no object"
        return torch.einsum("bqk,bqyx->bkyx", probabilities, masks.sigmoid())
    for key in _MAP_KEYS:
        if _is_map(parts.get(key)):
            return parts[key]
    raise ValueError(
        "a pixel or region needs the output of a segmentation model, a tensor [b, k, y, x] or a "
        f"part out or logits of this shape; got {describe_output(output)}; {_CALLABLE}"
    )


def query_logits(output: Any) -> Float[Tensor, "b q k"]:
    """Return the class logits of queries or tokens, from the output of a model.

    Raises:
        ValueError: If it has none.

    Example:
        >>> query_logits({"logits": torch.zeros(2, 100, 92)}).shape
        torch.Size([2, 100, 92])
    """
    if _has_ndim(output, 3):
        return output
    parts = _parts(output)
    for key in _QUERY_KEYS:
        if _has_ndim(parts.get(key), 3):
            return parts[key]
    raise ValueError(
        "a query or token needs logits [b, q, k], as DETR and language models return them; got "
        f"{describe_output(output)}; {_CALLABLE}"
    )


def query_boxes(output: Any, size: tuple[int, int]) -> Float[Tensor, "b q 4"]:
    """Return the box of each query in pixels of the network's input.

    Args:
        output: An output with a part `pred_boxes`, or `boxes` beside `logits`: center, width and
            height between 0 and 1.

    Raises:
        ValueError: If it has none.

    Example:
        >>> query_boxes({"pred_boxes": torch.tensor([[[0.5, 0.5, 0.25, 0.5]]])}, (64, 128))
        tensor([[[48., 16., 80., 48.]]])
    """
    parts = _parts(output)
    boxes: Any = parts.get("pred_boxes", parts.get("boxes"))
    valid = _has_ndim(boxes, 3) and boxes.shape[2] == 4
    if not valid or not bool(((boxes >= 0) & (boxes <= 1)).all()):
        raise ValueError(
            "a box of a query needs pred_boxes [b, q, 4] of center, width and height between 0 and "
            f"1, got {describe_output(output)}; {_CALLABLE}"
        )
    center = boxes[..., :2]
    half = boxes[..., 2:] / 2
    corners = torch.cat((center - half, center + half), -1)
    return corners * corners.new_tensor((size[1], size[0]) * 2)


def read_detections(
    output: Any, size: tuple[int, int], num_classes: int | None = None
) -> list[ImageDetections]:
    """Return the detections on each image, from the output of a detector.

    Args:
        output: A list with a mapping of `boxes`, `scores` and `labels` for each image, as
            torchvision's detectors return it; or `logits` (or `pred_logits`) and `pred_boxes` of
            queries, as DETR and its successors do.
        num_classes: Number of classes of the model. Logits with one column more have a softmax with
            "no object" in the last one, logits with as many a sigmoid.

    Raises:
        ValueError: If the output is not of this form, or the number of classes is needed and
            unknown.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
        >>> output = [{"boxes": boxes, "scores": torch.ones(1), "labels": torch.ones(1).long()}]
        >>> read_detections(output, (8, 8))[0].best_class(0)
        (1, 1.0)
    """
    if isinstance(output, Sequence):
        images = [_parts(image) for image in cast("Sequence[Any]", output)]
        if images and all({"boxes", "scores", "labels"} <= set(image) for image in images):
            return [
                ImageDetections(image["boxes"], image["scores"], image["labels"])
                for image in images
            ]
    if not {"pred_boxes", "boxes"} & set(_parts(output)):
        raise ValueError(
            "a box needs the output of a detector: a list with boxes, scores and labels of each "
            f"image, or logits and pred_boxes of queries; got {describe_output(output)}; "
            f"{_CALLABLE}"
        )
    logits = query_logits(output)
    boxes = query_boxes(output, size)
    extra = None if num_classes is None else logits.shape[2] - num_classes
    if extra not in (0, 1):
        known = "is unknown" if num_classes is None else f"is {num_classes}"
        raise ValueError(
            f"the logits of a detector must have a column for each class, and one more if they "
            f'have "no object"; they have {logits.shape[2]}, and the number of classes {known}: '
            "pass the names of the classes, class_names="
        )
    scores = logits.softmax(2)[..., :-1] if extra else logits.sigmoid()
    return [ImageDetections(box, score) for box, score in zip(boxes, scores, strict=True)]


def _parts(output: Any) -> dict[str, Any]:
    """Return the named parts of an output."""
    if isinstance(output, Mapping):
        return {str(key): value for key, value in cast("Mapping[Any, Any]", output).items()}
    if hasattr(output, "_fields"):
        return {name: getattr(output, name) for name in output._fields}
    return dict(vars(output)) if hasattr(output, "__dataclass_fields__") else {}


def _has_ndim(part: Any, ndim: int) -> bool:
    return isinstance(part, Tensor) and part.ndim == ndim and part.is_floating_point()


def _is_map(part: Any) -> bool:
    return _has_ndim(part, 4) and min(part.shape[2:]) > 0
