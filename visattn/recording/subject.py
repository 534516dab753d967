"""The subject of all maps: an analyzed model, with the measurements of its runs.

one run with gradients    where the scores are, and what they are computed from
small noise               positions of feature maps and of attention tokens (`probe`)
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.geometry.affine import Margin
from visattn.recording.feature_pooling import (
    PooledFeatures,
    followed_layer,
    pooled_features,
    pooled_maps,
)
from visattn.recording.frozen import (
    first_weight,
    frozen,
    internal_transform,
    unrounded,
    unwrapped,
    without_grad,
)
from visattn.recording.interception import check_supports_hooks, probing
from visattn.recording.model_config import (
    ClassNames,
    forward_function,
    input_hint,
    parse_class_names,
    parse_image_size,
    stated_info,
)
from visattn.recording.model_info import (
    NO_ATTENTION,
    AttentionLayer,
    FeatureLayer,
    ModelInfo,
    Pooling,
)
from visattn.recording.outputs import OutputLayout, class_scores, output_tensors
from visattn.recording.places import Grid, probe_images
from visattn.recording.probe import Probe, prefix_tokens_of, probe_model
from visattn.recording.score_trace import Reading, ScoreTracer, measured_reading

_NO_GRADIENT = (
    "its scores have no gradient with respect to the image; it detaches tensors or runs layers "
    "inside torch.no_grad()"
)
_NOT_MEASURED = "its output does not show which tokens are read, so the usual ones are taken"


@dataclass(frozen=True, eq=False)
class Subject:
    """A model as methods take it: analyzed once, for images of one size.

    Measurements are made on first access and cached. Create a new subject when the weights or
    modules of the model change.

    Args:
        model: The model, whose modules are hooked.
        info: Its metadata.
        forward: Function from normalized images to the output of the model.
        class_names: Names of the classes; () if unknown.
        measures: Cached measurements, by kind and image size.
    """

    model: nn.Module
    info: ModelInfo
    forward: Callable[[Float[Tensor, "b c y x"]], Any]
    class_names: tuple[str, ...] = ()
    measures: dict[Any, Any] = field(default_factory=dict)

    def scores(self, images: Float[Tensor, "b ..."]) -> Float[Tensor, "b k"]:
        """Return the class scores (logits) of normalized images.

        Raises:
            ValueError: If the output of the model has no class scores.
        """
        if self.info.output.error:
            raise ValueError(f"{self.info.name} has no class to explain: {self.info.output.error}")
        return class_scores(self.forward(images), self.info.output)

    @property
    def probe(self) -> Probe:
        """Positions of the activations of the model on its images."""
        size, channels = self.info.input_size, len(self.info.mean)
        return self.once("probe", lambda: probe_model(self.model, size, channels, self.forward))

    def layers_of(self, site: str) -> list[FeatureLayer | None]:
        """Return the feature layer of each call of a module; None if it has no positions."""
        probe, image = self.probe, self.probe_image()
        layers = probe.layers_of(site)
        if layers != [None] or probe.cut:
            return layers
        follow = lambda: followed_layer(self.tracer(), image, probe, site)  # noqa: E731
        return [self.once(("followed", site), follow)]

    def pooled(self, num_classes: int | None = None) -> PooledFeatures:
        """Return the features that the scores are pooled from, and the attention that they read.

        Args:
            num_classes: Number of classes, if it decides which of several outputs the scores are.
        """
        return self.once(("pooled", num_classes), lambda: self._pooled(num_classes))

    def margin(self, grid: Grid) -> Margin:
        """Return how many pixels of the images the cells of a map do not cover.

        Example:
            >>> info = ModelInfo("net", "other", (28, 32), (0.5,) * 3, (0.5,) * 3, "none")
            >>> model = nn.Conv2d(3, 2, 5)
            >>> Subject(model, info, model).margin((24, 28))
            (2, 2)
        """
        strides = self.once("strides", lambda: self.probe.strides)
        return strides.margin(grid, self.info.input_size)

    @property
    def independent(self) -> bool:
        """Whether images in a batch do not affect each other, as batch statistics would."""
        return self.once("independent", self._compare_alone)

    def _compare_alone(self) -> bool:
        photo = self.probe_image()
        with without_grad(self.model), probing():
            try:
                alone = self.forward(photo)
                among = self.forward(torch.cat([photo, 1 - 2 * photo.flip(-1)]))
            except (RuntimeError, ValueError, TypeError):  # the model takes only one image
                return True
        pairs = zip(output_tensors(alone), output_tensors(among), strict=False)
        pairs = [(own.float(), both[:1].float()) for own, both in pairs if both.shape[:1] == (2,)]
        limit = 1e-3 if photo.dtype in (torch.float32, torch.float64) else 5e-2
        return all(bool(((own - one).abs() <= limit * own.abs().max()).all()) for own, one in pairs)

    def once(self, kind: Any, measure: Callable[[], Any]) -> Any:
        """Return a measurement for images of this size, which is made once."""
        key = (kind, self.info.input_size, len(self.info.mean))
        if key not in self.measures:
            self.measures[key] = measure()
        return self.measures[key]

    def probe_image(self) -> Float[Tensor, "1 c y x"]:
        """Return the photo-like image that the model is measured on."""
        like = first_weight(self.model)
        return probe_images(len(self.info.mean), self.info.input_size, like)[:1]

    def tracer(self, num_classes: int | None = None) -> ScoreTracer:
        """Return a tracer that runs the model with gradients."""
        return ScoreTracer(self.model, self.forward, num_classes)

    def _pooled(self, num_classes: int | None) -> PooledFeatures:
        tracer, image = self.tracer(num_classes), self.probe_image()
        with frozen(self.model), probing():
            try:
                kept = tracer.kept(image)
                self.once("strides", lambda: kept.strides)
                pooled = pooled_maps(tracer, image, kept, self.info.input_size)
                return pooled or pooled_features(tracer, image, kept, self.probe)
            except Exception as error:
                probe = self.probe
                not_differentiable = isinstance(error, RuntimeError | NotImplementedError)
                if not (probe.error or not_differentiable):
                    raise
                why = probe.cut or f"its scores are not differentiable ({error})"
                return PooledFeatures(error=why, probe=probe)


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
        class_names: In the order of their indices, or by index; by default those of the model. A
            single logit has two: for negative and for positive values.
        channels: Number of channels of its images; by default that of its first convolution.

    Raises:
        ValueError: If the model does not run on images of that size, or there is not one name for
            each class.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(75, 2))
        >>> info = analyze_model(model, (6, 10)).info
        >>> info.colors, info.attention_error, [layer.grid for layer in info.feature_layers]
        ('assumed: mean and std of ImageNet', 'it has no attention among tokens', [(3, 5)])
    """
    subject = describe_model(model, input_size, class_names, channels)
    info, names = _measured(subject), subject.class_names
    other = info.output.unnamed and info.output.num_classes != len(names)
    # The number of names decides which tensor has the class scores.
    if names and (info.output.error or other):
        info = _measured(subject, len(names))
    # A single score distinguishes two classes by its sign.
    if len(names) == 2 and info.output.num_classes == 1:
        info = replace(info, output=replace(info.output, num_classes=2, is_binary=True))
    if class_names is not None:
        parse_class_names(class_names, info.output.num_classes)
    return replace(subject, info=info)


def describe_model(
    model: nn.Module,
    input_size: int | tuple[int, int] | None = None,
    class_names: ClassNames | None = None,
    channels: int | None = None,
) -> Subject:
    """Return a model with the metadata that it states, without measurements, for dense targets.

    It has no attention layers and no feature layers. See `analyze_model` for the parameters.

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
        resizes_images=internal_transform(model) is not None,
        attention_error="a dense model is not probed for attention",
        output=OutputLayout(
            error="its output is dense, so that the target must be a pixel, region, box or query"
        ),
    )
    return Subject(model, info, forward_function(model), names)


def _measured(subject: Subject, num_classes: int | None = None) -> ModelInfo:
    """Return the metadata of a model, measured by running it."""
    model, info, pooled = subject.model, subject.info, subject.pooled(num_classes)
    probe = pooled.probe or Probe(info.input_size)
    if probe.error:
        hint = input_hint(model, stated_info(model)[0].input_size, len(info.mean))
        raise ValueError(
            f"the model must run on images of {info.input_size[0]} x {info.input_size[1]} pixels, "
            f"but {info.name} raised an error ({probe.error}); {hint}"
        )
    layers = () if subject.info.resizes_images else pooled.layers
    info = replace(
        info,
        feature_layers=tuple(replace(e, margin=subject.margin(e.grid)) for e in layers),
        features_error=pooled.error,
        gradient_error="" if pooled.differentiable else _NO_GRADIENT,
        output=_output_layout(subject, pooled.output or probe.output, num_classes),
    )
    if pooled.probe is None:  # it computes no attention
        return replace(info, attention_error=NO_ATTENTION)
    return _with_attention(info, model, probe, pooled.reading)


def _with_attention(
    info: ModelInfo, model: nn.Module, result: Probe, reading: Reading | None
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
        # unnamed tokens, by their use
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
        query_layers=tuple(each.layer for each in result.query_layers.values()),
        unsupported_layers=unsupported,
        read_rows=rows,
        pooling_assumed="" if rows or not layers else _NOT_MEASURED,
        unread_layers=tuple(layer for layer in recordable if layer.site in unread),
        parallel_layers=() if reading is None else reading.parallel,
    )


@unrounded()
def read_by_target(
    subject: Subject, images: Float[Tensor, "b c y x"], target: Callable[[Any], Tensor]
) -> Subject:
    """Return a model with the attention layers and tokens that a target reads, not its scores.

    A function of hidden states or of a dense output may read other tokens than a classifier. A copy
    of the target is traced on the first image.
    """
    model = subject.model
    info = subject.info
    result = subject.probe
    # A copy, since a target keeps what it chose on its first call, which here has one image only.
    traced = copy(target)
    try:
        tracer = ScoreTracer(model, lambda image: traced(subject.forward(image)))
        reading = measured_reading(tracer, images[:1], None, result)
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
    # Without a head, models of timm return features, and so do those of transformers that are not
    # classifiers, unless they name their output logits.
    headless = library == "timm" and getattr(model, "num_classes", None) == 0
    if library == "transformers":
        headless = output.key != "logits" and "Classification" not in type(model).__name__
    if not headless and library == "visattn":
        return replace(output, features="")
    if not headless and not output.features:
        return output
    evidence = f" ({output.features})" if output.features else ""
    return OutputLayout(
        error=f"it has no classifier, and returns {output.num_classes} features instead of class "
        f"scores{evidence}; pass a function of the output, such as target=lambda output: "
        f"{output.example}, or the names of its classes if they are scores"
    )


def _usual_pooling(layers: Sequence[AttentionLayer]) -> Pooling:
    """Return what a head usually classifies, given the tokens of a model."""
    if not layers:
        return "none"
    kinds = {kind for layer in layers for kind in layer.prefix_tokens}
    if "class" in kinds:
        return "distilled" if "distillation" in kinds else "class"
    return "attention" if layers[-1].single_query else "mean"
