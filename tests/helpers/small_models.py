"""Small models with metadata written by hand, for tests of attribution methods."""

import torch
from torch import Tensor, nn

from visattn.recording.model_info import AttentionLayer, FeatureLayer, ModelInfo
from visattn.recording.subject import Subject

SIZE = (13, 17)
CLASSES = ("cat", "dog", "cow", "hen")


def small_cnn() -> Subject:
    """Return a CNN of 4 classes with in-place operations behind its feature layers."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(5, 7, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(7, 4),
    ).double()
    features = tuple(FeatureLayer(site, "b c y x", (7, 9)) for site in ("0", "2"))
    info = ModelInfo(
        "small", "other", SIZE, (0.5,) * 3, (0.25,) * 3, "none", feature_layers=features
    )
    return Subject(model, info, model, CLASSES)


def images(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, *SIZE, generator=generator, dtype=torch.float64)


def linear_model(weights: Tensor) -> Subject:
    """Return a model whose scores are `[k c y x]` weights times the image."""
    layer = nn.Linear(weights[0].numel(), len(weights)).double()
    model = nn.Sequential(nn.Flatten(), layer)
    with torch.no_grad():
        layer.weight.copy_(weights.flatten(1))
        layer.bias.zero_()
    channels, height, width = weights.shape[1:]
    info = ModelInfo(
        "linear", "other", (height, width), (0.5,) * channels, (0.25,) * channels, "none"
    )
    return Subject(model, info, model)


def token_info(*grids: tuple[int, int]) -> ModelInfo:
    """Return the metadata of a model with one layer of attention on each of the grids."""
    layers = tuple(
        AttentionLayer(f"blocks.{number}.attn", grid, 2, ("class",))
        for number, grid in enumerate(grids)
    )
    colors = (0.5,) * 3, (0.25,) * 3
    return ModelInfo("tokens", "other", SIZE, *colors, "class", attention_layers=layers)
