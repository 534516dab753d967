"""Checks of vision-language models before they generate."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from visattn.pipelines.words.language_model import PIXEL_NAMES, weight_dtype


def check_captioner(model: nn.Module) -> None:
    """Refuse a model that does not generate text from images with attention that can be recorded.

    Raises:
        TypeError: If it has no `generate`, takes no images, or is a wrapper of another.
    """
    name = type(model).__name__
    if name == "OptimizedModule":
        raise TypeError("the model must not be wrapped by torch.compile: pass model._orig_mod")
    if callable(getattr(model, "get_base_model", None)):  # peft
        raise TypeError(
            f"the model must be one of transformers, got the wrapper {name}: pass "
            "model.get_base_model(), which has the adapters, or model.merge_and_unload()"
        )
    if not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"the model must generate text as those of transformers do, but {name} has no generate"
        )
    parameters = inspect.signature(type(model).forward).parameters
    if not any(pixels in parameters for pixels in PIXEL_NAMES):
        raise TypeError(
            f"the model must take images ({', '.join(PIXEL_NAMES)}); {name} takes "
            f"{', '.join(list(parameters)[1:4])}: is it a text-only model?"
        )


def why_no_image_tokens(model: nn.Module) -> str:
    """Return why no key of the words depends on pixels without attention in between.

    Example:
        >>> why_no_image_tokens(torch.nn.Linear(1, 1))
        'the image passes attention before words read it'
    """
    for site, module in model.named_modules():
        path = type(module).__module__
        kind = type(module).__name__
        if ".quantized" in path:
            return (
                f"{site} is quantized to integers ({kind}), through which no gradient flows; use "
                "the model with its floating-point weights"
            )
        if "VQ" in kind or "VectorQuantizer" in kind:
            return (
                f"{site} ({kind}) turns the image into discrete codes, through which no gradient "
                "flows; such models are not supported"
            )
    return "the image passes attention before words read it"


def check_prompt_length(
    model: nn.Module, inputs: Sequence[Mapping[str, Any]], generate_kwargs: Mapping[str, Any]
) -> None:
    """Refuse a prompt that leaves no room for the words.

    Raises:
        ValueError: If prompt and words are longer than the context of the model.
    """
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1 or getattr(config, "is_encoder_decoder", False):
        return
    for of_photo in inputs:
        ids = of_photo.get("input_ids")
        length = ids.shape[1] if isinstance(ids, Tensor) else 1
        words = int(generate_kwargs.get("max_new_tokens") or 1)
        if length + words > longest:
            raise ValueError(
                f"prompt and words must fit into the {longest} positions of "
                f"{type(model).__name__}, got {length} tokens of prompt and image, and "
                f"max_new_tokens={words}: shorten the prompt, or make the photo smaller"
            )


def check_prompt_end(model: nn.Module, inputs: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a prompt that ends in image tokens, if these have positions along several axes.

    `generate` of transformers then counts on from the last image token along each axis, where a
    forward pass over prompt and words, as in training, gives each word one position.

    Raises:
        ValueError: If a prompt ends so.
    """
    if not any(hasattr(module, "get_rope_index") for module in model.modules()):
        return
    for of_photo in inputs:
        types = of_photo.get("mm_token_type_ids")
        if isinstance(types, Tensor) and bool(types[:, -1].any()):
            raise ValueError(
                f"the prompt of {type(model).__name__} must end with text, got one that ends with "
                "the photo, after which generate of transformers gives words other positions than "
                "the model was trained with: write an instruction behind the photo"
            )


def replay_memory(
    model: nn.Module, inputs: Mapping[str, Any], num_words: int, *, heads: bool = False
) -> dict[str, int]:
    """Return the bytes that are kept of attention, and what eager attention would keep.

    Returns:
        `kept` bytes of rows and `eager` bytes of `output_attentions`, both upper bounds.
    """
    config: Any = model.config
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    layers = int(getattr(text, "num_hidden_layers", 1))
    num_heads = int(getattr(text, "num_attention_heads", 1))
    ids = inputs.get("input_ids")
    prompt = ids.shape[1] if isinstance(ids, Tensor) else 1
    dtype = weight_dtype(model)
    # Per weight: float16 for each head, and float32 for their mean.
    row = num_heads * 2 + 4 if heads else 4
    kept = layers * num_words * prompt * row
    eager = layers * num_heads * (prompt + num_words) ** 2 * torch.finfo(dtype).bits // 8
    return {"kept": kept, "eager": eager}


def check_memory(model: nn.Module, inputs: Mapping[str, Any], *, share: float = 1.0) -> None:
    """Refuse a forward pass whose complete attention weights do not fit into free memory.

    They are kept of a share of the layers.

    Raises:
        ValueError: If the weights are larger than the free memory of the model's device.
    """
    needed = round(share * replay_memory(model, inputs, 0)["eager"])
    device = next(model.parameters()).device
    free = free_memory(device)
    if free is not None and needed > free:
        raise ValueError(
            f"the attention weights of this caption take at least {needed / 1e9:,.1f} GB, but "
            f"{free / 1e9:,.1f} GB are free on {device}: use the method attention, which keeps "
            "rows of words only, a smaller photo, or fewer words"
        )


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device; None if they are not known.

    Example:
        >>> free_memory(torch.device("meta")) is None
        True
    """
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    memory = Path("/proc/meminfo")
    if device.type != "cpu" or not memory.is_file():
        return None
    lines = dict(line.split(":", 1) for line in memory.read_text().splitlines())
    available = lines.get("MemAvailable")
    return None if available is None else 1024 * int(available.split()[0])
