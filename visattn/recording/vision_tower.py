"""The part of a model of several towers that looks at images."""

from typing import Any

from torch import nn

_CONFIGS = ("vision_config", "image_config", "encoder")


def vision_tower(model: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the vision tower of a model of transformers that also takes text, and its path.

    None for a model that takes images alone: a classifier, a backbone, or a tower itself.

    Args:
        model: Of transformers.

    Example:
        >>> from types import SimpleNamespace
        >>> class Config: model_type = "seen"
        >>> tower, model = nn.Identity(), nn.Module()
        >>> tower.config, model.config = Config(), SimpleNamespace(vision_config=Config())
        >>> model.vision_model = tower
        >>> vision_tower(model)
        ('vision_model', Identity())
    """
    if "ForImageClassification" in type(model).__name__:
        return None
    config = vision_config(getattr(model, "config", None))
    if config is getattr(model, "config", None):
        return None
    return next(
        (
            (site, part)
            for site, part in model.named_modules()
            if site and type(getattr(part, "config", None)) is type(config)
        ),
        None,
    )


def vision_config(config: Any) -> Any:
    """Return the part of a configuration that is about images; all of it if it has no parts.

    Args:
        config: Of a model of transformers.
    """
    parts = (getattr(config, name, None) for name in _CONFIGS)
    return next((part for part in parts if hasattr(part, "model_type")), config)
