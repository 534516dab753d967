"""Any backbone of timm as a grid of features, frozen or trained from a stage on."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, cast

import timm
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from visattn.models.encoders import ImageEncoder


class TimmEncoder(ImageEncoder):
    """A backbone by its timm name, as a grid of features.

    What is frozen takes no gradient and stays in evaluation mode while the rest trains, so that
    its running statistics do not drift.

    Args:
        name: A name that `timm.list_models()` knows.
        size: Height and width, in pixels, of the pictures it is made for.
        stage: Which of the backbone's stages gives the grid, -1 for the last; None for its final
            features, with whatever layers stand between the last stage and the pooling.
        train_from: First stage that is trained; everything before it stays frozen. None: all
            frozen, 0: all trained.
        pretrained: Whether to start from timm's own weights, which are downloaded.
        weights: Or a safetensors file to start from.
        arguments: More arguments of `timm.create_model`.
        mean: Mean of each colour channel, in [0, 1]; None for the backbone's own.
        std: Spread of each colour channel, in [0, 1]; None for the backbone's own.

    Raises:
        ValueError: If the name or a stage is unknown, if the features are no grid, if weights are
            asked for twice, or if the file does not fit the backbone.
        FileNotFoundError: If there is no such file.

    Example:
        >>> encoder = TimmEncoder("test_resnet.r160_in1k", size=(96, 64))
        >>> encoder(torch.zeros(1, 3, 96, 64, dtype=torch.uint8)).shape
        torch.Size([1, 96, 3, 2])
    """

    def __init__(
        self,
        name: str,
        *,
        size: tuple[int, int] = (224, 224),
        stage: int | None = None,
        train_from: int | None = None,
        pretrained: bool = False,
        weights: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        if pretrained and weights:
            raise ValueError("weights come from timm or from a file, not both: drop one of them")
        model = _backbone(name, dict(arguments or {}), pretrained=pretrained)
        config = cast("dict[str, Any]", model.pretrained_cfg)
        super().__init__(size, mean or config["mean"], std or config["std"])
        self.name, self.stage, self.train_from = name, stage, train_from
        self.arguments = dict(arguments or {})
        # A model that is built again from its description gets its weights from its own file.
        self.pretrained, self.weights = False, None
        if weights:
            _load(model, Path(weights))
        self.backbone = model
        self.channels, self.grid = self._probe()
        self._freeze()

    def features(self, pictures: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b c gy gx"]:
        """Return the grid of features of normalised pictures."""
        backbone = cast("Any", self.backbone)
        if self.stage is None:
            return self._as_grid(backbone.forward_features(pictures), pictures)
        (grid,) = backbone.forward_intermediates(
            pictures, indices=[self.stage], intermediates_only=True, output_fmt="NCHW"
        )
        return grid

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 (torch's own signature)
        """Switch to training mode, all but the frozen part."""
        super().train(mode)
        for module in self._frozen:
            module.train(mode=False)
        return self

    def _as_grid(
        self, features: Tensor, pictures: Float[Tensor, "b 3 y x"]
    ) -> Float[Tensor, "b c gy gx"]:
        """Lay out what the backbone gives: tokens with a prefix, channels last or channels first."""
        backbone = cast("Any", self.backbone)
        if features.ndim == 3:
            patches = features[:, getattr(backbone, "num_prefix_tokens", 0) :]
            rows, columns = backbone.patch_embed.dynamic_feat_size(pictures.shape[-2:])
            return patches.transpose(1, 2).unflatten(2, (int(rows), int(columns)))
        if getattr(backbone, "output_fmt", "NCHW") == "NHWC":
            return features.permute(0, 3, 1, 2)
        return features

    @torch.no_grad()
    def _probe(self) -> tuple[int, tuple[int, int]]:
        """Return width and size of the grid for one picture of the right size."""
        self.backbone.eval()
        grid = self.features(torch.zeros(1, 3, *self.size))
        self.backbone.train()
        if grid.ndim != 4:
            raise ValueError(f"{self.name} gives features of shape {tuple(grid.shape)}, not a grid")
        return grid.shape[1], (grid.shape[2], grid.shape[3])

    def _freeze(self) -> None:
        """Freeze every parameter before the first trained stage, and note the modules they fill."""
        first = self._first_trained()
        for index, parameter in enumerate(self.backbone.parameters()):
            parameter.requires_grad_(index >= first)
        self._frozen = [
            module
            for module in self.backbone.modules()
            if not any(parameter.requires_grad for parameter in module.parameters())
        ]
        self.train(self.training)

    def _first_trained(self) -> int:
        """Return the number of the first parameter that is trained."""
        info = cast("list[dict[str, Any]]", cast("Any", self.backbone).feature_info)
        names = [name for name, _ in self.backbone.named_parameters()]
        if self.train_from is None:
            return len(names)
        if not 0 <= self.train_from <= len(info):
            raise ValueError(
                f"train_from must lie between 0 and {len(info)} for {self.name}, whose stages end "
                f"in {', '.join(stage['module'] for stage in info)}; got {self.train_from}"
            )
        if self.train_from == 0:
            return 0
        before = info[self.train_from - 1]["module"] + "."
        return max((i for i, name in enumerate(names) if name.startswith(before)), default=-1) + 1


def _backbone(name: str, arguments: dict[str, Any], *, pretrained: bool) -> nn.Module:
    if not timm.is_model(name):
        close = get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise ValueError(f"timm knows no model {name!r}{hint}")
    return timm.create_model(name, pretrained=pretrained, **{"num_classes": 0, **arguments})


def _load(model: nn.Module, file: Path) -> None:
    """Load weights of the whole network, of which only the classifier may be left over."""
    if not file.is_file():
        raise FileNotFoundError(f"weights {file} do not exist")
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from error
    config = cast("dict[str, Any]", model.pretrained_cfg)
    classifier = str(config.get("classifier") or "classifier")
    weights = {key: value for key, value in weights.items() if not key.startswith(classifier + ".")}
    wanted = model.state_dict()
    missing = sorted(set(wanted) - set(weights))
    spare = sorted(set(weights) - set(wanted))
    other = [key for key in wanted if key in weights and wanted[key].shape != weights[key].shape]
    if missing or spare or other:
        raise ValueError(
            f"{file} does not fit {config.get('architecture')}: {len(missing)} tensors missing "
            f"{missing[:2]}, {len(spare)} left over {spare[:2]}, {len(other)} of another shape "
            f"{other[:2]}; check the name and the arguments"
        )
    model.load_state_dict(weights)
