"""timm classifiers by name, and loading of weight files into them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from visattn.insertion.insertion import insert
from visattn.io.messages import did_you_mean
from visattn.models.base import ImageClassifier, parse_block_name
from visattn.models.model_files import BUNDLED, bundled_models
from visattn.models.weights import Weights, load_weights, read_weights

_HEAD = re.compile(r"(^|\.)(head|fc|classifier|last_linear)(\.fc|\.l)?\.weight$")
# With these arguments, and those of pretrained weights, timm loads files or has other outputs.
_RESERVED = frozenset({"cache_dir", "checkpoint_path", "features_only"})


def check_single_source(weights: object, *, pretrained: bool) -> None:
    """Check that a model has only one source of weights."""
    if weights and pretrained:
        raise ValueError("set either pretrained or weights, not both")


def weights_are_loaded(module: Any, _: object) -> None:
    """Mark the weights of a network as loaded."""
    module.random_weights = False


def create_timm_backbone(name: str, arguments: dict[str, Any], *, pretrained: bool) -> nn.Module:
    """Create a timm model without its classifier.

    Raises:
        ValueError: If the name is unknown, or the model does not take an argument.
    """
    import timm  # slow to import

    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models(), otherwise="timm.list_models() lists all")
        raise ValueError(f"unknown timm model {name!r}; {hint}")
    if reserved := [a for a in arguments if a in _RESERVED or a.startswith("pretrained")]:
        raise ValueError(
            f"timm_kwargs may not contain {', '.join(reserved)}: set pretrained=True or "
            "weights=FILE for weights, and stage=NUMBER for a stage"
        )
    try:
        return timm.create_model(name, pretrained=pretrained, **{"num_classes": 0, **arguments})
    except TypeError as error:
        raise ValueError(f"{name} does not take these arguments: {error}") from error


def load_timm_weights(
    model: nn.Module, name: str, file: Path, arguments: Mapping[str, Any]
) -> None:
    """Load weights into a timm model; those of a classifier are skipped if it has none.

    The arguments are those that created the model.
    """
    if str(file) in bundled_models():
        file = BUNDLED / f"{file}.safetensors"
    weights = read_timm_weights(model.state_dict(), name, file, arguments)
    left = () if getattr(model, "num_classes", 1) else _classifier_prefixes(model)
    kept = {key: each for key, each in weights.tensors.items() if not key.startswith(left)}
    load_weights(model, weights._replace(tensors=kept), file)


def read_timm_weights(
    own: Mapping[str, Tensor], name: str, file: Path, arguments: Mapping[str, Any]
) -> Weights:
    """Return weights under the keys of a timm model, converted from the keys of their repository.

    Timm converts them as it does for its own pretrained models.
    """
    import timm  # slow to import

    weights = read_weights(file, own)
    shapes = {key: each.shape for key, each in weights.tensors.items()}
    if all(shapes.get(key) == each.shape for key, each in own.items()):
        return weights
    heads = [each for key, each in weights.tensors.items() if _HEAD.search(key) and each.ndim == 2]
    classes = len(heads[-1]) if heads else 0
    # With the number of classes of the weights, timm loads all of them or raises.
    overlay = {"state_dict": dict(weights.tensors), "num_classes": classes, "label_offset": 0}
    options = {**arguments, "num_classes": classes, "pretrained_cfg_overlay": overlay}
    try:
        model = timm.create_model(name, pretrained=True, **options)
    except Exception:  # noqa: BLE001 - a conversion may fail in any way on foreign weights
        return weights
    note = "timm converted the weights from their original keys"
    return Weights(model.state_dict(), weights.class_names, (*weights.notes, note))


def _classifier_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Return the key prefixes of a timm model's classifier."""
    config = cast("dict[str, Any]", model.pretrained_cfg)
    names = config.get("classifier") or "classifier"
    return tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))


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
        weights: File with pretrained weights instead.
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
        arguments = dict(timm_kwargs or {})
        model: Any = create_timm_backbone(name, arguments, pretrained=pretrained)
        config = model.pretrained_cfg
        super().__init__(class_names, img_size, mean or config["mean"], std or config["std"])
        if weights:
            load_timm_weights(model, name, Path(weights), arguments)
            if not (freeze_bn or freeze_backbone):
                _check_not_folded(_batch_norms(model), weights)
        model.reset_classifier(len(self.class_names))
        if freeze_backbone:
            for weight in set(model.parameters()) - set(model.get_classifier().parameters()):
                weight.requires_grad = False
        self.name = name
        self.timm_kwargs, self.block_kwargs = arguments, dict(block_kwargs or {})
        # A model rebuilt from its config gets its weights from its own file, not from `weights`.
        self.pretrained, self.weights = False, None
        self.random_weights = not (pretrained or weights)
        self.register_load_state_dict_post_hook(weights_are_loaded)
        self.grad_checkpointing = grad_checkpointing
        # before blocks add their own batch norms
        self._frozen_norms = _batch_norms(model) if freeze_bn or freeze_backbone else []
        self.block = parse_block_name(block)
        if self.block:
            example = torch.zeros(1, 3, *self.img_size)
            insert(
                model, self.block, position=position, example=example, init=init,
                **self.block_kwargs,
            )  # fmt: skip
        self.backbone = model
        self.train()  # Lightning keeps the mode of modules

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, except frozen batch norms.

        Layers are recomputed only in training mode, since a recomputed layer would be recorded
        twice.

        Raises:
            ValueError: If layers with trainable batch norms would be recomputed.
        """
        super().train(mode)
        for norm in self._frozen_norms:
            norm.training = False
        if self.grad_checkpointing:
            if any(norm.training for norm in _batch_norms(self.backbone)):
                raise ValueError(
                    f"grad_checkpointing must be false for {self.name}: its batch norms would "
                    "count each batch twice; set freeze_bn"
                )
            self.backbone.set_grad_checkpointing(mode)
        return self

    @property
    def head(self) -> nn.Module:
        """The final classification layer."""
        return self.backbone.get_classifier()

    def classify(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Return the logits of normalized images."""
        return self.backbone(images)


def _batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _check_not_folded(norms: Sequence[_BatchNorm], file: str) -> None:
    """Check that trainable batch norms were not folded into the convolutions."""
    statistics = [(norm.running_mean, norm.running_var) for norm in norms]
    if norms and all(
        m is not None and v is not None and not m.any() and (v == 1).all() for m, v in statistics
    ):
        raise ValueError(
            f"all batch norms in {file} have mean 0 and variance 1: they were folded into the "
            "convolutions, and training with batch statistics would destroy the pretrained "
            "features; set freeze_bn=True"
        )
