"""Analysis of any model for attribution: input size, normalization, layers, classes."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from visattn.attribution.targets import Target
from visattn.blocks.tap import Tap
from visattn.recording.feature_layers import resizes_images
from visattn.recording.frozen import unrounded, unwrapped
from visattn.recording.model_config import (
    ClassNames,
    forward_function,
    input_hint,
    parse_class_names,
    parse_image_size,
    stated_info,
)
from visattn.recording.model_info import NO_ATTENTION, AttentionLayer, ModelInfo, Pooling
from visattn.recording.outputs import OutputLayout
from visattn.recording.probe import ProbeResult, prefix_tokens_of
from visattn.recording.read_rows import Reading, confirmed_reading
from visattn.recording.recorder import check_supports_hooks
from visattn.recording.score_evidence import declared_class_counts
from visattn.recording.score_trace import ScoreTracer
from visattn.recording.subject import Subject

_NO_GRADIENT = (
    "its scores have no gradient with respect to the image; it detaches tensors or runs layers "
    "inside torch.no_grad()"
)
_NOT_MEASURED = "its output tells no tokens that are read, so its kinds of tokens decide"


@unrounded()
def analyze_model(
    model: nn.Module,
    input_size: int | tuple[int, int] | None = None,
    class_names: ClassNames | None = None,
    channels: int | None = None,
) -> Subject:
    """Return a model with the metadata that attribution methods need.

    The model runs on probe images in evaluation mode, and is restored afterwards.

    Args:
        model: A classifier of visattn, a model of timm, torchvision or Hugging Face, or any other
            module from images to scores.
        input_size: Height and width of its images, or one number for both; by default the size in
            its configuration.
        class_names: In the order of their indices, or by index; by default those of the model. Two
            for a single logit are those of its negative and of its positive values.
        channels: Number of channels of its images; by default that of its first convolution.

    Raises:
        ValueError: If the model does not run on images of that size, or there is not one name for
            each class.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(75, 2))
        >>> print(analyze_model(model, (6, 10)).info)
        Sequential (other)
          input      6 x 10, mean 0.485 0.456 0.406, std 0.229 0.224 0.225
          colors     assumed: mean and std of ImageNet
          pooling    none
          attention  not supported: it has no attention among tokens
          features   1 layer
            1  3 x 5, [b c y x]
    """
    subject = describe_model(model, input_size, class_names, channels)
    model, info, names = subject.model, subject.info, subject.class_names
    pooled = subject.pooled()
    if pooled.probe is not None and (error := pooled.probe.error):
        stated, _ = stated_info(model)
        hint = input_hint(model, stated.input_size, len(info.mean))
        raise ValueError(
            f"the model must run on images of {info.input_size[0]} x {info.input_size[1]} pixels, "
            f"but {info.name} raised an error ({error}); {hint}"
        )
    info = _measured(subject, None)
    other = info.output.unnamed and info.output.num_classes != len(names)
    # The number of names tells which tensor has the classes.
    if names and (info.output.error or info.output.assumed or other):
        info = _measured(subject, len(names))
    # A single score separates two classes by its sign.
    if len(names) == 2 and info.output.num_classes == 1:
        info = replace(info, output=info.output.two_classes())
    if class_names is not None:
        parse_class_names(class_names, info.output.num_classes)
    return replace(subject, info=info)


def describe_model(
    model: nn.Module,
    input_size: int | tuple[int, int] | None = None,
    class_names: ClassNames | None = None,
    channels: int | None = None,
) -> Subject:
    """Return a model of which nothing was measured yet, for dense targets.

    It has no attention layers, and no feature layers. The parameters are those of `analyze_model`.

    Raises:
        ValueError: If hooks do not reach into the model, or class names are repeated.

    Example:
        >>> describe_model(nn.Conv2d(3, 2, 1), 64, ("cat", "dog")).info.input_size
        (64, 64)
    """
    model = unwrapped(model)
    check_supports_hooks(model)
    size = None if input_size is None else parse_image_size(input_size)
    info, names = stated_info(model, size, channels)
    if class_names is not None:
        names = parse_class_names(class_names, None)
    taps = [(name, each.kind) for name, each in model.named_modules() if isinstance(each, Tap)]
    info = replace(
        info,
        gates=tuple(name for name, kind in taps if kind == "gate"),
        channel_gates=tuple(name for name, kind in taps if kind == "channel"),
        attention_error="a dense model is not probed for attention",
        output=OutputLayout(
            error="its output is dense: a pixel, region, box or query is explained"
        ),
    )
    return Subject(model, info, forward_function(model), names)


def _measured(subject: Subject, num_classes: int | None) -> ModelInfo:
    """Return the metadata of a model from runs of it."""
    model, pooled = subject.model, subject.pooled(num_classes)
    result = pooled.probe or ProbeResult()
    output = pooled.output or result.output
    info = replace(
        subject.info,
        feature_layers=() if resizes_images(model) else pooled.layers,
        features_error=pooled.error,
        gradient_error="" if pooled.differentiable else _NO_GRADIENT,
        output=_output_layout(subject, output, num_classes),
    )
    return _with_attention(info, model, result, pooled.reading)


def _with_attention(
    info: ModelInfo, model: nn.Module, result: ProbeResult, reading: Reading | None
) -> ModelInfo:
    """Return metadata with the attention layers that are read, and the tokens after them."""
    rows = None if reading is None else reading.rows
    unread = () if reading is None else reading.unread
    recordable = tuple(result.attention_layers)
    layers = tuple(layer for layer in recordable if layer.site not in unread)
    unsupported = tuple(pair for pair in result.unsupported_layers if pair[0] not in unread)
    error = ""
    if not layers and unsupported:
        error = f"{unsupported[0][0] or 'the model'}: {unsupported[0][1]}"
    elif not layers:
        names = ", ".join(layer.site for layer in recordable[:3])
        error = f"no score depends on its attention ({names})" if recordable else NO_ATTENTION
    if rows is not None and rows.kinds and not prefix_tokens_of(model):
        # tokens without names: by their use
        kinds = iter(("class", "distillation"))
        used = tuple(next(kinds, "register") if share else "register" for share in rows.prefix)
        rows = replace(rows, kinds=used)
        renamed = (replace(each, prefix_tokens=used[: len(each.prefix_tokens)]) for each in layers)
        layers = tuple(renamed)
    return replace(
        info,
        pooling=rows.pooling if rows else _usual_pooling(layers),
        attention_layers=layers,
        attention_error=error,
        query_layers=tuple(result.query_layers.values()),
        unsupported_layers=unsupported,
        read_rows=rows,
        pooling_assumed="" if rows or not layers else _NOT_MEASURED,
        unread_layers=tuple(layer for layer in recordable if layer.site in unread),
        parallel_layers=() if reading is None else reading.parallel,
    )


@unrounded()
def read_by_target(subject: Subject, images: Float[Tensor, "b c y x"], target: Target) -> Subject:
    """Return a model with the attention layers and tokens that a target reads, not its scores.

    A function of hidden states or of a dense output may read other tokens than a classifier. The
    target is traced on the first image; a copy of it is called.
    """
    model = subject.model
    info = subject.info
    result = subject.probe
    # A copy, since a target keeps what it chose in its first call: here that is one image of all.
    traced = copy(target)
    try:
        tracer = ScoreTracer(model, lambda image: traced(subject.forward(image)))
        reading = confirmed_reading(tracer, images[:1], None, result.layouts)
    except (RuntimeError, ValueError, TypeError, IndexError):  # needs the whole batch
        return subject
    if reading is None:
        return subject
    return replace(subject, info=_with_attention(info, model, result, reading))


def _output_layout(subject: Subject, output: OutputLayout, num_classes: int | None) -> OutputLayout:
    """Return the location of the class scores, for a model that has a classifier."""
    model, library = subject.model, subject.info.library
    if output.error or output.num_classes == num_classes:
        return output
    # Without a head timm returns features, and so does a class of transformers that is no
    # classifier, unless it calls its output logits.
    headless = library == "timm" and getattr(model, "num_classes", None) == 0
    if library == "transformers":
        headless = output.key != "logits" and "Classification" not in type(model).__name__
    # A layer that declares as many classes says more than how the output was computed.
    declared = output.num_classes in declared_class_counts(model.modules())
    if not headless and (library == "visattn" or declared):
        return replace(output, features="", assumed=False)
    if not headless and not output.features:
        return output
    evidence = f" ({output.features})" if output.features else ""
    return OutputLayout(
        error=f"it has no classifier, and returns {output.num_classes} features instead of class "
        f"scores{evidence}; pass a function of the output, such as target=lambda output: "
        f"{output.example}, or the names of its classes if they are scores after all"
    )


def _usual_pooling(layers: Sequence[AttentionLayer]) -> Pooling:
    """Return what a head usually classifies, by the tokens that there are."""
    if not layers:
        return "none"
    kinds = {kind for layer in layers for kind in layer.prefix_tokens}
    if "class" in kinds:
        return "distilled" if "distillation" in kinds else "class"
    return "attention" if layers[-1].single_query else "mean"
