"""Classifiers whose classes are texts, from models that embed images and texts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from visattn.models.backbones.huggingface import image_transform
from visattn.models.base import NormalizedInput
from visattn.models.loaded import Loaded, loaded_with, mark
from visattn.recording.model_config import default_mean_std, parse_image_size, vision_config


class TextPromptClassifier(NormalizedInput):
    """Zero-shot classifier: its logits are `scale * cos(image, text) + bias`.

    Attribution methods explain it like any other classifier, with one class per text.

    Args:
        network: Module that embeds images; its submodules are recorded and explained.
        embed: Returns embeddings from the network and normalized images.
        texts: Texts, used as class names.
        text_features: Embedding of each text; it is normalized.
        img_size: Height and width of the images.
        mean: Mean of each color channel, in [0, 1].
        std: Standard deviation of each color channel.
        logit_scale: Factor of the cosine.
        logit_bias: Added to the scaled cosine.
        name: Name of the architecture.

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
        name: str = "",
    ) -> None:
        super().__init__()
        self.set_input(img_size, mean, std)
        self.network = network
        self.embed = embed
        self.name = name
        self.class_names = tuple(texts)
        self.logit_scale = logit_scale
        self.logit_bias = logit_bias
        features = normalize(text_features.detach(), dim=-1)
        self.register_buffer("text_features", features, persistent=False)

    def forward(self, images: Tensor) -> Float[Tensor, "b t"]:
        """Return the logits of uint8 images, or of normalized float images."""
        return self.classify(self.normalize(images))

    def classify(self, images: Float[Tensor, "_ c y x"]) -> Float[Tensor, "_ t"]:
        """Return the logits of normalized images."""
        features = normalize(self.embed(self.network, images), dim=-1)
        return features @ self.text_features.to(features).T * self.logit_scale + self.logit_bias

    def cosine_of(self, logits: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the cosine similarities that belong to logits."""
        return (logits - self.logit_bias) / self.logit_scale


_LONG = 4096  # tokens; no text tower takes longer texts


def text_classifier(
    model: nn.Module, texts: Sequence[str], processor: Any = None
) -> TextPromptClassifier:
    """Return an image-text model as a classifier of texts, with its preprocessing.

    Args:
        model: A model of transformers with `get_image_features` and `get_text_features`, or any
            module with `encode_image` and `encode_text`, such as those of open_clip.
        texts: Texts to compare images with.
        processor: Processor of transformers, or its tokenizer; for open_clip the tokenizer, a
            function from a list of texts to token ids. By default the one that the model was loaded
            with, or its attribute `tokenizer`.

    Raises:
        ValueError: If the model has no text tower or no tokenizer, there are no texts, texts are
            empty or repeated, or a text has too many tokens for the text tower.
    """
    if not texts or len({*texts}) < len(texts) or not all(text.strip() for text in texts):
        raise ValueError(f"texts must be one or more distinct non-empty texts, got {texts}")
    loaded = loaded_with(model)
    if processor is None:
        processor = loaded.processor or getattr(model, "tokenizer", None)
    tokenizer = processor[1] if isinstance(processor, tuple) else processor
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    kind = type(model).__name__
    if not (hasattr(model, "encode_text") or hasattr(model, "get_text_features")):
        raise ValueError(
            "text= needs a model with a text tower (CLIP, SigLIP, ALIGN, ... of transformers, or "
            f"open_clip), but {kind} has none"
        )
    if not callable(tokenizer):
        raise ValueError(  # noqa: TRY004 (none was passed)
            f"texts need the tokenizer of {kind}: pass processor=, the processor or tokenizer that "
            "belongs to its weights"
        )
    transform = image_transform(Loaded(processor=processor))
    build = _of_open_clip if hasattr(model, "encode_text") else _of_transformers
    with torch.no_grad():
        embed, features, size, mean, std = build(model.eval(), texts, tokenizer)
    if transform is None and hasattr(model, "encode_text"):
        config = getattr(getattr(model, "visual", None), "preprocess_cfg", None) or {}
        transform = _clip_transform(config, size, mean, std)
    inputs = {"img_size": size, "mean": mean, "std": std, **_input_of(transform, size)}
    classifier = TextPromptClassifier(
        model, embed, texts, features, name=kind, **inputs, **_logits_of(model)
    )
    mark(classifier, Loaded(loaded.weights, tuple(texts), transform))
    return classifier


_Embed = Callable[[nn.Module, Tensor], Tensor]
_Parts = tuple[_Embed, Tensor, tuple[int, int], Sequence[float], Sequence[float]]


def _of_transformers(model: Any, texts: Sequence[str], tokenizer: Any) -> _Parts:
    """Return a function that embeds images, the embeddings of texts, and size, mean and std."""

    def embed(network: Any, images: Tensor) -> Tensor:
        return _pooled(network.get_image_features(pixel_values=images))

    features = _pooled(model.get_text_features(**_tokenize(tokenizer, texts, model.config)))
    size = parse_image_size(getattr(vision_config(model.config), "image_size", None) or 224)
    return (embed, features, size, *default_mean_std(str(model.config.model_type)))


def _of_open_clip(model: Any, texts: Sequence[str], tokenizer: Any) -> _Parts:
    def embed(network: Any, images: Tensor) -> Tensor:
        return network.encode_image(images)

    features = model.encode_text(_clip_tokens(tokenizer, texts))
    visual = getattr(model, "visual", model)
    mean, std = default_mean_std("clip")
    mean = tuple(getattr(visual, "image_mean", None) or mean)
    std = tuple(getattr(visual, "image_std", None) or std)
    size = parse_image_size(getattr(visual, "image_size", None) or 224)
    return embed, features, size, mean, std


def _pooled(output: Any) -> Float[Tensor, "b d"]:
    """Return embeddings from the output of `get_image_features` or `get_text_features`."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _tokenize(tokenizer: Any, texts: Sequence[str], config: Any) -> dict[str, Tensor]:
    """Return the inputs of the text tower; texts that are too long raise an error."""
    text_config = getattr(config, "text_config", config)
    kind = str(getattr(text_config, "model_type", ""))
    positions = int(getattr(text_config, "max_position_embeddings", 0) or _LONG)
    # RoBERTa's positions start at the index of the padding token + 1.
    if "roberta" in kind:
        positions -= int(getattr(text_config, "pad_token_id", 1) or 1) + 1
    limit = min(positions, int(getattr(tokenizer, "model_max_length", _LONG)))
    for text, ids in zip(texts, tokenizer(list(texts), verbose=False)["input_ids"], strict=True):
        _check_length(text, len(ids), limit)
    # SigLIP reads the last position, so its texts are padded to full length
    full = kind.startswith("siglip")
    padding: Any = {"padding": "max_length", "max_length": limit} if full else {"padding": True}
    tokens = tokenizer(list(texts), return_tensors="pt", **padding)
    names = ("input_ids",) if full else ("input_ids", "attention_mask", "token_type_ids")
    return {name: tokens[name] for name in names if name in tokens}


def _check_length(text: str, count: int, limit: int) -> None:
    if count > limit:
        raise ValueError(
            f"a text must have at most {limit} tokens, the context of the text tower; got {count} "
            f"in {text[:60]!r}...: shorten it (texts are not truncated)"
        )


def _clip_tokens(tokenizer: Any, texts: Sequence[str]) -> Int[Tensor, "t n"]:
    """Return token ids; texts that the tokenizer would truncate raise an error."""
    tokens = torch.as_tensor(tokenizer(list(texts)))
    try:
        untruncated = torch.as_tensor(tokenizer(list(texts), context_length=_LONG))
    except TypeError:  # a tokenizer without that argument does not truncate
        return tokens
    for text, row in zip(texts, untruncated, strict=True):
        # Padding after a text repeats the last token, so count from the end.
        padding = int((row.flip(0) != row[-1]).int().argmax())
        _check_length(text, _LONG - padding, tokens.shape[1])
    return tokens


def _logits_of(model: Any) -> dict[str, Any]:
    """Return scale and bias of the logits, as options of `TextPromptClassifier`."""
    bias = getattr(model, "logit_bias", None)
    scale = getattr(model, "logit_scale", None)
    if scale is None and hasattr(model, "temperature"):  # ALIGN
        scale = -torch.as_tensor(model.temperature).log()
    return {
        "logit_scale": 1.0 if scale is None else float(scale.detach().exp()),
        "logit_bias": 0.0 if bias is None else float(bias.detach()),
    }


def _input_of(transform: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Return the image size, mean and std of a transform, if it has them."""
    from torchvision.transforms import v2  # slow to import

    steps = getattr(transform, "transforms", None)
    if not steps:
        return {}
    on_tensors = v2.Compose([step for step in steps if not isinstance(step, v2.PILToTensor)])
    output = on_tensors(torch.zeros(3, 2 * size[0], 2 * size[1], dtype=torch.uint8))
    colors = [{"mean": each.mean, "std": each.std} for each in steps if hasattr(each, "mean")]
    return {"img_size": tuple(output.shape[-2:]), **(colors[-1] if colors else {})}


def _clip_transform(
    config: dict[str, Any], size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Any:
    """Return the preprocessing of an open_clip model: from its config, or that of CLIP."""
    from torchvision.transforms import InterpolationMode, v2  # slow to import

    mode = InterpolationMode(config.get("interpolation", "bicubic"))
    resize_mode = config.get("resize_mode", "shortest")
    if resize_mode not in ("shortest", "squash"):
        raise ValueError(f"the resize mode {resize_mode} is not supported: pass transform=")
    is_cropped = resize_mode == "shortest"
    steps: list[Any] = [v2.Resize(size[0] if is_cropped else size, mode)]
    steps += [v2.CenterCrop(size)] if is_cropped else []
    steps += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    return v2.Compose(steps)
