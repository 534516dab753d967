"""Image classifier whose classes are texts, from a model that embeds images and texts."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from visattn.models.normalization import check_normalization, normalize_images


class TextPromptClassifier(nn.Module):
    """Zero-shot classifier: its logits are `scale * cos(image, text) + bias`.

    Attribution methods explain it like any other classifier, with one class for each text.

    Args:
        network: Module that embeds images; its submodules are recorded and explained.
        embed: From the network and normalized images to embeddings.
        texts: Texts, used as class names.
        text_features: Embedding of each text; it is normalized.
        img_size: Height and width of the images.
        mean: Mean of each color channel, in [0, 1].
        std: Standard deviation of each color channel.
        logit_scale: Factor of the cosine.
        logit_bias: Added to the scaled cosine.
        sigmoid: Whether probabilities are a sigmoid for each text, instead of a softmax over them.
        name: Name of the architecture.

    Raises:
        ValueError: If there is no text, a text is empty or repeated, an embedding is missing or
            zero, or the scale is not positive.

    Example:
        >>> tower = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> model = TextPromptClassifier(
        ...     tower, lambda tower, images: tower(images), ["red", "gray"],
        ...     torch.tensor([[2.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), img_size=(4, 4),
        ...     mean=(0.5,) * 3, std=(0.5,) * 3, logit_scale=10.0)
        >>> model(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(1, 3, 4, 4))
        tensor([[10.0000,  5.7735]])

    Source:
        Radford et al. 2021, arXiv:2103.00020, section 3.1; with a bias, Zhai et al. 2023,
        arXiv:2303.15343.
    """

    text_features: Tensor
    shift: Tensor
    range: Tensor

    def __init__(
        self,
        network: nn.Module,
        embed: Callable[[nn.Module, Tensor], Tensor],
        texts: Sequence[str],
        text_features: Float[Tensor, "t d"],
        *,
        img_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        logit_scale: float = 1.0,
        logit_bias: float = 0.0,
        sigmoid: bool = False,
        name: str = "",
    ) -> None:
        super().__init__()
        check_texts(texts)
        check_normalization(img_size, mean, std, (1, 3))
        if text_features.ndim != 2 or len(text_features) != len(texts):
            raise ValueError(
                f"text_features must be [{len(texts)}, d], one embedding for each text, got "
                f"{list(text_features.shape)}"
            )
        if not bool((text_features.norm(dim=-1) > 0).all()) or not logit_scale > 0:
            raise ValueError(
                "text embeddings must not be zero or NaN, and logit_scale must be positive; got "
                f"norms {text_features.norm(dim=-1).tolist()} and scale {logit_scale}"
            )
        self.network, self.embed, self.name = network, embed, name
        self.class_names = tuple(texts)
        self.img_size = (int(img_size[0]), int(img_size[1]))
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.logit_scale, self.logit_bias, self.sigmoid = logit_scale, logit_bias, sigmoid
        buffers = {
            "text_features": normalize(text_features.detach(), dim=-1),
            "shift": torch.tensor(self.mean).view(-1, 1, 1) * 255,
            "range": torch.tensor(self.std).view(-1, 1, 1) * 255,
        }
        for key, value in buffers.items():
            self.register_buffer(key, value, persistent=False)

    def forward(self, images: Tensor) -> Float[Tensor, "b t"]:
        """Return the logits of uint8 images, or of float images that are normalized already."""
        return self.classify(self.normalize(images))

    def normalize(self, images: Tensor) -> Float[Tensor, "b c y x"]:
        """Normalize uint8 images; floats are normalized already."""
        return normalize_images(images, self.shift, self.range)

    def classify(self, images: Float[Tensor, "_ c y x"]) -> Float[Tensor, "_ t"]:
        """Return the logits of normalized images."""
        return self.cosine(images) * self.logit_scale + self.logit_bias

    def cosine(self, images: Float[Tensor, "_ c y x"]) -> Float[Tensor, "_ t"]:
        """Return the cosine similarity of normalized images with each text."""
        features = normalize(self.embed(self.network, images), dim=-1)
        return features @ self.text_features.to(features).T

    def cosine_of(self, logits: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the cosine similarities that belong to logits."""
        return (logits - self.logit_bias) / self.logit_scale

    def probabilities(self, logits: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
        """Return the probability of each text: alone with a sigmoid, else among the texts."""
        return logits.sigmoid() if self.sigmoid else logits.softmax(-1)


def check_texts(texts: Sequence[str]) -> None:
    """Check that texts can be compared with an image.

    Raises:
        ValueError: If there is none, or one is empty or repeated.
        TypeError: If they are a single string, or not strings.

    Example:
        >>> check_texts(["a dog", " "])
        Traceback (most recent call last):
        ValueError: texts must not be empty, got ' '
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"texts must be a list of strings, got {texts!r}")
    if not texts:
        raise ValueError("there must be at least one text, got none")
    if empty := [text for text in texts if not text.strip()]:
        raise ValueError(f"texts must not be empty, got {empty[0]!r}")
    if repeated := [text for text in texts if list(texts).count(text) > 1]:
        raise ValueError(f"each text must be given once, got {repeated[0]!r} more than once")
