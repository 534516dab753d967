"""Preprocessing of photos and prompts with the processors of transformers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

PIXEL_NAMES = ("pixel_values", "flattened_patches")
DEFAULT_PROMPTS = {
    "instructblip": "A short image description.",
    "florence2": "<CAPTION>",
    "paligemma": "caption en",
    "kosmos-2": "<grounding>An image of",
}
"""Prompts of models that were trained with a fixed one for captions."""
_CHAT_PROMPT = "Describe this image."


class PhotoProcessor:
    """Turns photos and a prompt into the inputs of a model.

    Args:
        model: A model that generates text from images.
        processor: A processor of transformers, or an image processor and a tokenizer.
        prompt: Text before the generated words: an instruction of a chat model, the beginning of
            the caption for others. By default that of the model's training, "Describe this image."
            for chat models, none for others.

    Raises:
        TypeError: If the processor has no image processor or no tokenizer.
        ValueError: If the prompt has several photos.
    """

    def __init__(self, model: nn.Module, processor: Any, prompt: str | None = None) -> None:
        self.model = model
        self.joint: Any
        self.image_processor: Any
        self.tokenizer: Any
        if isinstance(processor, (tuple, list)):
            self.joint, (self.image_processor, self.tokenizer) = None, processor
        else:
            self.joint = processor
            self.image_processor = getattr(processor, "image_processor", None)
            self.tokenizer = getattr(processor, "tokenizer", None)
        if self.image_processor is None or not hasattr(self.tokenizer, "decode"):
            raise TypeError(
                "processor must be a processor of transformers, or a pair of image processor and "
                f"tokenizer, got {type(processor).__name__}; AutoProcessor.from_pretrained(DIR) "
                "returns one, or pass (AutoImageProcessor..., AutoTokenizer...)"
            )
        self.special_ids = frozenset(getattr(self.tokenizer, "all_special_ids", ()))
        self.text = self._text(prompt)

    def __call__(self, images: Sequence[Image.Image | Tensor], **images_kwargs: Any) -> dict[str, Any]:
        """Return the inputs of `generate` for a batch of photos, on the device of the model."""
        if self.joint is None or self.text is None:
            inputs = dict(self._pixels(images, images_kwargs))
            if self.text is not None:
                ids = self.tokenizer(self.text, add_special_tokens=False).input_ids
                inputs["decoder_input_ids"] = torch.tensor([ids] * len(images))
        else:
            inputs = dict(self._joint(images, images_kwargs))
        inputs.pop("labels", None)
        return {name: self._to_model(value) for name, value in inputs.items()}

    def unnormalized(self, image: Image.Image) -> dict[str, Any]:
        """Return the inputs of a photo whose pixels are not normalized."""
        try:
            return self([image], do_normalize=False)
        except NotImplementedError:  # a step that integers do not have
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
            return self([pixels], do_normalize=False)

    def fingerprint(self) -> tuple[str, ...]:
        """Return what decides where pixels come from: the processors and their settings."""
        settings: Any = getattr(self.image_processor, "to_dict", lambda: vars(self.image_processor))
        kinds = (type(each).__qualname__ for each in (self.joint, self.image_processor))
        return (*kinds, repr(sorted(settings().items())))

    def _pixels(self, images: Sequence[Image.Image | Tensor], images_kwargs: dict[str, Any]) -> Any:
        return self.image_processor(images=list(images), return_tensors="pt", **images_kwargs)

    def _joint(self, images: Sequence[Image.Image | Tensor], images_kwargs: dict[str, Any]) -> Any:
        kwargs: dict[str, Any] = {"text": [self.text] * len(images), "return_tensors": "pt"}
        if len(images) > 1:
            kwargs["padding"] = True
        if images_kwargs:
            kwargs["images_kwargs"] = images_kwargs
        with _left_padding(self.tokenizer):
            try:
                return self.joint(images=list(images), **kwargs)
            except (ValueError, TypeError, IndexError):
                if len(images) == 1:
                    raise
            return self.joint(images=[[image] for image in images], **kwargs)

    def _to_model(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        dtype = next(self.model.parameters()).dtype
        return value.to(_input_device(self.model), dtype if value.is_floating_point() else None)

    def _text(self, prompt: str | None) -> str | None:
        """Return the complete prompt; None for models that take none."""
        model_type = str(getattr(getattr(self.model, "config", None), "model_type", ""))
        image_token = getattr(self.joint, "image_token", None)
        image_token = str(getattr(image_token, "content", image_token or ""))
        has_template = getattr(self.joint, "chat_template", None) is not None
        if prompt is None:
            prompt = DEFAULT_PROMPTS.get(model_type, _CHAT_PROMPT if has_template else None)
        if image_token and prompt is not None and image_token in prompt:
            if (count := prompt.count(image_token)) > 1:
                raise ValueError(
                    f"prompt must have one photo, got {count} times {image_token}: several photos "
                    "in a prompt are not supported, caption them one by one"
                )
            return prompt
        if has_template:
            content = [{"type": "image"}, {"type": "text", "text": prompt}]
            messages = [{"role": "user", "content": content}]
            return self.joint.apply_chat_template(messages, add_generation_prompt=True)
        inserts_itself = model_type in (
            "paligemma",
            "florence2",
            "kosmos-2",
            "blip-2",
            "instructblip",
        )
        if image_token and not inserts_itself:
            return f"{image_token}{prompt or ''}"
        return prompt


def _input_device(model: nn.Module) -> torch.device:
    """Return the device of the first weights; those that are offloaded to disk or memory have none.

    With a device map, the hooks of accelerate move inputs to the weights of each layer.
    """
    devices = (weight.device for weight in model.parameters())
    return next((device for device in devices if device.type != "meta"), torch.device("cpu"))


@contextmanager
def _left_padding(tokenizer: Any) -> Iterator[None]:
    """Pad at the left, so that the last position is that of the last token of each prompt."""
    side = tokenizer.padding_side
    tokenizer.padding_side = "left"
    try:
        yield
    finally:
        tokenizer.padding_side = side


def pixel_name(inputs: dict[str, Any]) -> str:
    """Return the name of the input that holds the pixels.

    Raises:
        ValueError: If there is none, or there are videos.
    """
    if any("video" in name for name in inputs):
        raise ValueError("videos are not supported: pass one photo at a time")
    if several := [name for name in inputs if "pixel_values" in name and name not in PIXEL_NAMES]:
        raise ValueError(
            f"the model must read the photo once, but its processor also returns {several[0]}: "
            "models with two vision encoders are not supported"
        )
    for name in PIXEL_NAMES:
        if isinstance(inputs.get(name), Tensor):
            return name
    raise ValueError(
        f"the processor must return {' or '.join(PIXEL_NAMES)}, got {', '.join(inputs)}"
    )
