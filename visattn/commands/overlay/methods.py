"""Methods of `visattn overlay`, and their targets: classes, pixels, regions, boxes, queries."""

import argparse
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from visattn.commands.model_option import file_digest, load_explained_model
from visattn.commands.options import whole_number

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from visattn.attribution.methods import Method
    from visattn.attribution.targets import DenseTarget, Score
    from visattn.images.reader import LoadedImage
    from visattn.pipelines.explainer import Explainer
    from visattn.pipelines.inputs import PreparedImages
    from visattn.recording.subject import Subject
    from visattn.results.attention_map import AttentionMap
    from visattn.results.info import MapInfo


PREDICTED, BEST = "predicted", "best"
_OPTIONS = ("pixel", "region", "box", "query")


def add_dense_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a pixel, region, box or query; at most one is used."""
    group = parser.add_argument_group("what to explain of segmentation and detection models")
    group.add_argument(
        "--pixel",
        type=_numbers(2),
        metavar="X,Y",
        help="explain --class at a pixel of the photo, for segmentation models",
    )
    group.add_argument(
        "--region",
        metavar="FILE",
        help="explain --class on a region: an image of the size of the photo, not black in the "
        f"region; or {PREDICTED}: the region that is predicted as the class",
    )
    group.add_argument(
        "--box",
        type=_box,
        metavar="L,T,R,B",
        help="explain the detections of --class at a box: left, top, right, bottom in pixels of "
        f"the photo; or {BEST}: the box with the highest score",
    )
    group.add_argument(
        "--query",
        type=whole_number(0, 1_000_000),
        metavar="I",
        help="explain --class of a query of a DETR model, by its index from 0 (visattn detect "
        "draws where queries looked)",
    )


def dense_target(args: argparse.Namespace) -> "DenseTarget | None":
    """Return the target that the options select; None for a class of the whole photo.

    Args:
        args: Options of `visattn overlay`.

    Raises:
        FileNotFoundError: If the mask does not exist.
        ValueError: If several targets are selected, or a region has no class.
    """
    chosen = [name for name in _OPTIONS if getattr(args, name) is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        raise ValueError(f"--{chosen[0]} and --{chosen[1]} exclude each other: use one of them")
    from visattn.attribution.dense_targets import (
        BoxTarget,
        PixelTarget,
        QueryTarget,
        RegionTarget,
    )

    labels = class_targets(args, ())
    if len(labels) > 1:
        raise ValueError(
            f"--{chosen[0]} explains one class, got {len(labels)} behind --target: run the command "
            "for each of them"
        )
    label = labels[0] if labels else None
    if args.pixel is not None:
        return PixelTarget(label, *args.pixel)
    if args.box is not None:
        return BoxTarget(None if args.box == BEST else args.box, label)
    if args.query is not None:
        return QueryTarget(args.query, label)
    if args.region == PREDICTED:
        if label is None:
            raise ValueError(f"--region {PREDICTED} needs the class, --class NAME")
        return RegionTarget(label)
    return RegionTarget(label, _read_mask(Path(args.region)))


def check_one_photo(args: argparse.Namespace, count: int) -> None:
    """Refuse coordinates for several photos.

    Raises:
        ValueError: If there are several.
    """
    own = args.box is not None and args.box != BEST
    mask = args.region is not None and args.region != PREDICTED
    if count > 1 and (args.pixel is not None or own or mask or args.query is not None):
        raise ValueError(
            f"a pixel, box, mask or query belongs to one photo, got {count} photos; run the "
            f"command for each of them, or use --region {PREDICTED} or --box {BEST}"
        )


def dense_record(args: argparse.Namespace) -> dict[str, object]:
    """Return the selected target as plain values, by which a finished map is recognized.

    Args:
        args: Options of `visattn overlay`.
    """
    plain: dict[str, object] = {}
    for name in _OPTIONS:
        if (value := getattr(args, name)) is not None:
            plain[name] = list(value) if isinstance(value, tuple) else value
    if args.region not in (None, PREDICTED):
        plain["region_sha256"] = file_digest(Path(args.region))
    return plain


def _read_mask(file: Path) -> object:
    from visattn.images.reader import read_image

    if not file.is_file():
        raise FileNotFoundError(f"--region {file} does not exist; give an image, or {PREDICTED}")
    return read_image(file).pixels.any(-1)


def _numbers(count: int) -> Callable[[str], tuple[float, ...]]:
    def parse(text: str) -> tuple[float, ...]:
        try:
            numbers = tuple(float(part) for part in text.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) != count or not all(abs(number) < 1e9 for number in numbers):
            raise argparse.ArgumentTypeError(
                f"must be {count} numbers with commas between them, such as "
                f"{','.join(['120', '80', '300', '240'][:count])}; got {text!r}"
            )
        return numbers

    return parse


def _box(text: str) -> str | tuple[float, ...]:
    return text if text == BEST else _numbers(4)(text)


_TEXT = ".text"


@dataclass(frozen=True)
class MapSpec:
    """An attribution method with its arguments.

    Args:
        key: Part of file names.
        title: Heading on pages.
        method: Name of the method.
        method_args: Arguments of the method.
        target: Index of the explained class, if there are several; or of the text.
        suffix: End of the key that names the target.
    """

    key: str
    title: str
    method: str
    method_args: Mapping[str, Any] = field(default_factory=dict)
    target: int | None = None
    suffix: str = ""

    @property
    def method_key(self) -> str:
        """The key without that of the target."""
        return self.key.removesuffix(self.suffix)

    @property
    def scale_key(self) -> str:
        """Maps with the same key are drawn on one scale: those of all texts of a method."""
        return self.method_key if self.suffix.startswith(_TEXT) else self.key


class _Scores(NamedTuple):
    """Class that is explained of each image of a batch, and the probabilities of all classes."""

    indices: list[int]
    shares: "Float[Tensor, 'b k']"


class MapRunner:
    """A model with the maps to compute from it.

    Args:
        args: Options of `visattn overlay`.

    Raises:
        FileNotFoundError: If weights do not exist.
        ValueError: If a model, method, argument or class is unknown, or a method does not fit.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        from visattn.attribution.targets import resolve_target

        torch.manual_seed(0)  # random weights are the same in every run
        self.dense = dense_target(args)
        is_dense = self.dense is not None
        self.loaded = load_explained_model(args, dense=is_dense)
        self.explainer = self.loaded.explainer
        self.explained = self.explainer.analyze()
        info = self.explained.info
        specs = _map_specs(args, self.explainer, self.dense)
        classes = [] if is_dense else _explained_classes(args, self.explained)
        self.several = len(classes) > 1
        texts = ((i, text, f"{_TEXT}{i + 1}") for i, text in enumerate(args.text or ()))
        named = self.explained.class_names
        # The suffix of a class stays the same if other classes are added.
        several = ((i, named[i] if named else str(i), f".class{i}") for i in classes)
        self.specs = _specs_per_target(specs, several if self.several else texts)
        self.layers = args.layers
        self.heads = args.heads
        target = classes[0] if len(classes) == 1 else None
        self.target = None if is_dense else resolve_target(target, self.explained)
        self.loaded_texts = bool(args.text)
        self.has_heads = bool(info.attention_layers) and not info.attention_error

    def maps(self, batch: "PreparedImages") -> "list[list[AttentionMap]]":
        """Return the maps of each prepared image, one per spec.

        All specs explain the same class of an image: the target, or the predicted class. If one of
        several methods fails, its map is empty and its info holds the reason.

        Raises:
            ValueError: If a class, layer or head does not exist, or all methods fail.
        """
        target = self._new_target()
        made: list[tuple[Sequence[MapSpec], list[list[AttentionMap]]]] = []
        failures: list[Exception] = []
        groups = itertools.groupby(self.specs, key=lambda spec: spec.method_key)
        methods = [list(specs) for _, specs in groups]
        for specs in methods:
            try:
                rows = self._maps_of_method(batch, specs, target)
            except Exception as error:  # noqa: BLE001 - an error in foreign code costs one method
                failures.append(error)
                if len(failures) == len(methods):
                    raise failures[0] from None
                rows = [
                    [_failed_map(image, spec, error) for spec in specs] for image in batch.originals
                ]
            made.append((specs, rows))
        scores = self._scores(batch, target)
        return [
            [
                replace(
                    attention_map,
                    info=replace(attention_map.info, title=spec.title)
                    | self._describe(spec, scores, position),
                )
                for specs, rows in made
                for spec, attention_map in zip(specs, rows[position], strict=True)
            ]
            for position in range(len(batch.originals))
        ]

    def _maps_of_method(
        self, batch: "PreparedImages", specs: Sequence[MapSpec], target: "Score | None"
    ) -> "list[list[AttentionMap]]":
        """Return for each image a map per spec; the specs differ in their targets."""
        explainer, spec = self.explainer, specs[0]
        arguments = dict(spec.method_args)
        if any(each.target is not None for each in specs):
            rows = [[each.target for each in specs]] * len(batch.originals)
            return explainer.map_targets(batch, spec.method, rows, **arguments)
        if target is not None and target.first_scores is not None:
            target = self._new_target(target.class_indices)  # the score is that of its own pass
        maps = explainer.map(batch, spec.method, self.dense or target, **arguments)
        return [[each] for each in maps]

    def _describe(self, spec: MapSpec, scores: "_Scores | None", position: int) -> "MapInfo":
        """Return what a map of an image explains."""
        from visattn.attribution.targets import class_name
        from visattn.results.info import MapInfo

        names = self.explained.class_names
        if self.loaded_texts:
            return _text_info(spec, names)
        index = spec.target
        if scores is not None and not self.several:
            index = scores.indices[position]
        probability = None
        if scores is not None and index is not None:
            probability = float(scores.shares[position, index])
        described = MapInfo(probability=probability)
        if self.dense:
            return described
        return described | MapInfo(target=index, class_name=class_name(index, names))

    def _new_target(self, indices: Sequence[int] | None = None) -> "Score | None":
        """Return the target of a batch; None for a model without class scores, or several classes.

        Without classes a target keeps those that it predicts in its first call, and the scores of
        all classes there: the pass of a map serves both.

        Args:
            indices: Of the classes; None for those of the command line.
        """
        from visattn.attribution.targets import class_target

        if self.target is None or self.target.kind != "class":
            return None
        return class_target(indices or self.target.class_indices, self.target.layout)

    def _scores(self, batch: "PreparedImages", target: "Score | None") -> "_Scores | None":
        """Return class and probabilities of each image; None for a model without class scores."""
        import torch

        from visattn.attribution.targets import probabilities

        if target is None:
            return None
        scores = target.first_scores
        if scores is None:  # no method called it
            with torch.no_grad():
                scores = self.explained.scores(batch.inputs)
        scores = scores.float().cpu()
        if not target.class_indices:
            target(scores)
        shares = probabilities(scores, self.explained.info.output)
        return _Scores(target.indices(scores).tolist(), shares)


def _failed_map(image: "LoadedImage", spec: MapSpec, error: Exception) -> "AttentionMap":
    """Return an empty map whose info holds the reason of the failure."""
    import torch

    from visattn.attribution.methods import METHODS
    from visattn.geometry.affine import Geometry
    from visattn.results.attention_map import AttentionMap
    from visattn.results.info import MapInfo

    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    info = MapInfo(spec.method, dict(spec.method_args), empty=text, failed=True)
    geometry = Geometry.identity(image.size)
    kind = METHODS[spec.method].kind
    return AttentionMap(torch.zeros(1, 1), spec.method, kind, geometry, info)


def _map_specs(
    args: argparse.Namespace, explainer: "Explainer", dense: "DenseTarget | None" = None
) -> list[MapSpec]:
    """Return the specs of the selected methods, after checking that the model supports them."""
    from visattn.attribution.methods import default_method, get_method
    from visattn.recording.model_info import TextScorer

    names = args.method or ()
    if not names or names in (["all"], ["auto"]):
        supported = explainer.methods(dense)
        texts = isinstance(explainer.model, TextScorer)
        default = default_method(supported, of_texts=texts, layered=bool(args.layer))
        names = supported if names == ["all"] else [default]
    methods = [get_method(name) for name in dict.fromkeys(names)]
    method_args = dict(args.method_args)
    known = {name for method in methods for name in method.default_kwargs}
    layers = args.layers or args.layer
    for method in methods:
        named = {"layer": layers[0]} if layers and "layer" in method.default_kwargs else {}
        explainer.check(method.name, dense, **named)
    if unknown := sorted(set(method_args) - known):
        raise ValueError(
            f"none of {', '.join(names)} has an argument {unknown[0]!r}; there are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    _check_layers_and_heads(args, known)
    specs: list[MapSpec] = []
    for method in methods:
        own_args = {
            name: method_args[name] for name in method.default_kwargs if name in method_args
        }
        if args.heads and "heads" in method.default_kwargs:
            own_args["heads"] = list(args.heads)
        specs += _specs_per_layer(method, own_args, layers)
    return specs


def _check_layers_and_heads(args: argparse.Namespace, known: Iterable[str]) -> None:
    """Refuse layers and heads that none of the methods uses."""
    if args.layer and "layer" not in known:
        raise ValueError(
            "--layer is for methods that explain one layer, such as gradcam; none of the selected "
            "methods does"
        )
    for name, argument in (("layers", "layer"), ("heads", "heads")):
        if getattr(args, name) and argument not in known and not args.explorer:
            raise ValueError(
                f"--{name} is for attention, for methods that explain one layer, and for "
                "--explorer; none of them is selected"
            )


def _specs_per_layer(
    method: "Method", method_args: Mapping[str, Any], layers: Sequence[int | str] | None
) -> list[MapSpec]:
    """Return a spec for each layer, if the method explains one layer."""
    name = method.name
    title = method.title
    if not layers or "layer" not in method.default_kwargs:
        return [MapSpec(name, title, name, method_args)]
    if len(layers) == 1:
        return [MapSpec(name, title, name, {**method_args, "layer": layers[0]})]
    return [
        MapSpec(
            f"{name}.layer{layer}"
            if isinstance(layer, int)
            else f"{name}.{layer.replace('#', '_run')}",
            f"{title}, layer {layer}" if isinstance(layer, int) else f"{title}, {layer}",
            name,
            {**method_args, "layer": layer},
        )
        for layer in dict.fromkeys(layers)
    ]


def _specs_per_target(
    specs: Sequence[MapSpec], targets: Iterable[tuple[int, str, str]]
) -> list[MapSpec]:
    """Return a spec for each target, for methods that explain one; the others need one spec.

    Args:
        specs: A spec per method.
        targets: Index, name and suffix of each class or text; none for the predicted class.
    """
    from visattn.attribution.methods import METHODS

    listed = list(targets)
    made: list[MapSpec] = []
    for spec in specs:
        if not listed or not METHODS[spec.method].needs_target:
            made.append(spec)
            continue
        for index, name, suffix in listed:
            title = f"{name} \N{MIDDLE DOT} {spec.title}"
            key = f"{spec.key}{suffix}"
            made.append(replace(spec, key=key, title=title, target=index, suffix=suffix))
    return made


def _text_info(spec: MapSpec, texts: Sequence[str]) -> "MapInfo":
    """Return what is said of the text of a map."""
    from visattn.results.info import MapInfo

    if spec.target is None:  # the same for all texts
        return MapInfo()
    return MapInfo(target=spec.target, class_name=texts[spec.target])


def class_targets(args: argparse.Namespace, class_names: Sequence[str]) -> list[int | str]:
    """Return the classes of `--target`: numbers as integers.

    Args:
        args: Options of `visattn overlay`.
        class_names: Names of the classes.

    Raises:
        ValueError: If a target is the number of a class and the name of another one.

    Example:
        >>> class_targets(argparse.Namespace(target=["2", "dog"]), ["1", "10", "2"])
        [2, 'dog']
    """
    for text in args.target or ():
        check_target_number(text, class_names)
    return [int(text) if text.isdecimal() else text for text in args.target or ()]


def _explained_classes(args: argparse.Namespace, explained: "Subject") -> list[int]:
    """Return the indices of the classes of `--target`, in their order."""
    from visattn.attribution.targets import resolve_class_index

    classes = class_targets(args, explained.class_names)
    return list(dict.fromkeys(resolve_class_index(each, explained) for each in classes))


def check_target_number(text: str, class_names: Sequence[str]) -> None:
    """Refuse a target that is the number of a class and the name of another one.

    Args:
        text: A value of `--target`.
        class_names: Names of the classes.

    Raises:
        ValueError: If both exist and differ.

    Example:
        >>> check_target_number("2", ["1", "10", "2"])
        >>> check_target_number("2", ["1", "2", "3"])
        Traceback (most recent call last):
        ValueError: --target 2 is the number of class '3' and the name of class number 1: ...
    """
    if not text.isdecimal() or text not in class_names:
        return
    index = list(class_names).index(text)
    if index != int(text):
        number = int(text)
        other = f"class {class_names[number]!r}" if number < len(class_names) else "no class"
        raise ValueError(
            f"--target {text} is the number of {other} and the name of class number {index}: give "
            f"the classes other names (--classes FILE), or use va.explain(target={text!r} or "
            f"target={number})"
        )
