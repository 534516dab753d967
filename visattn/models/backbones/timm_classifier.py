"""timm classifiers by name, and loading of weight files into them."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from visattn.insertion.insertion import insert
from visattn.io.messages import did_you_mean
from visattn.models.base import ImageClassifier, parse_block_name
from visattn.models.saving.hub import plain_download_errors
from visattn.models.saving.state_dicts import TensorDict, read_state_dict, strip_prefix
from visattn.models.saving.weight_files import (
    Shapes,
    check_loaded_weights,
    check_weight_types,
    describe_mismatch,
    find_mismatch,
    shapes_of,
)

_FEW = 4  # tensors that one argument changes
_HEAD = re.compile(r"(^|\.)(head|fc|classifier|last_linear)(\.fc|\.l)?\.weight$")
# These arguments make timm load files by itself or return other outputs than one grid.
_RESERVED_ARGUMENTS = (
    "cache_dir",
    "checkpoint_path",
    "features_only",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
)


def check_single_source(weights: object, *, pretrained: bool) -> None:
    """Refuse two sources of weights for one model."""
    if weights and pretrained:
        raise ValueError("set either pretrained or weights, not both")


def create_timm_backbone(name: str, arguments: dict[str, Any], *, pretrained: bool) -> nn.Module:
    """Create a timm model without its classifier.

    Raises:
        ConnectionError: If pretrained weights cannot be downloaded.
        ValueError: If the name is unknown, or the model does not take an argument.
    """
    import timm  # slow to import

    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models(), otherwise="timm.list_models() lists all")
        raise ValueError(f"unknown timm model {name!r}; {hint}")
    if reserved := sorted(set(arguments) & set(_RESERVED_ARGUMENTS)):
        raise ValueError(
            f"timm_kwargs may not contain {', '.join(reserved)}: set pretrained=True or "
            "weights=FILE for weights, and stage=NUMBER for a stage"
        )
    try:
        with plain_download_errors(f"timm:{name}"):
            return timm.create_model(name, pretrained=pretrained, **{"num_classes": 0, **arguments})
    except TypeError as error:
        raise ValueError(f"{name} does not take these arguments: {error}") from error


def load_timm_weights(
    model: nn.Module, name: str, file: Path, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Load weights into a timm model, converting keys of the original repository if needed.

    If the model has no classifier, that of the file is ignored. The arguments are those with which
    the model was created. For the result see `load_weights`.
    """
    ignored_prefixes = () if getattr(model, "num_classes", 1) else _classifier_prefixes(model)
    convert = partial(convert_with_timm, name, arguments)
    return load_weights(model, file, ignored_prefixes=ignored_prefixes, convert=convert)


def load_weights(
    model: nn.Module,
    file: Path,
    *,
    ignored_prefixes: tuple[str, ...] = (),
    convert: Callable[[TensorDict], TensorDict] | None = None,
) -> tuple[str, ...]:
    """Load weights from a file or folder into a model.

    Args:
        model: Model to load the weights into.
        file: File, as in `read_state_dict`; batch counters may be missing.
        ignored_prefixes: Prefixes of keys that are ignored.
        convert: Converts a state dict that does not fit to the keys and shapes of the model.

    Returns:
        What was removed or converted, in sentences.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it holds no weights, they do not fit or hold NaN, or the path is remote.
    """
    expected = _shapes(model.state_dict())
    tensors, notes = _read_weights(expected, file, ignored_prefixes, convert)
    shapes = _shapes(tensors, ignored_prefixes)
    if any(find_mismatch(expected, shapes)):
        raise ValueError(_mismatch_message(model, expected, shapes, file))
    weights = {name: tensors[name] for name in shapes}
    check_weight_types(model.state_dict(), weights, file)
    model.load_state_dict(weights, strict=False)
    check_loaded_weights(model, file)
    return notes


def _read_weights(
    expected: Shapes,
    file: Path,
    ignored_prefixes: tuple[str, ...] = (),
    convert: Callable[[TensorDict], TensorDict] | None = None,
) -> tuple[TensorDict, tuple[str, ...]]:
    """Return the tensors of a file by the keys of a model, converted if they do not fit as is."""
    state = strip_prefix(read_state_dict(file), expected)
    if convert and any(find_mismatch(expected, _shapes(state.tensors, ignored_prefixes))):
        try:
            tensors = convert(dict(state.tensors))
        except Exception:  # noqa: BLE001 - a conversion may fail in any way on foreign weights
            return state.tensors, state.notes
        return tensors, (*state.notes, "timm converted the weights from their original keys")
    return state.tensors, state.notes


def classes_of_weights(
    model: nn.Module, file: Path, convert: Callable[[TensorDict], TensorDict] | None = None
) -> int | None:
    """Return the number of classes of weights that fit a model but for its classifier.

    The arguments are those of `load_weights`.

    Returns:
        None for weights that fit, or that differ in anything else.

    Example:
        >>> from torchvision.models import squeezenet1_1
        >>> file = getfixture("tmp_path") / "squeezenet.pth"
        >>> torch.save(squeezenet1_1(num_classes=7).state_dict(), file)
        >>> classes_of_weights(squeezenet1_1(), file)
        7
    """
    expected = _shapes(model.state_dict())
    shapes = _shapes(_read_weights(expected, file, convert=convert)[0])
    missing, unexpected, reshaped = find_mismatch(expected, shapes)
    if missing or unexpected or not reshaped:
        return None
    pairs = [(expected[name], shapes[name]) for name in reshaped]
    # A head has a row for each class, that of a detector also four for its box.
    if any(own[1:] != its[1:] or not its for own, its in pairs):
        return None
    ratios = {own[0] / its[0] for own, its in pairs}
    return min(its[0] for _, its in pairs) if len(ratios) == 1 else None


def _classifier_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Return the key prefixes of a timm model's classifier."""
    config = cast("dict[str, Any]", model.pretrained_cfg)
    names = config.get("classifier") or "classifier"
    return tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))


def convert_with_timm(name: str, arguments: Mapping[str, Any], state: TensorDict) -> TensorDict:
    """Convert a state dict as timm does when it loads its own pretrained models.

    Args:
        name: Name of the timm model.
        arguments: With which it was created.
        state: The state dict.
    """
    import timm  # slow to import

    heads = [weight for key, weight in state.items() if _HEAD.search(key) and weight.ndim == 2]
    classes = len(heads[-1]) if heads else 0
    # With as many classes as the weights have, timm loads all of them or raises.
    overlay = {"state_dict": state, "num_classes": classes, "label_offset": 0}
    model = timm.create_model(
        name,
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        **{**arguments, "num_classes": classes},
    )
    return model.state_dict()


def _shapes(tensors: TensorDict, ignored_prefixes: tuple[str, ...] = ()) -> Shapes:
    return shapes_of({k: v for k, v in tensors.items() if not k.startswith(ignored_prefixes)})


def _mismatch_message(model: nn.Module, expected: Shapes, shapes: Shapes, file: Path) -> str:
    """Describe which weights do not fit, and the likely reason."""
    config = cast("dict[str, Any]", getattr(model, "pretrained_cfg", {}))
    return (
        f"{file} does not fit {config.get('architecture', type(model).__name__)}: "
        f"{describe_mismatch(expected, shapes)}; {_likely_reason(expected, shapes)}"
    )


def _likely_reason(expected: Shapes, shapes: Shapes) -> str:
    """Return why the weights probably do not fit, and what to do."""
    reshaped = find_mismatch(expected, shapes).reshaped
    if not set(expected) & set(shapes):
        return "no key matches: the weights are of another architecture or another library"
    for name in reshaped if len(reshaped) <= _FEW else ():
        shape = shapes[name]
        target = expected[name]
        if len(shape) == len(target) == 2 and shape[1:] == target[1:]:
            return f"the weights are for {shape[0]} classes: set num_classes={shape[0]}"
        if len(shape) == len(target) == 4 and shape[0] == target[0] and shape[2:] == target[2:]:
            return f"the weights are for images with {shape[1]} channels: set in_chans={shape[1]}"
        if "pos" in name:
            return "the weights are for another image size: set img_size"
    return "check the name and the arguments of the model"


Init = Literal["identity", "paper"]


class TimmClassifier(ImageClassifier):
    """timm model with a new head and attention blocks inserted at chosen positions.

    Args:
        class_names: Names of the classes, in the order of the logits.
        name: Name of the timm model.
        block: Registered name of the attention block; None or `none` for none.
        position: Position of the blocks: `residual`, before the addition of each residual unit;
            `stage_end`; or a pattern of module names, as for `visattn.insert`.
        init: `identity` initializes blocks so that the network's output is unchanged; `paper` uses
            the published initialization.
        block_kwargs: Further arguments of the blocks, such as `reduction`.
        img_size: Height and width of the input images, in pixels.
        pretrained: Whether to download timm's pretrained weights.
        weights: File with pretrained weights instead, as in `read_state_dict`.
        freeze_bn: Whether batch norms of the backbone keep their running statistics during
            training. Those of the blocks are not frozen.
        freeze_backbone: Whether only the blocks and the head are trained, as `visattn.insert` does
            with `freeze=True`; without a block, a linear probe. Batch norms are frozen too.
        timm_kwargs: Further arguments of `timm.create_model`.
        grad_checkpointing: Whether training recomputes layers in the backward pass to save memory,
            as timm's `set_grad_checkpointing`.
        mean: Mean of each color channel, in [0, 1]; None for the model's own.
        std: Standard deviation of each color channel, in [0, 1]; None for the model's own.

    Raises:
        ValueError: If the name, the block, a position or an argument is unknown, both `pretrained`
            and `weights` are given, the file does not fit the model, or its batch norms were folded
            into the convolutions and `freeze_bn` is off.
        FileNotFoundError: If the file does not exist.

    Example:
        >>> model = TimmClassifier(("cat", "dog"), "test_resnet", block="se", img_size=(96, 64))
        >>> model(torch.zeros(1, 3, 96, 64, dtype=torch.uint8)).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        class_names: Sequence[str],
        name: str,
        *,
        block: str | None = None,
        position: str = "residual",
        init: Init = "identity",
        block_kwargs: Mapping[str, Any] | None = None,
        img_size: tuple[int, int] = (224, 224),
        pretrained: bool = False,
        weights: str | None = None,
        freeze_bn: bool = False,
        freeze_backbone: bool = False,
        timm_kwargs: Mapping[str, Any] | None = None,
        grad_checkpointing: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        check_single_source(weights, pretrained=pretrained)
        model = create_timm_backbone(name, dict(timm_kwargs or {}), pretrained=pretrained)
        config = cast("dict[str, Any]", model.pretrained_cfg)
        super().__init__(class_names, img_size, mean or config["mean"], std or config["std"])
        if weights:
            load_timm_weights(model, name, Path(weights), dict(timm_kwargs or {}))
            if not (freeze_bn or freeze_backbone) and _batch_norms(model):
                _check_not_folded(model, weights)
        cast("Any", model).reset_classifier(len(self.class_names))
        if freeze_backbone:
            head = set(cast("Any", model).get_classifier().parameters())
            for weight in set(model.parameters()) - head:
                weight.requires_grad = False
        self.name = name
        self.block = parse_block_name(block)
        self.block_kwargs = dict(block_kwargs or {})
        self.timm_kwargs = dict(timm_kwargs or {})
        # A model rebuilt from its config gets its weights from its own file.
        self.pretrained = False
        self.weights = None
        self.freeze_bn = freeze_bn
        self.freeze_backbone = freeze_backbone
        self._backbone_norms = tuple(_batch_norms(model))  # before blocks add their own
        if self.block:
            example = torch.zeros(1, 3, *self.img_size)
            insert(
                model,
                self.block,
                position=position,
                example=example,
                init=init,
                **self.block_kwargs,
            )
        self.backbone = model
        self.grad_checkpointing = grad_checkpointing
        self.train()  # trainers keep the mode that they find

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, except frozen batch norms.

        Layers are recomputed in training mode only, since a recomputed layer would be recorded
        twice.

        Raises:
            ValueError: If layers were to be recomputed that timm cannot, or with batch norms.
        """
        super().train(mode)
        for norm in self._backbone_norms if self.freeze_bn or self.freeze_backbone else ():
            norm.training = False  # train() would also reach blocks inserted into it
        if self.grad_checkpointing:
            _set_grad_checkpointing(self.backbone, self.name, enable=mode)
        return self

    @property
    def head(self) -> nn.Module:
        """The final classification layer."""
        return cast("Any", self.backbone).get_classifier()

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        return self.backbone(images)


def _set_grad_checkpointing(model: nn.Module, name: str, *, enable: bool) -> None:
    if any(norm.training for norm in _batch_norms(model)):
        raise ValueError(
            f"grad_checkpointing must be false for {name}: its batch norms would count each batch "
            "twice; set freeze_bn"
        )
    try:
        cast("Any", model).set_grad_checkpointing(enable)
    except (AssertionError, AttributeError) as error:
        raise ValueError(f"grad_checkpointing must be false for {name}: timm has none") from error


def _batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _check_not_folded(model: nn.Module, file: str) -> None:
    """Refuse to train batch norms that were folded into the convolutions."""
    for norm in _batch_norms(model):
        mean = norm.running_mean
        variance = norm.running_var
        if mean is None or variance is None or (mean != 0).any() or (variance != 1).any():
            return
    raise ValueError(
        f"all batch norms in {file} have mean 0 and variance 1: they were folded into the "
        "convolutions, and training with batch statistics would destroy the pretrained features; "
        "set freeze_bn=True"
    )
