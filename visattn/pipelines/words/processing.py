"""Preprocessing of photos and prompts with the processors of transformers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from visattn.pipelines.words.spans import same_length

PIXEL_NAMES = (
    "pixel_values", "flattened_patches", "image_pixel_values", "pixel_values_images",
    "image_patches",
)  # fmt: skip
DEFAULT_PROMPTS = {
    "instructblip": "A short image description.",
    "florence2": "<CAPTION>",
    "paligemma": "caption en",
    "kosmos-2": "<grounding>An image of",
    "kosmos-2.5": "<ocr>",
    "fuyu": "Generate a coco-style caption.\n",
}
"""Prompts of models that were trained with a fixed one for captions."""
_CHAT_PROMPT = "Describe this image."
_INSERT_IMAGE_TOKENS = ("paligemma", "florence2", "kosmos-2", "blip-2", "instructblip", "fuyu")
"""Models whose processors write the image tokens themselves."""

Messages = Sequence[Mapping[str, Any]]


class PhotoProcessor:
    """Turns photos and a prompt into the inputs of a model.

    Args:
        model: A model that generates text from images.
        processor: A processor of transformers, or an image processor and a tokenizer.
        prompt: Text before the generated words: an instruction of a chat model, the beginning of
            the caption for others, or chat messages as for `apply_chat_template`. By default that
            of the model's training, "Describe this image." for chat models, none for others.

    Raises:
        TypeError: If the processor has no image processor or no tokenizer, or the prompt is neither
            text nor messages.
        ValueError: If the prompt has several photos, or messages do not fit the processor.
    """

    def __init__(
        self, model: nn.Module, processor: Any, prompt: str | Messages | None = None
    ) -> None:
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
            if hasattr(processor, "video_processor"):
                raise TypeError(
                    f"{type(processor).__name__} processes videos, but no photos: models of videos "
                    "are not supported"
                )
            raise TypeError(
                "processor must be a processor of transformers, or a pair of image processor and "
                f"tokenizer, got {type(processor).__name__}; AutoProcessor.from_pretrained(DIR) "
                "returns one, or pass (AutoImageProcessor..., AutoTokenizer...)"
            )
        if prompt == "":
            raise ValueError("prompt must be a text or None, got ''")
        self.special_ids = frozenset(getattr(self.tokenizer, "all_special_ids", ()))
        self.text = self._text(prompt)

    def __call__(
        self,
        images: Sequence[Image.Image | Tensor],
        *,
        texts: Sequence[str | None] | None = None,
        **images_kwargs: Any,
    ) -> dict[str, Any]:
        """Return the inputs of `generate` for a batch of photos, on the device of the model.

        Args:
            images: The photos.
            texts: The complete prompt of each; by default that of this object.
            images_kwargs: Options of the image processor.
        """
        if self.joint is None or self.text is None:
            inputs = dict(self._pixels(images, images_kwargs))
            if self.text is not None:
                ids = self.tokenizer(self.text, add_special_tokens=False).input_ids
                inputs["decoder_input_ids"] = torch.tensor([ids] * len(images))
        else:
            inputs = dict(self._joint(images, texts or [self.text] * len(images), images_kwargs))
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

    def _joint(
        self,
        images: Sequence[Image.Image | Tensor],
        texts: Sequence[str | None],
        images_kwargs: dict[str, Any],
    ) -> Any:
        kwargs: dict[str, Any] = {"text": list(texts), "return_tensors": "pt"}
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
        dtype = weight_dtype(self.model)
        return value.to(_input_device(self.model), dtype if value.is_floating_point() else None)

    def _text(self, prompt: str | Messages | None) -> str | None:
        """Return the complete prompt; None for models that take none."""
        model_type = str(getattr(getattr(self.model, "config", None), "model_type", ""))
        image_token = getattr(self.joint, "image_placeholder_token", None)
        image_token = image_token or getattr(self.joint, "image_token", None)
        image_token = str(getattr(image_token, "content", image_token or ""))
        has_template = getattr(self.joint, "chat_template", None) is not None
        if is_chat(prompt):
            return self._rendered(prompt)
        if prompt is None:
            prompt = DEFAULT_PROMPTS.get(model_type, _CHAT_PROMPT if has_template else None)
        elif not isinstance(prompt, str):
            raise TypeError(
                "prompt must be text, or chat messages such as [{'role': 'user', 'content': "
                f"[{{'type': 'image'}}, {{'type': 'text', 'text': 'Why?'}}]}}], got {prompt!r:.80}"
            )
        markers = [image_token] if image_token else []
        if has_template and prompt is not None:
            markers.append(self._image_marker())
        for marker in filter(None, markers):
            if prompt is not None and marker in prompt:
                _check_one_photo(prompt.count(marker), f"times {marker}")
                return prompt
        if has_template:
            content = [{"type": "image"}, {"type": "text", "text": prompt}]
            return self._rendered([{"role": "user", "content": content}])
        if image_token and model_type not in _INSERT_IMAGE_TOKENS:
            return f"{image_token}{prompt or ''}"
        return prompt

    def _rendered(self, messages: Messages) -> str:
        """Return chat messages as text.

        Raises:
            ValueError: If they have no photo or several, or there is no chat template.
        """
        parts = [
            part
            for message in messages
            for part in (message["content"] if isinstance(message["content"], list) else [])
        ]
        photos = [part for part in parts if part.get("type") in ("image", "image_url")]
        if any(part.get("type") == "video" for part in parts):
            raise ValueError("videos are not supported: pass one photo at a time")
        _check_one_photo(len(photos), "photos in the messages")
        if not photos:
            raise ValueError(
                "the messages must say where the photo stands: add {'type': 'image'} to the "
                "content of one of them"
            )
        if extra := [key for key in photos[0] if key != "type"]:
            raise ValueError(
                f"the photo of the messages is the one in images, but they have {extra[0]!r} of "
                "their own: write {'type': 'image'} instead"
            )
        if getattr(self.joint, "chat_template", None) is None:
            raise ValueError(
                f"chat messages need a processor with a chat template, which "
                f"{type(self.joint or self.image_processor).__name__} has not: pass text as prompt"
            )
        answered = messages[-1]["role"] == "assistant"  # the model continues its answer
        options = {"continue_final_message" if answered else "add_generation_prompt": True}
        return self.joint.apply_chat_template(messages, **options)

    def _image_marker(self) -> str:
        """Return what the chat template writes for a photo, which a rendered prompt has."""
        text = {"type": "text", "text": "\0"}
        try:
            without, with_photo = (
                self.joint.apply_chat_template([{"role": "user", "content": content}])
                for content in ([text], [{"type": "image"}, text])
            )
        except Exception:  # noqa: BLE001 (of the template, which wants other messages)
            return ""
        same = same_length(without, with_photo)
        return with_photo[same : same + len(with_photo) - len(without)].strip()


def is_chat(prompt: Any) -> TypeGuard[Messages]:
    """Whether a prompt is a list of chat messages.

    Example:
        >>> is_chat([{"role": "user", "content": "Why?"}]), is_chat("Why?"), is_chat(["Why?"])
        (True, False, False)
    """
    return (
        isinstance(prompt, (list, tuple))
        and len(prompt) > 0
        and all(isinstance(each, Mapping) and {"role", "content"} <= {*each} for each in prompt)
    )


def list_prompts(prompt: Any) -> list[Any] | None:
    """Return one prompt per photo if there is a list of them, else None.

    Args:
        prompt: Text, chat messages, or a list of either.

    Example:
        >>> list_prompts(["Why?", "Where?"]), list_prompts("Why?")
        (['Why?', 'Where?'], None)
    """
    if isinstance(prompt, (list, tuple)) and not is_chat(prompt):
        return list(prompt)
    return None


def _check_one_photo(count: int, what: str) -> None:
    if count > 1:
        raise ValueError(
            f"prompt must have one photo, got {count} {what}: several photos in a prompt are not "
            "supported, caption them one by one"
        )


def weight_dtype(model: nn.Module) -> torch.dtype:
    """Return the type of the first floating-point weights; quantized ones are integers.

    Args:
        model: The model.

    Example:
        >>> weight_dtype(nn.Linear(1, 1, dtype=torch.bfloat16))
        torch.bfloat16
    """
    types = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    return next(types, torch.get_default_dtype())


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
    if any("video" in name for name in inputs if name not in PIXEL_NAMES):
        raise ValueError("videos are not supported: pass one photo at a time")
    names = [name for name in inputs if "pixel_values" in name or name in PIXEL_NAMES]
    if len(names) > 1:
        raise ValueError(
            "the model must read the photo through one input, but its processor returns "
            f"{' and '.join(names)}: models with two vision encoders, or with an input of its own "
            "for tiles, are not supported"
        )
    for name in PIXEL_NAMES:
        if isinstance(inputs.get(name), Tensor):
            return name
    raise ValueError(
        f"the processor must return {', '.join(PIXEL_NAMES[:-1])} or {PIXEL_NAMES[-1]}, got "
        f"{', '.join(inputs)}"
    )
