"""Classifiers whose classes are texts, from models that embed images and texts."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from visattn.attribution.model_defaults import default_mean_std
from visattn.io.messages import did_you_mean
from visattn.models.backbones.huggingface import image_transform, is_image_processor
from visattn.models.base import NormalizedInput
from visattn.models.loaded import Loaded, loaded_with, mark
from visattn.models.weights import load_weights
from visattn.recording.model_config import parse_image_size, vision_config


class TextPromptClassifier(NormalizedInput):
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
        self.set_input(img_size, mean, std)
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
        self.network = network
        self.embed = embed
        self.name = name
        self.class_names = tuple(texts)
        self.logit_scale = logit_scale
        self.logit_bias = logit_bias
        self.sigmoid = sigmoid
        features = normalize(text_features.detach(), dim=-1)
        self.register_buffer("text_features", features, persistent=False)

    def forward(self, images: Tensor) -> Float[Tensor, "b t"]:
        """Return the logits of uint8 images, or of float images that are normalized already."""
        return self.classify(self.normalize(images))

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


_LONG = 4096  # tokens; longer texts fit no tower


def text_classifier(
    model: nn.Module, texts: Sequence[str], processor: Any = None
) -> TextPromptClassifier:
    """Return an image-text model as a classifier of texts, with its preprocessing.

    Args:
        model: A model of transformers with `get_image_features` and `get_text_features`, or any
            module with `encode_image` and `encode_text`, such as those of open_clip.
        texts: Texts to compare images with.
        processor: Processor of transformers, or its tokenizer; for open_clip the tokenizer, a
            function from a list of texts to token ids. By default that which the model was loaded
            with, or its attribute `tokenizer`.

    Raises:
        TypeError: If texts are not a list of strings.
        ValueError: If the model has no text tower or no tokenizer, or a text has more tokens than
            the text tower takes.
    """
    check_texts(texts)
    loaded = loaded_with(model)
    own = loaded.processor or getattr(model, "tokenizer", None)
    processor = own if processor is None else processor
    is_clip = hasattr(model, "encode_image") and hasattr(model, "encode_text")
    if not is_clip and not hasattr(model, "get_text_features"):
        raise ValueError(
            "text= needs a model with a text tower (CLIP, SigLIP, ALIGN, ... of transformers, or "
            f"open_clip), but {type(model).__name__} has none"
        )
    tokenizer = processor[1] if isinstance(processor, tuple) else processor
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    if not callable(tokenizer):
        raise ValueError(  # noqa: TRY004 (none was passed)
            f"texts need the tokenizer of {type(model).__name__}: pass processor=, the processor "
            "or tokenizer that belongs to its weights"
        )
    build = _of_open_clip if is_clip else _of_transformers
    if is_image_processor(processor):
        loaded = Loaded(loaded.weights, processor=processor)
    classifier, transform = build(model, texts, tokenizer, image_transform(loaded))
    mark(classifier, Loaded(loaded.weights, tuple(texts), transform))
    return classifier


_Built = tuple[TextPromptClassifier, Any]


def _of_transformers(
    model: nn.Module, texts: Sequence[str], tokenizer: Any, transform: Any
) -> _Built:
    config = cast("Any", model).config
    tokens = _tokenize(tokenizer, texts, config)
    with torch.no_grad():
        features = _pooled(cast("Any", model.eval()).get_text_features(**tokens))
    size = parse_image_size(getattr(vision_config(config), "image_size", None) or 224)
    mean, std = default_mean_std(str(config.model_type))

    def embed(network: nn.Module, images: Tensor) -> Tensor:
        return _pooled(cast("Any", network).get_image_features(pixel_values=images))

    colors = {"img_size": size, "mean": mean, "std": std, **_input_of(transform, size)}
    name = str(config.model_type)
    return (
        TextPromptClassifier(model, embed, texts, features, name=name, **colors, **_head(model)),
        transform,
    )


def _pooled(output: Any) -> Float[Tensor, "b d"]:
    """Return embeddings from the output of `get_image_features` or `get_text_features`."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _tokenize(tokenizer: Any, texts: Sequence[str], config: Any) -> dict[str, Tensor]:
    """Return the inputs of the text tower; texts that are too long are refused."""
    text_config = getattr(config, "text_config", config)
    kind = str(getattr(text_config, "model_type", ""))
    positions = int(getattr(text_config, "max_position_embeddings", 0) or _LONG)
    # RoBERTa counts positions from the number of the padding token + 1 on: those before are unused.
    if "roberta" in kind:
        positions -= int(getattr(text_config, "pad_token_id", 1) or 1) + 1
    limit = min(positions, int(getattr(tokenizer, "model_max_length", _LONG)))
    for text, ids in zip(texts, tokenizer(list(texts), verbose=False)["input_ids"], strict=True):
        _check_length(text, len(ids), limit)
    # SigLIP reads the last position, so that its texts are padded to full length
    full = kind.startswith("siglip")
    padding: Any = {"padding": "max_length", "max_length": limit} if full else {"padding": True}
    tokens = tokenizer(list(texts), return_tensors="pt", **padding)
    names = ("input_ids",) if full else ("input_ids", "attention_mask", "token_type_ids")
    return {name: tokens[name] for name in names if name in tokens}


def _check_length(text: str, count: int, limit: int) -> None:
    if count > limit:
        raise ValueError(
            f"a text must have at most {limit} tokens, the context of the text tower; got {count} "
            f"in {text[:60]!r}...: shorten it (it is not cut off silently)"
        )


def _head(model: nn.Module) -> dict[str, Any]:
    """Return how a model makes logits of the cosine, as options of `TextPromptClassifier`."""
    bias = getattr(model, "logit_bias", None)
    scale = 1.0
    if isinstance(logarithm := getattr(model, "logit_scale", None), Tensor):
        scale = float(logarithm.detach().exp())
    elif (temperature := getattr(model, "temperature", None)) is not None:
        scale = 1 / float(torch.as_tensor(temperature).detach())
    offset = 0.0 if bias is None else float(bias.detach())
    return {"logit_scale": scale, "logit_bias": offset, "sigmoid": bias is not None}


def _input_of(transform: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Return image size, mean and std that a transform produces, where it says them."""
    from torchvision.transforms import v2  # slow to import

    steps = getattr(transform, "transforms", None)
    if not steps:
        return {}
    output = v2.Compose(steps[1:])(torch.zeros(3, 2 * size[0], 2 * size[1], dtype=torch.uint8))
    colors = [{"mean": each.mean, "std": each.std} for each in steps if hasattr(each, "mean")]
    return {"img_size": tuple(output.shape[-2:]), **(colors[-1] if colors else {})}


def load_open_clip(name: str, weights: Path | None) -> nn.Module:
    """Return a model of open_clip with its tokenizer."""
    try:
        library: Any = importlib.import_module("open_clip")
    except ImportError as error:
        raise ImportError("open_clip models need open_clip: pip install open_clip_torch") from error
    if name not in library.list_models():
        hint = did_you_mean(name, library.list_models())
        raise ValueError(f"unknown open_clip model {name!r}; {hint}")
    model = library.create_model(name, pretrained=None, pretrained_text=False)
    notes = load_weights(model, weights).notes if weights else ()
    tokenizer = library.get_tokenizer(name)
    return mark(model, Loaded(str(weights or "random"), processor=tokenizer, notes=notes))


def _of_open_clip(model: nn.Module, texts: Sequence[str], tokenizer: Any, transform: Any) -> _Built:
    with torch.no_grad():
        features = cast("Any", model.eval()).encode_text(_clip_tokens(tokenizer, texts))
    visual = getattr(model, "visual", model)
    size = parse_image_size(getattr(visual, "image_size", None) or 224)
    defaults = default_mean_std("clip")
    mean = tuple(getattr(visual, "image_mean", None) or defaults[0])
    std = tuple(getattr(visual, "image_std", None) or defaults[1])
    classifier = TextPromptClassifier(
        model,
        lambda network, images: cast("Any", network).encode_image(images),
        texts,
        features,
        img_size=size,
        mean=mean,
        std=std,
        name=type(model).__name__,
        **_head(model),
    )
    config = getattr(visual, "preprocess_cfg", None) or {}
    return classifier, transform or _clip_transform(config, size, mean, std)


def _clip_tokens(tokenizer: Any, texts: Sequence[str]) -> Int[Tensor, "t n"]:
    """Return token ids; texts that the tokenizer would cut off are refused."""
    tokens = torch.as_tensor(tokenizer(list(texts)))
    try:
        untruncated = torch.as_tensor(tokenizer(list(texts), context_length=_LONG))
    except TypeError:  # a tokenizer without that argument, which cannot cut off
        return tokens
    for text, row in zip(texts, untruncated, strict=True):
        # Behind a text stands padding, whose tokens equal the last one: count them from the end.
        padding = int((row.flip(0) != row[-1]).int().argmax())
        _check_length(text, _LONG - padding, tokens.shape[1])
    return tokens


def _clip_transform(
    config: dict[str, Any], size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Any:
    """Return the preprocessing of an open_clip model: its config, or that of CLIP."""
    from torchvision.transforms import InterpolationMode, v2  # slow to import

    mode = InterpolationMode(config.get("interpolation", "bicubic"))
    steps: list[Any] = [v2.Resize(size, mode)]
    if config.get("resize_mode", "shortest") == "shortest" and size[0] == size[1]:
        steps = [v2.Resize(size[0], mode), v2.CenterCrop(size)]
    elif config.get("resize_mode", "shortest") != "squash":
        raise ValueError("the preprocessing of the model is not followed: pass transform=")
    steps += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    return v2.Compose(steps)
