"""Maps of any model by any method, placed on the photos.

model ----------> Subject: analyzed once for each size of its images
photos ---------> Preprocessing --> inputs [b c y x], a geometry for each
method, target -> METHODS[name].function(subject, inputs, target, layers=...) --> grid [b y x]
grid, geometry -> AttentionMap
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, get_args
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from visattn.attribution.dense_targets import QueryTarget
from visattn.attribution.methods import (
    METHODS,
    Method,
    default_method,
    find_name,
    get_method,
    supported_methods,
)
from visattn.attribution.targets import DenseTarget, Target, TargetLike
from visattn.images.reader import ImageLike
from visattn.images.resize import ResizeMode
from visattn.io.messages import own_name
from visattn.models.backbones.huggingface import (
    image_model,
    image_transform,
)
from visattn.pipelines.attribution_maps import compute_maps, report_empty, stack_texts
from visattn.pipelines.inputs import (
    ChannelNumbers,
    ModelInput,
    PreparedImages,
    list_inputs,
    prepare_photos,
    prepare_tensors,
    preprocessing_of,
)
from visattn.recording.feature_layers import bottleneck_layer, find_module_name
from visattn.recording.frozen import unwrapped
from visattn.recording.model_config import ClassNames, forward_function
from visattn.recording.subject import Subject, analyze_model, describe_model
from visattn.results.attention_map import AttentionMap, empty_map_reason
from visattn.results.info import MapInfo
from visattn.results.kinds import WordMethod

Targets = int | str | Target | DenseTarget | Sequence[Any] | Tensor | None
"""Targets of `explain`: one for all images, a list for all images, or a list per image."""


def explain(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    method: str | Sequence[str] = "auto",
    target: Targets = None,
    *,
    originals: Iterable[ImageLike] | ImageLike | None = None,
    input_size: int | tuple[int, int] | None = None,
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
    With lists, images are prepared once.

    Captioners have the methods of `visattn.caption`, and glimpse models `glimpses`, too; these
    return one map per word or glimpse.

    Args:
        model: Model to explain.
        images: One image or several: files, bytes, PIL images or arrays `[y, x, c]` of any size,
            with as many channels as the model takes; or folders, archives and URLs, whose
            photos are all explained; or a tensor `[b, c, y, x]`, `[c, y, x]` or a list of these,
            which is passed to the model as it is, such as a batch of a DataLoader.
        method: Name of a method in `visattn.attribution.METHODS` in any spelling (`gradcam`,
            `Grad-CAM`), or a list of names. `auto` is rollout where the model has attention that
            can be rolled out, else Grad-CAM; words of a captioner, glimpses of a glimpse model.
        target: Class index or name; a `PixelTarget`, `RegionTarget`, `BoxTarget` or
            `QueryTarget` of a segmentation or detection model; or a function from the output of
            the model, whatever it is, to one number per image; None for the predicted class. A list
            of these is explained on every image; a list of lists has those of each image. A tensor
            has the class of each image.
        originals: The photos that tensors were made from, on which maps are then placed; without
            them, maps refer to the tensor.
        input_size: Height and width of the input, or both in one number; by default that of the
            transform or of the model's configuration.
        class_names: Names of the classes, in their order or by index, of a model without names.
        transform: Preprocessing by steps of torchvision or timm, or an image processor of
            transformers; by default that of the model. With `originals`, the steps that led from
            these to the tensors; also a `ResizeSpec` or a `Geometry`.
        resize_mode: How images get the shape of the input: central `crop`, `squash`, or `pad`; by
            default as in the training of a model of visattn that was loaded, else `crop`.
        batch_size: Images per batch.
        text: For a model of images and texts (CLIP, SigLIP), one text to explain, or several.
        processor: Processor or tokenizer of such a model in memory; without texts, the image
            processor of any model of transformers, whose preprocessing is then used.
        method_args: Arguments of the method; of several methods, those that have them. `layers`
            is the index of a layer, or any module of the model or its name; `layer4.2.relu#2` is
            the second call of `layer4.2.relu`. Of several layers or `heads`, attention is the mean;
            class activation maps and gates are those of one layer.

    Returns:
        `maps[image]`, each a map `[y, x]`, or `[t, y, x]` for a list of texts. A list of methods or
        of targets adds an axis: `maps[image][method][target]`. A method that explains no class has
        the same map for all targets, computed once. `info` of a map holds method,
        options, target (class index), class_name, score, probability, model, `layer`, `signed`;
        `info.more` has `scores` (key of the class scores in the output; `assumed` if features could
        look the same), the `run` of the layer if it is called several times, and `preprocessing`:
        size, mean, std, and their `source`. Maps that are zero everywhere or not finite are
        returned too: `info.empty` is the reason, and their number is reported on stderr.

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
        input_size=input_size, class_names=class_names, transform=transform,
        resize_mode=resize_mode,
        text=text, processor=processor,
    )  # fmt: skip
    options = {"originals": originals, "batch_size": batch_size}
    return explainer.explain(images, method, target, **options, **method_args)


def methods_for(
    model: nn.Module,
    *,
    input_size: int | tuple[int, int] | None = None,
    target: Target | None = None,
) -> list[str]:
    """Return the names of the methods that fit a model.

    Args:
        model: Model to explain.
        input_size: Height and width of its input, or both in one number; None for the model's own.
        target: A function of the output, if one will be passed; then class scores are not needed.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> methods_for(AttentionResNet(("cat", "dog"), depth=8, stem_width=4))[:3]
        ['gradcam', 'gradcam++', 'layercam']
    """
    return Explainer(model, input_size=input_size).methods(target)


class Explainer:
    """A model to explain repeatedly; it is analyzed once per image size.

    Args:
        model: A classifier of visattn, timm, torchvision or Hugging Face, or any other network; of
            one that `visattn.load` returned, its preprocessing and class names are used, and of a
            vision-language model its vision tower.
        input_size: As for `explain`.
        class_names: As for `explain`.
        transform: As for `explain`.
        resize_mode: As for `explain`.
        dense: Whether a pixel, region, box, query or token is explained. The model then gets the
            whole image: padded, or unchanged for a detector that resizes images itself. `explain`
            does this automatically for such a target.
        text: As for `explain`.
        processor: As for `explain`.
        mean: Mean of each channel, or of all, that images are normalized with, in place of that of
            the model; in the unit of the pixel values, which are 0 to 1 for images of 8 and 16
            bits.
        std: Standard deviation of each channel, or of all; with `mean`.

    Raises:
        ValueError: If arguments contradict each other or the model.

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
        model: nn.Module,
        *,
        input_size: int | tuple[int, int] | None = None,
        class_names: ClassNames | None = None,
        transform: Any = None,
        resize_mode: ResizeMode | None = None,
        dense: bool = False,
        text: str | Sequence[str] | None = None,
        processor: Any = None,
        mean: ChannelNumbers | None = None,
        std: ChannelNumbers | None = None,
    ) -> None:
        model = unwrapped(model)
        if text is not None:
            from visattn.models.backbones.text_models import text_classifier  # slow to import

            _refuse_arguments("text=", class_names)
            model = text_classifier(model, [text] if isinstance(text, str) else text, processor)
        elif processor is not None:
            if transform is not None:
                raise ValueError("transform= and processor= prepare images: pass only one of them")
            transform = processor
        self.text, self.dense = text, dense
        self.model, self.class_names, own_transform = model, class_names or None, None
        if (loaded := getattr(model, "visattn_loaded", None)) is not None:
            self.model, own_transform = image_model(model), image_transform(loaded)
            self.class_names = class_names or loaded.class_names or None
        self._passed = transform, input_size, class_names
        self._preprocessing = preprocessing_of(
            self.model, own_transform, input_size, transform, resize_mode, mean, std
        )
        self._subjects: dict[Any, Subject] = {}
        # By attributes, so that explaining other models does not import those of visattn.
        self._own = ["glimpses"] if hasattr(self.model, "glimpse_net") else []
        self._captions = hasattr(self.model, "teacher_force")
        if self._captions:
            self._own = list(get_args(WordMethod))

    def analyze(self, batch: PreparedImages | None = None) -> Subject:
        """Return the model with its metadata, at the size of prepared images if there are any.

        It is analyzed once per image size; with `dense`, without running it.

        Raises:
            ValueError: If the model does not run on images of that size.
        """
        return self._subject(None if batch is None else batch.inputs, described=self.dense)

    def _subject(self, inputs: Tensor | None, *, described: bool) -> Subject:
        """Return the model, analyzed for the size of the inputs; with `described`, not run."""
        made = self._preprocessing
        named = len(made.mean) if isinstance(made.mean, Sequence) else None
        size, channels = made.size, named
        if inputs is not None:
            size, channels = (inputs.shape[2], inputs.shape[3]), inputs.shape[1]
        key = size, channels, described
        if key not in self._subjects:
            make = describe_model if described else as_subject
            subject = make(self.model, size, self.class_names, channels)
            count = len(subject.info.mean)
            own = subject.info.input_size, count, described
            if made.mean is not None and made.std is not None and named in (None, count):
                mean, std = (
                    (e,) * count if isinstance(e, float | int) else tuple(e)
                    for e in (made.mean, made.std)
                )
                colors = {"mean": mean, "std": std, "colors": made.source}
                info = replace(subject.info, preprocessing_error="", **colors)
                subject = replace(subject, info=info)
            self._subjects[key] = self._subjects.setdefault(own, subject)
        return self._subjects[key]

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
            ValueError: If a step of a transform is not supported.
        """
        return self._prepare(list_inputs(images, originals), dense=self.dense)

    def _prepare(self, listed: list[Any], *, dense: bool) -> PreparedImages:
        if isinstance(listed[0], ModelInput):
            subject = self._subject(listed[0].tensor[None], described=dense)
            return prepare_tensors(subject, listed, self._preprocessing.transform)
        passed = self._preprocessing.whole(self.model) if dense else self._preprocessing
        stated = None if passed.transform else self._subject(None, described=dense).info
        return prepare_photos(self.model, stated, listed, passed)

    def methods(self, target: TargetLike = None) -> list[str]:
        """Return the names of the methods that fit the model.

        Args:
            target: As for `explain`.
        """
        if self._captions:
            return self._own
        return [*self._own, *supported_methods(self.analyze(), target)]

    def check(self, method: str, target: TargetLike = None, **method_args: Any) -> None:
        """Check that a method fits the model and takes the arguments.

        Raises:
            ValueError: If not, with the reason and what fits.
        """
        self._checked(None, self._name(method), target, method_args)

    def _name(self, method: str) -> str:
        """Return the name of a method from any spelling.

        Raises:
            ValueError: If there is no such method, or it is for other models.
        """
        known = self._own if self._captions else [*METHODS, *self._own]
        name = find_name(method, known)
        if name not in known and (self._captions or name == "glimpses"):
            raise ValueError(
                f"{name} does not fit a {type(self.model).__name__}; supported methods: "
                f"{', '.join(self.methods())}"
            )
        return name if name in known else get_method(name).name

    def _checked(
        self,
        batch: PreparedImages | None,
        name: str,
        target: Any,
        method_args: Mapping[str, Any],
    ) -> tuple[Subject, dict[str, Any]]:
        """Return the model and the arguments of a method, after checking that they fit."""
        method, args = METHODS[name], dict(method_args)
        dense = isinstance(target, DenseTarget)
        # A dense model is probed only for its attention.
        described = (dense or self.dense) and method.needs != "tokens"
        subject = self._subject(None if batch is None else batch.inputs, described=described)
        known = method.default_kwargs
        if unknown := sorted({*args} - {*known}):
            listed = ", ".join(f"{name}={value!r}" for name, value in known.items())
            raise ValueError(
                f"{name} has no argument {unknown[0]!r}; it takes {listed or 'no arguments'}"
                f"{own_name(unknown[0])}"
            )
        if reason := method.supports(subject, target, args):
            of = f" with a {type(target).__name__}" if dense else ""
            # at this image size: the model may not run on another
            fitting = [*self._own, *supported_methods(subject, target)]
            raise ValueError(
                f"{name} does not fit {subject.info.name}{of}: {reason}; supported methods: "
                f"{', '.join(fitting)}"
            )
        if "layers" in args:
            args["layers"] = self._layers(args["layers"], method)
        if described and method.needs == "features" and "layers" not in args and batch is not None:
            info = replace(subject.info, feature_layers=(bottleneck_layer(subject),))
            subject = replace(subject, info=info)
        return subject, args

    def _layers(self, layers: Any, method: Method) -> Any:
        """Replace modules by their names; methods of one layer get a single layer."""
        listed = list(layers) if is_list(layers) else [layers]
        names = [
            find_module_name(self.model, each) if isinstance(each, nn.Module) else each
            for each in listed
        ]
        if len(names) > 1 and method.needs != "tokens":
            raise ValueError(
                f"{method.name} is the map of one layer, got {len(names)} layers; explain each, or "
                "use attention or gradient_attention, which are means over layers"
            )
        return names[0] if len(names) == 1 else names

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
        targets = targets_per_image(target, len(listed))
        if self.text is not None:
            _refuse_arguments("text=", target)
            count = 1 if isinstance(self.text, str) else len(self.text)
            targets = [list(range(count))] * len(listed)
        dense = self.dense or any(isinstance(each, DenseTarget) for row in targets for each in row)
        own = self._own
        names = [method] if isinstance(method, str) else list(method)
        names = [own[0] if own and name == "auto" else name for name in names]
        names = [name if name == "auto" else self._name(name) for name in names]
        first, step = None, batch_size
        if not {*names} <= {*own}:
            first = self._prepare(listed[:1], dense=dense)
            if "auto" in names:
                chosen = self._default(first, targets[0][0], method_args.get("layers"))
                names = [chosen if name == "auto" else name for name in names]
            if dense or (len(listed) > 1 and not self.analyze(first).independent):
                step = 1
        # With several methods, an argument goes to those that have it; one that none has is an
        # error.
        known = {n: method_args if n in own else METHODS[n].default_kwargs for n in names}
        arguments = {
            name: {
                key: value
                for key, value in method_args.items()
                if key in own_args or not any(key in each for each in known.values())
            }
            for name, own_args in known.items()
        }
        made: dict[str, list[list[AttentionMap]]] = {name: [] for name in names}
        for start in range(0, len(listed), step):
            part = listed[start : start + step]
            batch = first
            if first is not None and (start or len(part) > 1):
                batch = self._prepare(part, dense=dense)
            for name, rows in made.items():
                if batch is None or name in own:
                    maps = self._sequences(part, name, target, batch_size, arguments[name])
                    rows += [[each] for each in maps]
                else:
                    wanted = targets[start : start + step]
                    rows += self._rows(batch, name, wanted, arguments[name])
        of_method: dict[str, list[Any]] = {}
        for name, rows in made.items():
            if empty := [each for row in rows for each in row if each.info.empty]:
                report_empty(empty, sum(map(len, rows)), name)
            of_method[name] = list(rows) if is_list(target) else [row[0] for row in rows]
            if is_list(self.text):
                of_method[name] = [stack_texts(row, self.text) for row in rows]
        if isinstance(method, str):
            return of_method[names[0]]
        return [list(of_image) for of_image in zip(*of_method.values(), strict=True)]

    def map(
        self,
        batch: PreparedImages,
        method: str,
        target: TargetLike | Sequence[Any] = None,
        **method_args: Any,
    ) -> list[AttentionMap]:
        """Return one map for each prepared image; arguments as for `explain`.

        Raises:
            ValueError: If the method does not fit.
        """
        each = target if is_list(target) else [target] * len(batch.originals)
        rows = self._rows(batch, self._name(method), [[one] for one in each], method_args)
        return [made for [made] in rows]

    def _rows(
        self,
        batch: PreparedImages,
        name: str,
        targets: Sequence[Sequence[Any]],
        method_args: Mapping[str, Any],
    ) -> list[list[AttentionMap]]:
        """Return the maps of each prepared image, one per target, including empty ones.

        A method that explains no class computes one map per image.
        """
        first, method = targets[0][0], METHODS[name]
        subject, args = self._checked(batch, name, first, method_args)
        if not method.explains(first):
            same = first if all(each is first for row in targets for each in row) else None
            maps = compute_maps(subject, batch, method, same, args)
            return [[made] * len(row) for made, row in zip(maps, targets, strict=True)]
        rows: list[list[AttentionMap]] = [[] for _ in targets]
        for position in range(max(map(len, targets))):
            # Class targets of all images form one batch; other targets only if they are the same.
            alike: dict[object, list[int]] = {}
            for image, row in enumerate(targets):
                if position < len(row):
                    is_class = isinstance(row[position], int | str)
                    alike.setdefault("class" if is_class else id(row[position]), []).append(image)
            for kind, images in alike.items():
                wanted = [targets[image][position] for image in images]
                part = batch if len(images) == len(targets) else batch.select(images)
                target = wanted if kind == "class" else wanted[0]
                for image, made in zip(
                    images, compute_maps(subject, part, method, target, args), strict=True
                ):
                    rows[image].append(made)
        return rows

    def _default(self, batch: PreparedImages, target: Any, layers: Any) -> str:
        """Return the method for `auto`."""
        if isinstance(target, DenseTarget):
            return "attention" if isinstance(target, QueryTarget) else "gradcam"
        fitting = supported_methods(self.analyze(batch), target)
        count = 1 if isinstance(layers, int | str) else len(layers or ())
        return default_method(fitting, of_texts=self.text is not None, num_layers=count)

    def _sequences(
        self,
        images: list[Any],
        method: str,
        target: object,
        batch_size: int,
        method_args: Mapping[str, Any],
    ) -> list[AttentionMap]:
        """Return the maps `[t, y, x]` of the words or glimpses of each image."""
        _refuse_arguments(method, target, *self._passed)
        options = dict(method_args)
        if self._preprocessing.resize_mode is not None:
            options["resize_mode"] = self._preprocessing.resize_mode
        if self._captions:
            from visattn.pipelines.captioning import caption  # slow to import

            options |= {"method": method, "batch_size": batch_size}
            captions = caption(self.model, images, **options)
            said = (MapInfo(score=each.score, more={"caption": each.text}) for each in captions)
            pairs = zip(captions, said, strict=True)
            maps = [replace(each.maps, info=each.maps.info | info) for each, info in pairs]
        else:
            from visattn.pipelines.scanpath import glimpses

            maps = [scan.maps for scan in glimpses(self.model, images, **options)]
        common = MapInfo(method, dict(method_args))
        return [
            replace(m, info=m.info | replace(common, empty=empty_map_reason(m.values)))
            for m in maps
        ]


def as_subject(
    model: nn.Module,
    size: int | tuple[int, int] | None,
    class_names: ClassNames | None,
    channels: int | None,
) -> Subject:
    """Return a model with its analysis, which is cached until the model changes."""
    state, known = _ANALYZED.get(model, (None, {}))
    known = known if state is not None and state == _state(model) else {}
    key = size, channels, repr(class_names)
    if key not in known:
        subject = analyze_model(model, size, class_names, channels)
        known[key] = subject.info, subject.class_names, subject.measures
        _ANALYZED[model] = _state(model), known
        return subject
    info, names, measures = known[key]
    return Subject(model, info, forward_function(model), names, measures)


_ANALYZED: WeakKeyDictionary[nn.Module, tuple[Any, dict[Any, Any]]] = WeakKeyDictionary()
"""Analyses of explained models; holds no references to the models, which would keep them alive."""


_OF_ALL_MODULES = {*vars(nn.Module())}


def _state(model: nn.Module) -> list[Any]:
    """Return a value that changes with the model: attributes of its modules, and its tensors."""
    parts = (each for module in model.modules() for each in (module, vars(module).get("config")))
    owners = {id(each): each for each in parts if hasattr(each, "__dict__")}
    attributes = [
        (name, value if isinstance(value, str | int | float) else id(value))
        for each in owners.values()
        for name, value in [*vars(each).items()]  # other threads may add attributes
        if name not in _OF_ALL_MODULES
    ]
    tensors = [each for each in (*model.parameters(), *model.buffers()) if each.numel()]
    if any(each.is_inference() for each in tensors):  # inference tensors have no version counter
        return [object()]
    # Writing to `.data` changes values without the version counter.
    written = ((id(each), each._version, each[(-1,) * each.ndim].item()) for each in tensors)  # noqa: SLF001
    return [*attributes, *written]


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list of methods or targets.

    Example:
        >>> is_list(["dog"]), is_list("dog")
        (True, False)
    """
    return isinstance(value, Sequence) and not isinstance(value, str)


def targets_per_image(target: Targets, count: int) -> list[list[Any]]:
    """Return the targets of each image: a list applies to all images, a list of lists has one each.

    Raises:
        ValueError: If there is no target, or not one list per image.

    Example:
        >>> targets_per_image(["cat", "dog"], 2), targets_per_image([["cat"], ["dog"]], 2)
        ([['cat', 'dog'], ['cat', 'dog']], [['cat'], ['dog']])
    """
    if isinstance(target, Tensor):  # the labels of a batch
        rows: list[Any] = [[label] for label in target.tolist()]
    elif not is_list(target):
        rows = [[target]] * count
    else:
        rows = list(target) if any(map(is_list, target)) else [list(target)] * count
    if len(rows) != count or not all(is_list(row) and len(row) for row in rows):
        raise ValueError(
            "targets must be a list of classes, which are explained on every image, or a list of "
            f"such lists, one for each of {count} images; got {target!r}"
        )
    return rows


def _refuse_arguments(method: str, *arguments: Any) -> None:
    if any(argument is not None for argument in arguments):
        raise ValueError(
            f"{method} explains the output of the model on images that the model prepares itself: "
            "it takes no target, transform, input_size or class_names"
        )
