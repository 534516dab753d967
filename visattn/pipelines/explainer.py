"""Explainer: maps of any model by any method, placed on the photos."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from visattn.attribution.cam import OF_TARGETS
from visattn.attribution.dense_targets import DenseTarget, QueryTarget
from visattn.attribution.explained_model import analyze_model
from visattn.attribution.methods import (
    METHODS,
    Method,
    default_method,
    find_name,
    get_method,
    supported_methods,
)
from visattn.attribution.targets import Target, TargetLike
from visattn.images.reader import ImageLike
from visattn.images.resize import ResizeMode
from visattn.io.messages import did_you_mean
from visattn.models.backbones.huggingface import (
    image_model,
    image_transform,
    is_image_processor,
)
from visattn.models.backbones.text_models import text_classifier
from visattn.models.captioning.captioner import Captioner
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.loaded import loaded_with
from visattn.pipelines.attribution_maps import (
    compute_class_maps,
    compute_maps,
    describe_at_size,
    report_empty,
    stack_texts,
    whole_image_preprocessing,
    with_bottleneck,
)
from visattn.pipelines.caption_words import WORD_METHODS
from visattn.pipelines.colors import (
    ChannelNumbers,
    Colors,
    followed_transform,
    passed_colors,
    recolored,
    transform_colors,
)
from visattn.pipelines.explained_targets import (
    Targets,
    arguments_of_methods,
    is_list,
    targets_per_image,
)
from visattn.pipelines.inputs import (
    PreparedImages,
    prepare_images,
    transform_images,
)
from visattn.pipelines.scanpath import glimpses
from visattn.pipelines.tensors import ModelInput, list_inputs, prepare_tensors, stack_inputs
from visattn.recording.feature_layers import find_module_name
from visattn.recording.model_config import ClassNames, parse_image_size
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap, empty_map_reason
from visattn.results.info import MapInfo

SEQUENCE_METHODS = (*WORD_METHODS, "glimpses")
"""Names of the methods with several maps per image."""


def sequence_methods(model: nn.Module) -> list[str]:
    """Return the methods of a captioner or of a glimpse model; none for others."""
    if isinstance(model, Captioner):
        return list(WORD_METHODS)
    return ["glimpses"] if isinstance(model, RecurrentAttentionModel) else []


def sequence_maps(
    model: nn.Module,
    images: list[ImageLike],
    method: str,
    options: Mapping[str, Any],
    method_args: Mapping[str, Any],
) -> list[AttentionMap]:
    """Return the maps `[t, y, x]` of each image, one of the `sequence_methods` of the model."""
    if isinstance(model, Captioner):
        maps = WORD_METHODS[method](model, images, **options, **method_args)
    else:
        maps = [scan.maps for scan in glimpses(model, images, **options, **method_args)]
    common = MapInfo(method, dict(method_args))
    return [
        replace(m, info=m.info | replace(common, empty=empty_map_reason(m.values))) for m in maps
    ]


class Explainer:
    """Explains a model with several methods on images that are prepared once.

    Args:
        model: A classifier of visattn, timm, torchvision or Hugging Face, or any other network; of
            one that `visattn.load` returned, its preprocessing and class names are used, and of a
            vision-language model its vision tower. Or a result of `analyze_model`, which is then
            not repeated.
        img_size: Height and width of its input, or both in one number; by default that of the
            transform, or the one that the model states.
        class_names: Names of the classes, in their order or by index, of a model without names.
        transform: Preprocessing by steps of torchvision or timm, or an image processor of
            transformers; by default that of the model.
        resize_mode: `crop`, `squash` or `pad`, in place of the preprocessing of the model.
        dense: Whether a pixel, region, box, query or token is explained. The model is then not
            probed, and the whole of each image is shown to it: padded, or as it is to a detector
            that resizes images itself. `explain` does so by itself for such a target.
        text: For a model of images and texts (CLIP, SigLIP), one text to explain, or several.
        processor: Processor or tokenizer of such a model in memory; without texts, the image
            processor of any model of transformers, whose preprocessing is then used.

        mean: Mean of each channel, or of all, that images are normalized with, in place of that of
            the model; in the unit of their values, which of 8 and 16 bits are 0 to 1.
        std: Standard deviation of each channel, or of all; with `mean`.

    Raises:
        ValueError: If an analyzed model and class names are passed, or texts and class names.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> explainer = Explainer(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))
        >>> batch = explainer.prepare(np.full((60, 80, 3), 90, np.uint8))
        >>> for method in ("input_gradient", "gradcam++"):
        ...     [heatmap] = explainer.map(batch, method, "dog")
        ...     print(heatmap.info.method, heatmap.geometry.image_size)
        input_gradient (60, 80)
        gradcam++ (60, 80)
    """

    def __init__(
        self,
        model: nn.Module | Subject,
        *,
        img_size: int | tuple[int, int] | None = None,
        class_names: ClassNames | None = None,
        transform: Any = None,
        resize_mode: ResizeMode | None = None,
        dense: bool = False,
        text: str | Sequence[str] | None = None,
        processor: Any = None,
        mean: ChannelNumbers | None = None,
        std: ChannelNumbers | None = None,
    ) -> None:
        if processor is not None and text is None:
            transform = _image_processor(processor, transform)
        self._passed = {
            "model": model, "img_size": img_size, "class_names": class_names,
            "transform": transform, "resize_mode": resize_mode,
            "mean": mean, "std": std,
        }  # fmt: skip
        self.text = text
        if text is not None:
            _refuse_arguments("text=", class_names)
            network = model if isinstance(model, nn.Module) else model.model
            texts = [text] if isinstance(text, str) else text
            model = text_classifier(network, texts, processor)
        if isinstance(model, Subject) and class_names is not None:
            raise ValueError("an analyzed model has its class names already, got class_names too")
        own_transform = None
        if isinstance(model, nn.Module):
            loaded = loaded_with(model)
            class_names = class_names or loaded.class_names or None
            model, own_transform = image_model(model), image_transform(loaded)
        if transform is not None:
            transform = followed_transform(transform)
        elif img_size is None and resize_mode is None:
            transform = own_transform
        self._explained = model if isinstance(model, Subject) else None
        self.model = model.model if isinstance(model, Subject) else model
        self.class_names = class_names
        self.img_size = img_size
        self.transform = transform
        self.resize_mode: ResizeMode | None = resize_mode
        self.dense = dense
        self._colors: Colors | None = None
        self._subjects: dict[Any, Subject] = {}
        if transform is None and own_transform is not None:  # only its size is replaced
            self._colors = Colors(*transform_colors(own_transform))
        if mean is not None or std is not None:
            self._colors = passed_colors(self.model, mean, std)
            if transform is not None:
                self.transform = recolored(transform, self._colors)
        if dense and transform is None and resize_mode is None:
            self.transform, self.resize_mode = whole_image_preprocessing(self.model, img_size)

    def analyze(self, batch: PreparedImages | None = None) -> Subject:
        """Return the model with its metadata, at the size of prepared images if there are any.

        It is analyzed once for each size of its images.

        Raises:
            ValueError: If the model does not run on images of that size.
        """
        if batch is not None:
            return self._at_size(_image_size(batch), batch.inputs.shape[1])
        return self._at_size(self.img_size, None if self._colors is None else self._colors.count)

    def _at_size(self, size: int | tuple[int, int] | None, channels: int | None) -> Subject:
        """Return the model with its metadata for images of a size and a number of channels."""
        if self.dense:
            model = self._explained or self.model
            return self._colored(describe_at_size(model, size, self.class_names, channels))
        if self._explained is None:
            return self._colored(self._subject(size, channels))
        own = self._explained.info  # its colors may come from elsewhere than the model
        same = channels in (None, len(own.mean))
        if same and (size is None or parse_image_size(size) == own.input_size):
            return self._colored(self._explained)
        explained = self._subject(size, channels)
        if not same:
            return self._colored(replace(explained, class_names=self._explained.class_names))
        info = replace(explained.info, mean=own.mean, std=own.std, colors=own.colors)
        info = replace(info, preprocessing_error=own.preprocessing_error)
        explained = replace(explained, info=info, class_names=self._explained.class_names)
        return self._colored(explained)

    def _subject(self, size: int | tuple[int, int] | None, channels: int | None) -> Subject:
        """Return the model, analyzed once for each size and number of channels of its images."""
        key = None if size is None else parse_image_size(size), channels
        if key not in self._subjects:
            names = self.class_names if self._explained is None else None
            subject = analyze_model(self.model, size, names, channels)
            own = subject.info.input_size, len(subject.info.mean)
            self._subjects[key] = self._subjects.setdefault(own, subject)
        return self._subjects[key]

    def _colored(self, explained: Subject) -> Subject:
        """Return an analyzed model with the mean and std of this explainer."""
        if self._colors is None or self._colors.count not in (None, len(explained.info.mean)):
            return explained
        return self._colors.of(explained)

    def prepare(
        self,
        images: Iterable[ImageLike] | ImageLike,
        *,
        originals: Iterable[ImageLike] | ImageLike | None = None,
    ) -> PreparedImages:
        """Return images as the model takes them, with the geometry back to the originals.

        Args:
            images: As for `explain`.
            originals: As for `explain`.

        Raises:
            ImageError: If an image cannot be read.
            ValueError: If the transform gives images of another size than `img_size`.
        """
        images = list_inputs(images, originals)
        if isinstance(images[0], ModelInput):
            batch = stack_inputs(images)
            explained = self._at_size((batch.shape[2], batch.shape[3]), batch.shape[1])
            return prepare_tensors(explained, images, self._passed["transform"])
        if self.transform is None:
            return prepare_images(self.analyze(), images, resize_mode=self.resize_mode)
        batch = transform_images(self.model, images, self.transform, resize_mode=self.resize_mode)
        if self.img_size is not None and parse_image_size(self.img_size) != _image_size(batch):
            height, width = _image_size(batch)
            raise ValueError(
                f"the transform gives images of {height} x {width} pixels, but img_size is "
                f"{self.img_size!r}: pass only one of them"
            )
        return batch

    def methods(self, target: TargetLike | DenseTarget = None) -> list[str]:
        """Return the names of the methods that fit the model.

        Args:
            target: What will be explained, as for `explain`.
        """
        own = sequence_methods(self.model)
        if isinstance(self.model, Captioner):
            return own
        return [*own, *supported_methods(self.analyze(), target)]

    def check(
        self, method: str, target: TargetLike | DenseTarget = None, **method_args: Any
    ) -> None:
        """Refuse a method that does not fit the model, or arguments that it does not take.

        Raises:
            ValueError: With the reason and what fits.
        """
        chosen = get_method(method)
        self._check(self._suited(chosen, target), chosen, target, method_args)

    def explain(
        self,
        images: Iterable[ImageLike] | ImageLike,
        method: str | Sequence[str] = "auto",
        target: Targets = None,
        *,
        originals: Iterable[ImageLike] | ImageLike | None = None,
        batch_size: int = 16,
        **method_args: Any,
    ) -> list[Any]:
        """Return the maps of each image; arguments as for `visattn.explain`.

        Raises:
            ImageError: If an image cannot be read.
            ValueError: If the method does not fit.
        """
        listed = list_inputs(images, originals)
        names = [method] if isinstance(method, str) else method
        names = [self._named(name, listed, target, "layer" in method_args) for name in names]
        methods = arguments_of_methods(names[0] if isinstance(method, str) else names, method_args)
        own = [name for name in methods if name in sequence_methods(self.model)]
        maps: dict[str, list[Any]] = {}
        if self.text is not None:
            _refuse_arguments("text=", target)
            for name, arguments in methods.items():
                of_texts = self._maps_of_texts(listed, name, batch_size, arguments)
                report_empty([each for of_text in of_texts for each in of_text], name)
                single = isinstance(self.text, str)
                stacked = stack_texts(of_texts, self.analyze().class_names)
                maps[name] = of_texts[0] if single else stacked
        else:
            for name in own:
                maps[name] = self._sequence_maps(listed, name, target, batch_size, methods[name])
            others = {name: methods[name] for name in methods if name not in own}
            of_targets = self._maps(listed, others, target, batch_size) if others else {}
            for name, rows in of_targets.items():
                maps[name] = rows if is_list(target) else [each for [each] in rows]
            for name, rows in maps.items():
                flat = [each if isinstance(each, list) else [each] for each in rows]
                report_empty([each for row in flat for each in row], name)
        if isinstance(method, str):
            return maps[names[0]]
        return [list(of_image) for of_image in zip(*(maps[name] for name in methods), strict=True)]

    def map(
        self,
        batch: PreparedImages,
        method: str,
        target: TargetLike | DenseTarget = None,
        **method_args: Any,
    ) -> list[AttentionMap]:
        """Return one map for each prepared image; arguments as for `explain`.

        Raises:
            ValueError: If the method does not fit.
        """
        explained, chosen, options = self._checked(batch, method, target, method_args)
        return compute_maps(explained, batch, chosen, target, options)

    def _named(self, name: str, images: list[Any], target: Targets, layered: bool) -> str:
        """Return the name of a method in the table, or the method that fits if it is `auto`."""
        if name != "auto":
            return find_name(name, (*METHODS, *SEQUENCE_METHODS))
        if own := sequence_methods(self.model):
            return own[0]
        first = targets_per_image(target, len(images))[0][0]
        if isinstance(first, DenseTarget):
            return "attention" if isinstance(first, QueryTarget) else "gradcam"
        explained = self.analyze(self.prepare(images[:1]))
        fitting = supported_methods(explained, first)
        return default_method(fitting, of_texts=self.text is not None, layered=layered)

    def _suited(self, method: Method, target: Any, batch: PreparedImages | None = None) -> Subject:
        """Return the model with the metadata that a method needs for a target."""
        explained = self.analyze(batch)
        if self.dense and method.of_query(target):  # it was described without a run
            info = explained.info
            probed = self._subject(info.input_size, len(info.mean)).info
            info = replace(info, query_layers=probed.query_layers)
            return replace(explained, info=info)
        return explained

    def _checked(
        self, batch: PreparedImages, method: str, target: Any, method_args: Mapping[str, Any]
    ) -> tuple[Subject, Method, dict[str, Any]]:
        """Return model, method and its arguments for prepared images, after checking them."""
        chosen = get_method(method)
        explained = self._suited(chosen, target, batch)
        options = dict(method_args)
        if isinstance(options.get("layer"), nn.Module):
            options["layer"] = find_module_name(self.model, options["layer"])
        self._check(explained, chosen, target, options)
        if self.dense and chosen.needs == "features" and "layer" not in options:
            explained = with_bottleneck(explained)
        return explained, chosen, options

    def _maps(
        self,
        images: list[Any],
        methods: Mapping[str, Mapping[str, Any]],
        target: Targets,
        batch_size: int,
    ) -> dict[str, list[list[AttentionMap]]]:
        """Return for each method the maps of each image, one for each of its targets."""
        for name in methods:
            _check_method_name(name, self.model)
        targets = targets_per_image(target, len(images))
        dense = any(isinstance(each, DenseTarget) for row in targets for each in row)
        suited = {
            name: self._for_dense(name) if dense and not self.dense else self for name in methods
        }
        for name, explainer in suited.items():
            # With a transform the size of the input is known with the first batch; `map` checks.
            if explainer.transform is None and not isinstance(images[0], ModelInput):
                explainer.check(name, targets[0][0], **methods[name])
        maps: dict[str, list[list[AttentionMap]]] = {name: [] for name in methods}
        step = 1 if dense else batch_size  # coordinates belong to one photo
        known = self.transform is None and not isinstance(images[0], ModelInput)
        if known and step > 1 and len(images) > 1 and not self.analyze().independent:
            step = 1
        for start in range(0, len(images), step):
            chosen = slice(start, start + step)
            prepared: dict[Explainer, PreparedImages] = {}
            for name, explainer in suited.items():
                if explainer not in prepared:
                    prepared[explainer] = explainer.prepare(images[chosen])
                maps[name] += explainer.map_targets(
                    prepared[explainer], name, targets[chosen], batch_size, **methods[name]
                )
        return maps

    def map_targets(
        self,
        batch: PreparedImages,
        method: str,
        targets: Sequence[Sequence[Any]],
        batch_size: int = 16,
        **method_args: Any,
    ) -> list[list[AttentionMap]]:
        """Return for each prepared image a map of each of its targets, empty ones included.

        Classes share the passes of the model: class activation maps take one pass per image; for
        other methods an image is copied for each of its classes.

        Args:
            batch: The images.
            method: Name of the method; one that explains no class computes one map per image.
            targets: Targets of each image.
            batch_size: Images per pass.
            method_args: Arguments of the method.

        Raises:
            ValueError: If the method does not fit.
        """
        first = targets[0][0]
        alike = all(len(row) == 1 and row[0] is first for row in targets)
        chosen = get_method(method)
        if alike or not (chosen.needs_target or chosen.of_query(first)):
            single = first if alike else None
            maps = self.map(batch, method, single, **method_args)
            return [[each] * len(row) for each, row in zip(maps, targets, strict=True)]
        are_classes = all(isinstance(each, int | str) for row in targets for each in row)
        if are_classes and hasattr(get_method(method).function, OF_TARGETS):
            # Images with fewer classes than others repeat their last one.
            count = max(map(len, targets))
            classes = [[row[min(i, len(row) - 1)] for row in targets] for i in range(count)]
            explained, chosen, options = self._checked(batch, method, classes[0], method_args)
            by_class = compute_class_maps(explained, batch, chosen, classes, options)
            return [[by_class[i][n] for i in range(len(row))] for n, row in enumerate(targets)]
        pairs = [(image, each) for image, row in enumerate(targets) for each in row]
        groups: dict[object, list[int]] = {}
        for position, (_, target) in enumerate(pairs):
            key = "classes" if isinstance(target, int | str) else id(target)
            groups.setdefault(key, []).append(position)
        made: dict[int, AttentionMap] = {}
        for key, positions in groups.items():
            for start in range(0, len(positions), batch_size):
                part = positions[start : start + batch_size]
                of_copies = [pairs[position][1] for position in part]
                of_batch: Any = of_copies if key == "classes" else of_copies[0]
                copies = batch.select([pairs[position][0] for position in part])
                maps = self.map(copies, method, of_batch, **method_args)
                made |= zip(part, maps, strict=True)
        numbered = iter(range(len(pairs)))
        return [[made[next(numbered)] for _ in row] for row in targets]

    def _for_dense(self, method: str) -> "Explainer":
        """Return an explainer of a pixel, box or query: attention is that of an analyzed model."""
        options = dict(self._passed)
        if METHODS[method].needs != "tokens":
            return Explainer(**options, dense=True)
        if options["transform"] is None:
            options["resize_mode"] = options["resize_mode"] or "pad"
        return Explainer(**options)

    def _maps_of_texts(
        self,
        images: list[Any],
        method: str,
        batch_size: int,
        method_args: Mapping[str, Any],
    ) -> list[list[AttentionMap]]:
        """Return for each text, which is a class of the model, a map of each image."""
        texts = range(len(self.analyze().class_names))
        rows: list[list[AttentionMap]] = []
        for start in range(0, len(images), batch_size):
            batch = self.prepare(images[start : start + batch_size])
            targets = [texts] * len(batch.originals)
            rows += self.map_targets(batch, method, targets, batch_size, **method_args)
        return [list(of_text) for of_text in zip(*rows, strict=True)]

    def _sequence_maps(
        self,
        images: list[Any],
        method: str,
        target: object,
        batch_size: int,
        method_args: Mapping[str, Any],
    ) -> list[AttentionMap]:
        """Return the maps of each image that its words or glimpses have."""
        passed = (self._passed[name] for name in ("transform", "img_size", "class_names"))
        _refuse_arguments(method, target, *passed)
        if isinstance(images[0], ModelInput):
            reason = "takes photos, which the model prepares itself, got tensors"
            raise ValueError(f"{method} {reason}")  # noqa: TRY004 (of the images)
        options: dict[str, Any] = {"batch_size": batch_size}
        if self.resize_mode is not None:
            options["resize_mode"] = self.resize_mode
        return sequence_maps(self.model, images, method, options, method_args)

    def _check(
        self,
        explained: Subject,
        method: Method,
        target: TargetLike | DenseTarget,
        method_args: Mapping[str, Any],
    ) -> None:
        method.check_args(method_args, target)
        if not (reason := method.supports(explained, target, method_args)):
            return
        of = f" with a {type(target).__name__}" if isinstance(target, DenseTarget) else ""
        # of this size of images: the model may not run on another
        fitting = [*sequence_methods(self.model), *supported_methods(explained, target)]
        raise ValueError(
            f"{method.name} does not fit {explained.info.name}{of}: {reason}; supported "
            f"methods: {', '.join(fitting)}"
        )


def explain(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    method: str | Sequence[str] = "auto",
    target: Targets = None,
    *,
    originals: Iterable[ImageLike] | ImageLike | None = None,
    img_size: int | tuple[int, int] | None = None,
    class_names: ClassNames | None = None,
    transform: Any = None,
    resize_mode: ResizeMode | None = None,
    batch_size: int = 16,
    text: str | Sequence[str] | None = None,
    processor: Any = None,
    **method_args: Any,
) -> list[Any]:
    """Return attribution or attention maps of a model on images, placed on the originals.

    The model may come from visattn, timm, torchvision, Hugging Face or elsewhere; `methods_for`
    lists the methods that fit. Its training mode, gradients and the random state are restored.
    With lists, images are prepared once, and classes share the passes of the model.

    Captioners have the methods `words` (attention of each word) and `word_gradcam`, glimpse models
    also `glimpses`; these return one map per word or glimpse.

    Args:
        model: Model to explain.
        images: One image or several: files, bytes, PIL images or arrays `[y, x, c]`, of any size;
            also of other channels than photos, for a model that takes as many; or folders,
            archives, tables and URLs, of which all photos are explained. Or a tensor
            `[b, c, y, x]`, `[c, y, x]` or a list of these, which is the input of the model as it
            is, as a DataLoader gives it.
        method: Name of a method in `visattn.attribution.METHODS` in any spelling (`gradcam`,
            `Grad-CAM`), or a list of names. `auto` is rollout where the model has attention that
            can be rolled out, else Grad-CAM; words of a captioner, glimpses of a glimpse model.
        target: Class index or name; a `PixelTarget`, `RegionTarget`, `BoxTarget`, `QueryTarget` or
            `TokenTarget` of a segmentation or detection model; or a function from the output of
            the model, whatever it is, to one number per image; None for the predicted class. A list
            of these is explained on every image; a list of lists has those of each image. A tensor
            holds the class of each image.
        originals: The photos that tensors were made of, on which maps are then placed; without
            them a map lies on its tensor.
        img_size: Height and width of the input, or both in one number; by default that of the
            transform, or the one that the model states.
        class_names: Names of the classes, in their order or by index, of a model without names.
        transform: Preprocessing by steps of torchvision or timm, or an image processor of
            transformers; by default that of the model. With `originals`, the steps that led from
            these to the tensors; also a `ResizeSpec` or a `Geometry`.
        resize_mode: How images get the shape of the input: central `crop`, `squash`, or `pad`.
        batch_size: Images per batch.
        text: For a model of images and texts (CLIP, SigLIP), one text to explain, or several.
        processor: Processor or tokenizer of such a model in memory; without texts, the image
            processor of any model of transformers, whose preprocessing is then used.
        method_args: Arguments of the method; of several methods, those that have them. `layer` is
            the index of an attention layer, or any module of the model or its name;
            `layer4.2.relu#2` is the second call of `layer4.2.relu`.

    Returns:
        `maps[image]`, each a map `[y, x]`, or `[t, y, x]` for a list of texts. A list of methods or
        of targets adds an axis: `maps[image][method][target]`. A method that explains no class has
        the same map for all targets, computed once. `info` of a map holds method,
        options, target (class index), class (its name), score, `scores` (key of the class scores
        in the output; `assumed` if features could be computed alike), model, `layer` and its `run`
        if there is one, `signed`, and `preprocessing`: size, mean, std, and as `source` where these
        come from. A map that is zero everywhere or not finite is returned, too: `info.empty` is
        the reason, and their number is reported on stderr.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If a method, argument, layer or class does not exist, the method does not fit
            the model, or the model does not run on images of that size.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
        >>> [heatmap] = explain(model, np.full((60, 80, 3), 90, np.uint8), "input_gradient", "dog")
        >>> heatmap.values.shape, heatmap.geometry.image_size, heatmap.info.class_name
        (torch.Size([32, 32]), (60, 80), 'dog')
        >>> photos = [np.full((60, 80, 3), gray, np.uint8) for gray in (20, 90, 160)]
        >>> maps = explain(model, photos, ["gradcam++", "occlusion"], ["cat", "dog"],
        ...                stride=4)
        >>> len(maps), len(maps[0]), len(maps[0][0]), maps[2][1][0].info.class_name
        (3, 2, 2, 'cat')

    Source:
        Each method names its paper in `METHODS`.
    """
    explainer = Explainer(
        model,
        img_size=img_size, class_names=class_names, transform=transform, resize_mode=resize_mode,
        text=text, processor=processor,
    )  # fmt: skip
    options = {"originals": originals, "batch_size": batch_size}
    return explainer.explain(images, method, target, **options, **method_args)


def methods_for(
    model: nn.Module,
    *,
    img_size: int | tuple[int, int] | None = None,
    target: Target | None = None,
) -> list[str]:
    """Return the names of the methods that fit a model.

    Args:
        model: Model to explain.
        img_size: Height and width of its input, or both in one number; None for what it states.
        target: A function of the output, if one will be passed: then class scores are not needed.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> methods_for(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))[:3]
        ['gradcam', 'gradcam++', 'layercam']
    """
    return Explainer(model, img_size=img_size).methods(target)


def _image_size(batch: PreparedImages) -> tuple[int, int]:
    return batch.inputs.shape[2], batch.inputs.shape[3]


def _check_method_name(name: str, model: nn.Module) -> None:
    names = [*METHODS, *SEQUENCE_METHODS]
    if name not in names:
        raise ValueError(f"there is no method {name!r}; {did_you_mean(name, names)}")
    if isinstance(model, Captioner) or name not in METHODS:
        raise ValueError(
            f"{name} does not fit a {type(model).__name__}; supported methods: "
            f"{', '.join(methods_for(model))}"
        )


def _refuse_arguments(method: str, *arguments: Any) -> None:
    if any(argument is not None for argument in arguments):
        raise ValueError(
            f"{method} explains the output of the model on images that the model prepares itself: "
            "it takes no target, transform, img_size or class_names"
        )


def _image_processor(processor: Any, transform: Any) -> Any:
    """Return a processor that was passed without texts, as the transform."""
    if transform is not None:
        raise ValueError("transform= and processor= both prepare images: pass only one of them")
    if not is_image_processor(processor):
        raise ValueError(
            "processor= must be an image processor of transformers, or belong to text=, got "
            f"{type(processor).__name__}; steps of torchvision or timm are passed as transform="
        )
    return processor
