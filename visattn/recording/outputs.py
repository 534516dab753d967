"""Outputs of a model: class scores, scores of pixels, queries or boxes, or why there are none."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
_OF_PIXELS = (
    "explain a class at a pixel of the photo, target=visattn.PixelTarget(3, x=120, y=80), or its "
    "whole region, target=visattn.RegionTarget(3); or "
)
_OF_BOXES = "explain a box on the photo, target=visattn.BoxTarget((left, top, right, bottom)); or "


@dataclass(frozen=True)
class OutputLayout:
    """Location of the class scores in the output of a model.

    Args:
        key: Name or index of the scores; "" if they are the output itself.
        num_classes: Number of classes; None if the output has no class scores.
        error: Why there are no class scores, or why they are ambiguous; "" if they are known.
        features: Why the scores are features of a network without classifier, by how they are
            computed (see `features_reason`); "" if they are not.
        unnamed: Whether they have no name such as `logits`, but are the only or last candidate.
        example: Expression of the score of one class, in terms of `output`.
        is_probability: Whether the scores are computed by a sigmoid.
        is_binary: Whether a single output encodes two classes: their scores are `-x` and `x` for a
            logit `x`, or `1 - x` and `x` for a probability.
    """

    key: str = ""
    num_classes: int | None = None
    error: str = ""
    features: str = ""
    unnamed: bool = False
    example: str = ""
    is_probability: bool = False
    is_binary: bool = False


def detect_output_layout(
    output: Any, batch_size: int, num_classes: int | None = None, declared: Collection[int] = ()
) -> OutputLayout:
    """Return where the class scores are in the output of a model.

    Class scores are a tensor `[b, k]`: the output itself, a part of it named `logits`, `out` or
    similar, or the only such tensor whose name is not known to mean something else. Of several,
    they are the one with `num_classes` columns, or the one that is computed from all others (see
    `last_computed`); otherwise `error` lists the candidates.

    Args:
        output: Output of the model; its autograd graph, if it has one, shows how it was computed.
        batch_size: Number of images.
        num_classes: Number of classes, if it decides which of several tensors the scores are.
        declared: Numbers of classes that modules declare; a match outweighs the evidence of how the
            scores are computed.

    Example:
        >>> import torch
        >>> output = {"features": torch.zeros(2, 7), "logits": torch.zeros(2, 5)}
        >>> detect_output_layout(output, 2).key
        'logits'
        >>> print(detect_output_layout({"out": torch.zeros(2, 21, 8, 8)}, 2).error)
        its output has no class scores [b, k], got out [2, 21, 8, 8]; explain a class at a pixel \
of the photo, target=visattn.PixelTarget(3, x=120, y=80), or its whole region, target=\
visattn.RegionTarget(3); or pass a function of the output, such as target=lambda output: \
output['out'][:, 3].mean((1, 2))
        >>> print(detect_output_layout((torch.zeros(2, 7), torch.zeros(2, 5)), 2).error)
        its output has several tensors that may be class scores: [0] [2, 7], [1] [2, 5]; pass the \
names of its classes, if only one has as many columns, or one of target=lambda output: \
output[0][:, 3], target=lambda output: output[1][:, 3]
    """
    tensors = {key: part for key, part in _parts(output).items() if isinstance(part, Tensor)}
    scores_key = next((key for key in _SCORE_KEYS if key in tensors), None)
    keys = [scores_key] if scores_key else [key for key in tensors if key not in _FEATURE_KEYS]
    sizes = {key: _num_columns(tensors[key], batch_size) for key in keys}
    candidates = {key: tensors[key] for key, size in sizes.items() if size is not None}
    if not candidates:
        return OutputLayout(error=_no_scores(output, tensors, scores_key))
    key = _chosen(candidates, [key for key, size in sizes.items() if size == num_classes])
    if key is None:
        examples = (f"target=lambda output: {_score_of(output, each)}" for each in candidates)
        return OutputLayout(
            error=f"its output has several tensors that may be class scores: {_listed(candidates)};"
            " pass the names of its classes, if only one has as many columns, or one of "
            + ", ".join(examples)
        )
    scores, size = tensors[key], sizes[key]
    layout = OutputLayout(
        _name(key), size, unnamed=scores_key is None, example=_score_of(output, key)
    )
    if scores.grad_fn is None:
        return layout
    if is_sorted(scores):
        return OutputLayout(
            error="its output is sorted, so that its columns are ranks, not classes; pass a model "
            "that returns the scores before topk or sort"
        )
    layout = replace(layout, is_probability=ends_in_sigmoid(scores))
    known = not layout.unnamed or num_classes == size or size in declared
    if known or batch_size > 1:  # rows of a layer are positions of one image
        return layout
    return replace(layout, features=features_reason(scores, layout.num_classes or 0))


def _chosen(candidates: Mapping[Any, Tensor], fitting: Sequence[Any]) -> Any:
    """Return which of several tensors holds the class scores; None if unknown.

    It is the only one with as many columns as classes, the only one that depends on the image, or
    the last one that is computed.
    """
    dependent = {key: tensor for key, tensor in candidates.items() if tensor.requires_grad}
    for keys in (list(candidates), fitting, list(dependent)):
        if len(keys) == 1:
            return keys[0]
    return last_computed(dependent) if dependent else None


def class_scores(output: Any, layout: OutputLayout | None = None) -> Float[Tensor, "b k"]:
    """Return the class scores in the output of a model.

    Raises:
        ValueError: If there are none; the message shows a target function for this output.

    Example:
        >>> import torch
        >>> class_scores((torch.zeros(2, 5, 3), torch.zeros(2, 3))).shape
        torch.Size([2, 3])
    """
    if isinstance(output, Tensor) and output.ndim == 2:
        scores = output
    else:
        parts = _parts(output)
        if layout is None or not (layout.num_classes or layout.error):
            tensors = (each for each in parts.values() if isinstance(each, Tensor) and each.ndim)
            layout = detect_output_layout(output, next(map(len, tensors), 0))
        if layout.error:
            raise ValueError(f"the model has no class to explain: {layout.error}")
        scores = next(e for key, e in parts.items() if _name(key) == layout.key)
        scores = scores[:, None] if scores.ndim == 1 else scores.flatten(1)
    if layout is not None and layout.is_binary and scores.shape[1] == 1:  # scores of both classes
        return torch.cat([1 - scores if layout.is_probability else -scores, scores], 1)
    return scores


def _num_columns(tensor: Tensor, batch_size: int) -> int | None:
    """Return the number of classes of scores of a batch; None if a tensor has another shape."""
    if not tensor.is_floating_point() or tensor.ndim == 0 or len(tensor) != batch_size:
        return None
    if tensor.ndim == 1:  # the logit of a binary classifier
        return 1
    return tensor.shape[1] if tensor[0].numel() == tensor.shape[1] else None


def _parts(output: Any) -> dict[Any, Any]:
    """Return the parts of an output by name or index; a tensor is its only part, named ""."""
    if isinstance(output, Tensor):
        return {"": output}
    if isinstance(output, Mapping):
        return dict(output)
    if dataclasses.is_dataclass(output):
        return {each.name: getattr(output, each.name) for each in dataclasses.fields(output)}
    if hasattr(output, "_asdict"):
        return output._asdict()
    return dict(enumerate(output)) if isinstance(output, (list, tuple)) else {}


def output_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in an output, at any depth.

    Example:
        >>> import torch
        >>> [tensor.ndim for tensor in output_tensors([{"boxes": torch.zeros(3, 4)}, None])]
        [2]
    """
    for part in _parts(output).values():
        if isinstance(part, Tensor):
            yield part
        else:
            yield from output_tensors(part)


def first_tensor(output: Any) -> tuple[Any, Tensor] | None:
    """Return the first tensor in the output of a module, and its key.

    The key is None if the output itself is a tensor.
    """
    if isinstance(output, Tensor):
        return None, output
    parts = _parts(output).items() if isinstance(output, (Mapping, list, tuple)) else ()
    return next(((key, value) for key, value in parts if isinstance(value, Tensor)), None)


def describe_output(output: Any) -> str:
    """Return a short description of the output of a model.

    Example:
        >>> import torch
        >>> describe_output([{"boxes": torch.zeros(3, 4)}])
        'a list: [0] a dict'
    """
    if isinstance(output, Tensor):
        return f"a tensor {list(output.shape)}"
    return f"a {type(output).__name__}: {_listed(_parts(output)) or 'empty'}"


def _listed(parts: Mapping[Any, Any]) -> str:
    texts: list[str] = []
    for key, part in list(parts.items())[:_MAX_LISTED]:
        shape = list(part.shape) if isinstance(part, Tensor) else f"a {type(part).__name__}"
        texts.append(f"{_name(key)} {shape}".strip())
    return ", ".join(texts) + (", ..." if len(parts) > _MAX_LISTED else "")


def _name(key: Any) -> str:
    return f"[{key}]" if isinstance(key, int) else str(key)


def _score_of(output: Any, key: Any) -> str:
    """Return an expression for one number per image, in terms of `output`."""
    tensor, expression = _parts(output)[key], "output"
    if not isinstance(output, Tensor):
        by_key = isinstance(output, Mapping) or isinstance(key, int)
        expression = f"output[{key!r}]" if by_key else f"output.{key}"
    if tensor.ndim < 2:
        return expression
    if tensor.ndim == 3:  # of queries or tokens
        return f"{expression}[:, 0, {min(3, tensor.shape[2] - 1)}]"
    mean = f".mean({tuple(range(1, tensor.ndim - 1))})" if tensor.ndim > 3 else ""
    return f"{expression}[:, {min(3, tensor.shape[1] - 1)}]{mean}"


def _no_scores(output: Any, tensors: Mapping[Any, Tensor], scores_key: str | None) -> str:
    """Return why there are no class scores, with an example of a target function."""
    example = "one number for each image"
    maps = any(tensor.ndim == 4 and tensor.shape[1] > 1 for tensor in tensors.values())
    advice = _OF_PIXELS if maps else ""
    if tensors:
        wide = [key for key, tensor in tensors.items() if tensor.ndim >= 2] or list(tensors)
        example = _score_of(output, scores_key or wide[-1])
    elif isinstance(output, Sequence) and output and isinstance(output[0], Mapping):
        advice = _OF_BOXES  # one mapping for each image, as detectors return
    return (
        f"its output has no class scores [b, k], got {_listed(tensors) or describe_output(output)};"
        f" {advice}pass a function of the output, such as target=lambda output: {example}"
    )


_MAP_KEYS = ("out", "logits", "pred_logits", "masks", "segmentation")
_QUERY_KEYS = ("logits", "pred_logits", "class_queries_logits")
_MASK_KEYS = ("masks_queries_logits", "pred_masks")


def _found(output: Any, keys: Sequence[str], ndim: int) -> Tensor | None:
    """Return a part of an output by names and number of axes; the output itself if a tensor."""
    parts = _parts(output)
    found = (parts[key] for key in ("", *keys) if key in parts)
    return next((e for e in found if isinstance(e, Tensor) and e.ndim == ndim and e.numel()), None)


def _need(what: str, form: str, output: Any) -> ValueError:
    return ValueError(
        f"{what} needs {form}; got {describe_output(output)}; pass a target function instead, from "
        "the output to one number for each image"
    )


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
        """Return the score of a class for each box."""
        return (
            self.scores[:, index] if self.labels is None else self.scores * (self.labels == index)
        )

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
    masks, queries = _found(output, _MASK_KEYS, 4), _found(output, _QUERY_KEYS, 3)
    if masks is not None and queries is not None and masks.shape[1] == queries.shape[1]:
        probabilities = queries.softmax(2)[..., :-1]  # without "no object"
        return torch.einsum("bqk,bqyx->bkyx", probabilities, masks.sigmoid())
    maps = _found(output, _MAP_KEYS, 4)
    if maps is None:
        form = "the output of a segmentation model, a tensor [b, k, y, x] or a part out or logits"
        raise _need("a pixel or region", f"{form} of this shape", output)
    return maps


def query_logits(output: Any) -> Float[Tensor, "b q k"]:
    """Return the class logits of queries or tokens, from the output of a model.

    Raises:
        ValueError: If it has none.

    Example:
        >>> query_logits({"logits": torch.zeros(2, 100, 92)}).shape
        torch.Size([2, 100, 92])
    """
    logits = _found(output, _QUERY_KEYS, 3)
    if logits is None:
        form = "logits [b, q, k], as DETR and language models return them"
        raise _need("a query or token", form, output)
    return logits


def query_boxes(output: Any, size: tuple[int, int]) -> Float[Tensor, "b q 4"]:
    """Return the box of each query in pixels of the network's input.

    Args:
        output: An output with a part `pred_boxes`, or `boxes` next to `logits`: center, width and
            height between 0 and 1.

    Raises:
        ValueError: If it has none.

    Example:
        >>> query_boxes({"pred_boxes": torch.tensor([[[0.5, 0.5, 0.25, 0.5]]])}, (64, 128))
        tensor([[[48., 16., 80., 48.]]])
    """
    boxes = None if isinstance(output, Tensor) else _found(output, ("pred_boxes", "boxes"), 3)
    if boxes is None or boxes.shape[2] != 4 or bool(((boxes < 0) | (boxes > 1)).any()):
        form = "pred_boxes [b, q, 4] of center, width and height between 0 and 1"
        raise _need("a box of a query", form, output)
    center, half = boxes[..., :2], boxes[..., 2:] / 2
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
        num_classes: Number of classes of the model. Logits with one more column get a softmax, with
            "no object" as the last class; logits with as many get a sigmoid.

    Raises:
        ValueError: If the output is not of this form, or the number of classes is needed and
            unknown.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
        >>> output = [{"boxes": boxes, "scores": torch.ones(1), "labels": torch.ones(1).long()}]
        >>> read_detections(output, (8, 8))[0].best_class(0)
        (1, 1.0)
    """
    images = list(map(_parts, output)) if isinstance(output, (list, tuple)) else []
    names = ("boxes", "scores", "labels")
    if images and all(set(names) <= set(image) for image in images):
        return [ImageDetections(*(image[name] for name in names)) for image in images]
    if not {"pred_boxes", "boxes"} & set(_parts(output)):
        form = "a list with boxes, scores and labels of each image, or logits and pred_boxes"
        raise _need("a box", f"the output of a detector: {form} of queries", output)
    logits, boxes = query_logits(output), query_boxes(output, size)
    extra = None if num_classes is None else logits.shape[2] - num_classes
    if extra not in (0, 1):
        known = "is unknown" if num_classes is None else f"is {num_classes}"
        raise ValueError(
            f"the logits of a detector must have a column for each class, and one more if they "
            f'have "no object"; they have {logits.shape[2]}, and the number of classes {known}; '
            "pass the names of the classes with class_names="
        )
    scores = logits.softmax(2)[..., :-1] if extra else logits.sigmoid()
    return [ImageDetections(box, score) for box, score in zip(boxes, scores, strict=True)]
