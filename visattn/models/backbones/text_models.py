"""Classifiers whose classes are texts, from models that embed images and texts."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from visattn.attribution.model_defaults import default_mean_std
from visattn.io.messages import did_you_mean
from visattn.models.backbones.huggingface import (
    huggingface_preprocessing,
    own_code_notes,
    processor_transform,
    read_huggingface_model,
)
from visattn.models.backbones.pretrained import LoadedModel
from visattn.models.base import NormalizedInput
from visattn.models.saving.weight_files import check_loaded_weights
from visattn.recording.frozen import frozen
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


_TOKENIZER_FILES = (
    "tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model",
)  # fmt: skip
_LONG = 4096  # tokens; longer texts fit no tower
_NO_TEXT = (
    "--text and text= need a model with a text tower (CLIP, SigLIP, ALIGN, ... of Hugging Face, or "
    "open_clip)"
)


def load_text_model(spec: str, texts: Sequence[str], *, weights: Path | None = None) -> LoadedModel:
    """Load an image-text model as a classifier of texts.

    The spec is `hf:DIRECTORY`, as `save_pretrained` of model and processor writes it, or
    `open_clip:NAME`, an architecture of open_clip, whose weights are in a file.

    Raises:
        FileNotFoundError: If the directory or file does not exist.
        ImportError: If the library is not installed.
        ValueError: If the model has no text tower, the directory has no tokenizer, or a text has
            more tokens than the text tower takes.
    """
    check_texts(texts)
    kind, _, name = spec.partition(":")
    if kind == "hf":
        if weights:
            raise ValueError(f"weights belong to open_clip:NAME; {spec} brings its own")
        return _load_huggingface(Path(name).expanduser(), texts)
    if kind == "open_clip":
        return _load_open_clip(name, texts, weights)
    hint = ""
    if kind == "timm":
        hint = (
            "; timm has vision towers only: load the same weights as hf:DIRECTORY or "
            "open_clip:NAME, or build a visattn.models.TextPromptClassifier from the tower and "
            "text embeddings of your own"
        )
    raise ValueError(f"{_NO_TEXT}, named hf:DIRECTORY or open_clip:NAME; got {spec!r}{hint}")


def text_classifier(model: nn.Module, texts: Sequence[str], processor: Any = None) -> LoadedModel:
    """Return an image-text model in memory as a classifier of texts, with its preprocessing.

    Args:
        model: A model of Hugging Face with `get_image_features` and `get_text_features`, or any
            module with `encode_image` and `encode_text`, such as those of open_clip.
        texts: Texts to compare images with.
        processor: Processor of Hugging Face, or its tokenizer; for open_clip the tokenizer, a
            function from a list of texts to token ids. Not needed if the model has a `tokenizer`.

    Raises:
        TypeError: If texts are not a list of strings, or the processor is of another kind.
        ValueError: If the model has no text tower or no tokenizer, or a text has more tokens than
            the text tower takes.
    """
    check_texts(texts)
    processor = getattr(model, "tokenizer", None) if processor is None else processor
    has_text_tower = hasattr(model, "get_text_features") or hasattr(model, "encode_text")
    if processor is None and has_text_tower:
        raise ValueError(
            f"texts need the tokenizer of {type(model).__name__}: pass processor=, the processor "
            "or tokenizer that belongs to its weights"
        )
    if hasattr(model, "get_image_features") and hasattr(model, "get_text_features"):
        tokenizer = getattr(processor, "tokenizer", processor)
        images = getattr(processor, "image_processor", None)
        transform = None if images is None else processor_transform(images)
        return _huggingface_classifier(model, texts, tokenizer, transform)
    if hasattr(model, "encode_image") and hasattr(model, "encode_text"):
        return _clip_classifier(model, texts, processor)
    raise ValueError(f"{_NO_TEXT}, but {type(model).__name__} has none")


def _load_huggingface(directory: Path, texts: Sequence[str]) -> LoadedModel:
    library, config, model = read_huggingface_model(directory)
    if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
        raise ValueError(f"{_NO_TEXT}, but {directory} holds a {type(model).__name__}")
    check_loaded_weights(model, directory)
    notes = own_code_notes(config)
    tokenizer = _read_tokenizer(library, directory)
    transform = huggingface_preprocessing(library, directory, model, notes)
    loaded = _huggingface_classifier(model, texts, tokenizer, transform)
    return replace(loaded, weights=str(directory), notes=tuple(notes))


def _read_tokenizer(library: Any, directory: Path) -> Any:
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(
            f"{directory} has no tokenizer ({', '.join(_TOKENIZER_FILES[:3])}, ...), which texts "
            "need: write it there with processor.save_pretrained(DIRECTORY), or copy the files of "
            "the processor beside the weights"
        )
    try:
        return library.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise ValueError(
            f"the tokenizer in {directory} cannot be built: {type(error).__name__}: {error}"
        ) from error


def _huggingface_classifier(
    model: nn.Module,
    texts: Sequence[str],
    tokenizer: Any,
    transform: Callable[..., Any] | None,
) -> LoadedModel:
    config = cast("Any", model).config
    if not callable(tokenizer):
        raise TypeError(f"processor must be a processor or tokenizer, got {type(tokenizer)}")
    tokens = _tokenize(tokenizer, texts, config)
    with frozen(model), torch.no_grad():
        features = _pooled(cast("Any", model).get_text_features(**tokens), "get_text_features")
    sizes = parse_image_size(getattr(vision_config(config), "image_size", None) or 224)
    mean, std = default_mean_std(str(config.model_type))
    if transform is not None:
        sizes, mean, std = _transform_summary(transform, sizes, mean, std)

    def embed(network: nn.Module, images: Tensor) -> Tensor:
        output = cast("Any", network).get_image_features(pixel_values=images)
        return _pooled(output, "get_image_features")

    name = str(config.model_type)
    classifier = TextPromptClassifier(
        model, embed, texts, features, img_size=sizes, mean=mean, std=std, name=name, **_head(model)
    )
    return LoadedModel(classifier.eval(), transform, tuple(texts), "in memory")


def _pooled(output: Any, name: str) -> Float[Tensor, "b d"]:
    """Return embeddings from the output of `get_image_features` or `get_text_features`."""
    features = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
    if not isinstance(features, Tensor) or features.ndim != 2:
        got = list(features.shape) if isinstance(features, Tensor) else type(output).__name__
        raise ValueError(f"{name} must return one embedding per row, [b, d], got {got}")
    return features


def _tokenize(tokenizer: Any, texts: Sequence[str], config: Any) -> dict[str, Tensor]:
    """Return the inputs of the text tower; texts that are too long are refused."""
    text_config = getattr(config, "text_config", config)
    positions = int(getattr(text_config, "max_position_embeddings", 0) or _LONG)
    # RoBERTa counts positions from the number of the padding token + 1 on: those before are unused.
    if "roberta" in str(getattr(text_config, "model_type", "")):
        positions -= int(getattr(text_config, "pad_token_id", 1) or 1) + 1
    limit = min(positions, int(getattr(tokenizer, "model_max_length", _LONG)))
    for text, ids in zip(texts, tokenizer(list(texts), verbose=False)["input_ids"], strict=True):
        _check_length(text, len(ids), limit)
    # SigLIP reads the last position, so that its texts are padded to full length
    full = str(getattr(text_config, "model_type", "")).startswith("siglip")
    padding: dict[str, Any] = (
        {"padding": "max_length", "max_length": limit} if full else {"padding": len(texts) > 1}
    )
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
    temperature = getattr(model, "temperature", None)
    scale = 1.0
    if isinstance(logarithm := getattr(model, "logit_scale", None), Tensor):
        scale = float(logarithm.detach().exp())
    elif temperature is not None:
        scale = 1 / float(torch.as_tensor(temperature).detach())
    return {
        "logit_scale": scale,
        "logit_bias": 0.0 if bias is None else float(bias.detach()),
        "sigmoid": bias is not None,
    }


def _transform_summary(
    transform: Any,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
) -> tuple[tuple[int, int], Sequence[float], Sequence[float]]:
    """Return image size, mean and std that a transform produces."""
    from torchvision.transforms import v2  # slow to import

    for step in transform.transforms:
        if isinstance(step, v2.Normalize):
            mean = step.mean
            std = step.std
    on_tensors = v2.Compose(transform.transforms[1:])  # after the conversion of the image
    output = on_tensors(torch.zeros(3, 2 * size[0], 2 * size[1], dtype=torch.uint8))
    return (output.shape[-2], output.shape[-1]), mean, std


def _load_open_clip(name: str, texts: Sequence[str], weights: Path | None) -> LoadedModel:
    try:
        library: Any = importlib.import_module("open_clip")
    except ImportError as error:
        raise ImportError("open_clip models need open_clip: pip install open_clip_torch") from error
    if name not in library.list_models():
        raise ValueError(
            f"unknown open_clip model {name!r}; {did_you_mean(name, library.list_models())}"
        )
    if weights and not weights.is_file():
        raise FileNotFoundError(f"no weights at {weights}")
    model = library.create_model(
        name, pretrained=str(weights) if weights else None, pretrained_text=False
    )
    if weights:
        check_loaded_weights(model, weights)
    loaded = _clip_classifier(model, texts, library.get_tokenizer(name), name)
    return replace(loaded, weights=str(weights or "random"))


def _clip_classifier(
    model: nn.Module, texts: Sequence[str], tokenizer: Any, name: str = ""
) -> LoadedModel:
    """Return a model with `encode_image` and `encode_text` as a classifier of texts."""
    if not callable(tokenizer):
        raise TypeError(
            "processor must be a tokenizer, a function from a list of texts to token ids; got "
            f"{type(tokenizer).__name__}"
        )
    with frozen(model), torch.no_grad():
        features = cast("Any", model).encode_text(_clip_tokens(tokenizer, texts))
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
        name=name or type(model).__name__,
        **_head(model),
    )
    transform = _clip_transform(getattr(visual, "preprocess_cfg", None) or {}, size, mean, std)
    return LoadedModel(classifier.eval(), transform, tuple(texts), "in memory")


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

    mode = config.get("resize_mode", "shortest")
    filters = {"bicubic": InterpolationMode.BICUBIC, "bilinear": InterpolationMode.BILINEAR}
    interpolation = filters.get(str(config.get("interpolation", "bicubic")))
    if mode not in ("shortest", "squash") or interpolation is None:
        raise ValueError(
            f"the preprocessing {mode!r} with filter {config.get('interpolation')!r} is not "
            "supported: pass a torchvision transform instead"
        )
    if mode == "squash":
        steps: list[Any] = [v2.Resize(size, interpolation)]
    elif size[0] == size[1]:
        steps = [v2.Resize(size[0], interpolation), v2.CenterCrop(size)]
    else:
        raise ValueError(f"images of {size[0]} x {size[1]} cannot be cropped: pass a transform")
    return v2.Compose(
        [*steps, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    )
