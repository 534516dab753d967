"""Checks of vision-language models before they generate."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from visattn.pipelines.words.language_model import PIXEL_NAMES


def as_captioner(model: Any) -> nn.Module:
    """Return the model of transformers inside adapters of peft, if it generates text from images.

    Raises:
        TypeError: If it does not.
        ValueError: If its adapters are virtual tokens, which the model itself does not have.
    """
    if callable(getattr(model, "get_base_model", None)):  # peft
        if any(config.is_prompt_learning for config in model.peft_config.values()):
            raise ValueError(
                f"{type(model).__name__} has virtual tokens of prompt, prefix or p-tuning, which "
                "generate in a way that cannot be replayed: words have maps with LoRA and other "
                "adapters of weights"
            )
        model = model.get_base_model()  # it has the adapters
    name = type(model).__name__
    if not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"the model must generate text as those of transformers do, but {name} has no generate"
        )
    if name.endswith("ForQuestionAnswering"):
        raise TypeError(f"{name} answers questions: use visattn.ask")
    parameters = inspect.signature(type(model).forward).parameters
    if not any(pixels in parameters for pixels in PIXEL_NAMES):
        thinker = hasattr(model, "thinker")
        raise TypeError(
            f"the model must take images ({', '.join(PIXEL_NAMES)}); {name} takes "
            f"{', '.join(list(parameters)[1:4])}: "
            + ("pass model.thinker, which does" if thinker else "is it a text-only model?")
        )
    return model


def check_prompt(
    model: nn.Module, inputs: Mapping[str, Any], generate_kwargs: Mapping[str, Any]
) -> None:
    """Refuse a prompt that leaves no room for the words, or one that is positioned otherwise.

    Where image tokens have positions along several axes, `generate` of transformers counts on from
    the last image token along each axis if the prompt ends with it, but a forward pass over prompt
    and words, as in training, gives each word one position.

    Raises:
        ValueError: If prompt and words are longer than the context of the model, or a prompt ends
            with such tokens.
    """
    name = type(model).__name__
    config: Any = model.config
    text = config.get_text_config(decoder=True)
    longest = getattr(text, "max_position_embeddings", None)
    several = any(hasattr(module, "get_rope_index") for module in model.modules())
    ids, types = inputs.get("input_ids"), inputs.get("mm_token_type_ids")
    words = int(generate_kwargs.get("max_new_tokens") or 1)
    length = ids.shape[1] if isinstance(ids, Tensor) else 1
    if longest and not config.is_encoder_decoder and length + words > longest:
        raise ValueError(
            f"prompt and words must fit into the {longest} positions of {name}, got {length} "
            f"tokens of prompt and image, and max_new_tokens={words}: shorten the prompt, or "
            "make the photo smaller"
        )
    if several and isinstance(types, Tensor) and bool(types[:, -1].any()):
        raise ValueError(
            f"the prompt of {name} must end with text, got one that ends with the photo, after "
            "which generate of transformers gives words other positions than the model was "
            "trained with: write an instruction behind the photo"
        )
