"""Classifiers that take over the weights of others, and give theirs away."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from visattn.models.classifier import ImageClassifier
from visattn.models.serialization.state_dict_mapping import Made, filled
from visattn.models.vit.from_dinov2 import dinov2_parts
from visattn.models.vit.from_timm import timm_model, timm_parts
from visattn.models.vit.from_torchvision import torchvision_model, torchvision_parts


class ExchangeableClassifier(ImageClassifier):
    """A classifier that computes what a Vision Transformer of another library does."""

    @classmethod
    def from_timm(
        cls: type[Made],
        model: nn.Module | str,
        *,
        classes: Sequence[str] | None = None,
        **options: Any,
    ) -> Made:
        """Return timm's model with its weights; `timm_parts` says which go over, and how."""
        return filled(cls, *timm_parts(model, classes, **options))

    @classmethod
    def from_torchvision(
        cls: type[Made],
        model: nn.Module | str,
        *,
        classes: Sequence[str] | None = None,
        **options: Any,
    ) -> Made:
        """Return torchvision's model with its weights; see `torchvision_parts`."""
        return filled(cls, *torchvision_parts(model, classes, **options))

    @classmethod
    def from_dinov2(
        cls: type[Made], state: Mapping[str, Tensor], *, classes: Sequence[str], **options: Any
    ) -> Made:
        """Return a model with weights as the authors of DINOv2 lay them; see `dinov2_parts`."""
        return filled(cls, *dinov2_parts(state, classes, **options))

    def to_timm(self) -> nn.Module:
        """Return timm's model with these weights.

        Raises:
            ValueError: If this one has an option that timm's lacks.
        """
        return timm_model(self)

    def to_torchvision(self) -> nn.Module:
        """Return torchvision's model with these weights.

        Raises:
            ValueError: If this one has an option that torchvision's lacks.
        """
        return torchvision_model(self)
