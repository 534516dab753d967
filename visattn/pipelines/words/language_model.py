"""Inputs of vision-language models of transformers, for a photo and a prompt."""

import inspect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from os.path import commonprefix
from typing import Any, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from visattn.recording.frozen import first_weight
from visattn.recording.interception import fused_kernels

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
"""Prompts of models that were trained with a fixed caption prompt."""
_CHAT_PROMPT = "Describe this image."
_INSERT_IMAGE_TOKENS = ("paligemma", "florence2", "kosmos-2", "blip-2", "instructblip", "fuyu")
"""Models whose processors insert the image tokens themselves."""

Messages = Sequence[Mapping[str, Any]]
_Photo = Image.Image | Tensor
_PHOTO_PARTS = ("image", "image_url")


class PhotoProcessor:
    """Turns a photo and a prompt into the inputs of a model.

    Args:
        model: A model that generates text from images.
        processor: A processor of transformers, or an image processor and a tokenizer.
        prompt: Text before the generated words: an instruction for chat models, the beginning of
            the caption for others, or chat messages as for `apply_chat_template`. By default the
            one of the model's training, "Describe this image." for chat models, none for others.
        template: Options of `apply_chat_template`, such as `tools` or `enable_thinking`.

    Raises:
        TypeError: If the processor has no image processor or no tokenizer, or the prompt is neither
            text nor messages.
        ValueError: If the prompt has no photo or several, or the processor cannot render messages.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        prompt: str | Messages | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.processor = processor
        self.template = template or {}
        self.joint: Any
        self.image_processor: Any
        self.tokenizer: Any
        if isinstance(processor, (tuple, list)):
            self.joint = None
            self.image_processor, self.tokenizer = processor
        else:
            self.joint = processor
            self.image_processor = getattr(processor, "image_processor", None)
            self.tokenizer = getattr(processor, "tokenizer", None)
        if self.image_processor is None or not hasattr(self.tokenizer, "decode"):
            raise TypeError(
                "processor must be a processor of transformers for photos, or a pair of image "
                f"processor and tokenizer, got {type(processor).__name__}; "
                "AutoProcessor.from_pretrained(DIR) returns one, or pass "
                "(AutoImageProcessor..., AutoTokenizer...)"
            )
        if prompt == "":
            raise ValueError("prompt must be a text or None, got ''")
        self.special_ids = frozenset(getattr(self.tokenizer, "all_special_ids", ()))
        self.text = self._text(prompt)

    def __call__(self, photo: _Photo, **images_kwargs: Any) -> dict[str, Any]:
        """Return the inputs of `generate` for a photo, on the device of the model.

        Args:
            photo: The photo.
            images_kwargs: Options of the image processor.
        """
        if self.joint is None or self.text is None or self._is_continued:
            inputs = self._pixels(photo, {"return_tensors": "pt", **images_kwargs})
        else:
            kwargs: dict[str, Any] = {"text": [self.text], "return_tensors": "pt"}
            if images_kwargs:
                kwargs["images_kwargs"] = images_kwargs
            # text from `apply_chat_template` already has the begin token
            begin = getattr(self.tokenizer, "bos_token", None)
            if begin and self.text.startswith(begin):
                kwargs["add_special_tokens"] = False
            inputs = dict(self.joint(images=[photo], **kwargs))
        inputs.pop("labels", None)
        return {name: self._to_model(value) for name, value in inputs.items()}

    def with_prompt(self, prompt: str) -> "PhotoProcessor":
        """Return a copy with another prompt."""
        return PhotoProcessor(self.model, self.processor, prompt, self.template)

    def unnormalized(self, image: Image.Image) -> dict[str, Any]:
        """Return the inputs for a photo, with unnormalized pixels."""
        try:
            return self(image, do_normalize=False)
        except NotImplementedError:  # an operation that integers do not support
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
            return self(pixels, do_normalize=False)

    @property
    def _is_continued(self) -> bool:
        """Whether the prompt is the start of the decoder's text, as encoders read only photos.

        Processors of such models return it as training labels, if at all.
        """
        parameters = inspect.signature(type(self.model).forward).parameters
        return "decoder_input_ids" in parameters and "input_ids" not in parameters

    def _pixels(self, photo: _Photo, options: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of models that read only the photo, or continue a text."""
        name = type(self.image_processor).__name__
        if getattr(self.image_processor, "is_vqa", False):  # it draws the question above the photo
            if self.text is None:
                raise ValueError(
                    f"{name} with is_vqa=True draws a question above the photo; pass it as prompt"
                )
            try:
                header = [self.text]
                return dict(self.image_processor(images=[photo], header_text=header, **options))
            except FileNotFoundError as error:
                raise ValueError(
                    f"{name} draws the question above the photo with a font of the Hub, which "
                    "could not be downloaded; run once with a network connection"
                ) from error
        inputs = dict(self.image_processor(images=[photo], **options))
        if self.text is None:
            return inputs
        if not self._is_continued:
            raise ValueError(
                f"the prompt of {type(self.model).__name__} needs the processor of the model; pass "
                "it instead of an image processor and a tokenizer"
            )
        ids = self.tokenizer(self.text, add_special_tokens=False).input_ids
        return {**inputs, "decoder_input_ids": torch.tensor([ids])}

    def _to_model(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        dtype = first_weight(self.model).dtype
        return value.to(_input_device(self.model), dtype if value.is_floating_point() else None)

    def _text(self, prompt: str | Messages | None) -> str | None:
        """Return the complete prompt; None for models without one."""
        model_type = str(getattr(getattr(self.model, "config", None), "model_type", ""))
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
        token = self._placeholder()
        markers = [token] if token else []
        if has_template and prompt is not None:
            markers.append(self._image_marker())
        # a prompt with a placeholder for the photo is complete
        for marker in filter(None, markers):
            if prompt is not None and marker in prompt:
                _check_count(prompt.count(marker), f"times {marker}")
                return prompt
        if has_template:
            content = [{"type": "image"}, {"type": "text", "text": prompt}]
            return self._rendered([{"role": "user", "content": content}])
        if token and model_type not in _INSERT_IMAGE_TOKENS:
            return f"{token}{prompt or ''}"
        return prompt

    def _placeholder(self) -> str:
        """Return the placeholder token of a photo in a prompt; "" if there is none."""
        names = ("image_placeholder_token", "image_token")
        token = next(filter(None, (getattr(self.joint, name, None) for name in names)), "")
        return str(getattr(token, "content", token))

    def _rendered(self, messages: Messages) -> str:
        """Render chat messages as text.

        Raises:
            ValueError: If they have no photo or several, or there is no chat template.
        """
        parts = [
            part
            for message in messages
            for part in (message["content"] if isinstance(message["content"], list) else [])
        ]
        if any(part.get("type") == "video" for part in parts):
            raise ValueError("the messages must contain one photo, but they contain a video")
        photos = [part for part in parts if part.get("type") in _PHOTO_PARTS]
        if not photos:
            raise ValueError(
                "the messages must contain the photo or a placeholder for it; add "
                "{'type': 'image'} to the content of one of them"
            )
        _check_count(len(photos), "photos in the messages")
        if getattr(self.joint, "chat_template", None) is None:
            raise ValueError(
                f"chat messages need a processor with a chat template, but "
                f"{type(self.joint or self.image_processor).__name__} has none; pass text as prompt"
            )
        answered = messages[-1]["role"] == "assistant"  # the model continues its answer
        options = {"continue_final_message" if answered else "add_generation_prompt": True}
        return self.joint.apply_chat_template(messages, **options, **self.template)

    def _image_marker(self) -> str:
        """Return the text that the chat template inserts for a photo; "" if unknown."""
        # The rendered texts differ only by the marker before the text:
        #
        #     user: \0 bot:
        #     user: <image>\0 bot:
        #
        # The marker starts where they first differ. The text is \0, with which no marker starts:
        # with "<b", they would differ one letter later, and "image><" would be cut out.
        text = {"type": "text", "text": "\0"}
        try:
            without, with_photo = (
                self.joint.apply_chat_template([{"role": "user", "content": content}])
                for content in ([text], [{"type": "image"}, text])
            )
        except Exception:  # noqa: BLE001 (from a template that expects other messages)
            return ""
        same = len(commonprefix([without, with_photo]))  # noqa: RUF071
        return with_photo[same : same + len(with_photo) - len(without)].strip()


def as_captioner(model: Any) -> nn.Module:
    """Return the model of transformers inside adapters of peft, if it generates text from images.

    Raises:
        TypeError: If it does not.
        ValueError: If its adapters are virtual tokens, which the model inside does not have, or its
            attention kernel hides the weights.
    """
    if callable(getattr(model, "get_base_model", None)):  # peft
        if any(config.is_prompt_learning for config in model.peft_config.values()):
            raise ValueError(
                f"{type(model).__name__} uses virtual tokens (prompt, prefix or p-tuning), which "
                "are not supported; use LoRA or other adapters of weights"
            )
        model = model.get_base_model()  # includes the adapters
    name = type(model).__name__
    if not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"the model must have a method generate, as those of transformers do; {name} has none"
        )
    if name.endswith("ForQuestionAnswering"):
        raise TypeError(f"{name} answers questions instead of captioning; use visattn.ask")
    parameters = inspect.signature(type(model).forward).parameters
    if not any(pixels in parameters for pixels in PIXEL_NAMES):
        thinker = hasattr(model, "thinker")
        raise TypeError(
            f"the model must take images ({', '.join(PIXEL_NAMES)}); {name} takes "
            f"{', '.join(list(parameters)[1:4])}; "
            + ("pass model.thinker, which does" if thinker else "it may be a text-only model")
        )
    for kernel in fused_kernels(model).values():
        raise ValueError(
            f"the attention of {name} must run as 'sdpa' or 'eager' to be recorded, got "
            f"{kernel!r}, which hides its weights; call model.set_attn_implementation('sdpa'), or "
            "'eager' if it uses soft-capping"
        )
    return model


def is_chat(prompt: Any) -> TypeGuard[Messages]:
    """Whether a prompt is a list of chat messages.

    Example:
        >>> is_chat([{"role": "user", "content": "Why?"}]), is_chat("Why?"), is_chat(["Why?"])
        (True, False, False)
    """
    return (
        isinstance(prompt, (list, tuple))
        and len(prompt) > 0
        and all(isinstance(item, Mapping) and {"role", "content"} <= {*item} for item in prompt)
    )


def take_photo(prompt: Any) -> tuple[Any, Any]:
    """Return chat messages without the photo that they contain, and the photo or None.

    Example:
        >>> said = [{"role": "user", "content": [{"type": "image", "image": "a.jpg"}]}]
        >>> take_photo(said)
        ([{'role': 'user', 'content': [{'type': 'image'}]}], 'a.jpg')
    """
    if not is_chat(prompt):
        return prompt, None
    photos: list[Any] = []

    def bare(part: Any) -> Any:
        if not isinstance(part, Mapping) or part.get("type") not in _PHOTO_PARTS:
            return part
        photos.extend(value for key, value in part.items() if key != "type")
        return {"type": "image"}

    messages = [
        {**said, "content": [bare(part) for part in said["content"]]}
        if isinstance(said["content"], (list, tuple))
        else said
        for said in prompt
    ]
    _check_count(max(len(photos), 1), "photos in the messages")
    photo = photos[0] if photos else None
    return messages, photo.get("url") if isinstance(photo, Mapping) else photo


def list_prompts(prompt: Any) -> list[Any] | None:
    """Return one prompt per photo if there is a list of texts or chats, else None.

    Example:
        >>> list_prompts(["Why?", "Where?"]), list_prompts("Why?")
        (['Why?', 'Where?'], None)
    """
    if isinstance(prompt, (list, tuple)) and not is_chat(prompt):
        return list(prompt)
    return None


def _check_count(count: int, what: str) -> None:
    """Check that a prompt has one photo."""
    if count != 1:
        raise ValueError(f"the prompt must have exactly one photo, got {count} {what}")


def _input_device(model: nn.Module) -> torch.device:
    """Return the device of the first weights that are not offloaded.

    With a device map, the hooks of accelerate move inputs to the weights of each layer.
    """
    devices = (weight.device for weight in model.parameters())
    return next((device for device in devices if device.type != "meta"), torch.device("cpu"))


def pixel_name(inputs: dict[str, Any]) -> str:
    """Return the name of the input that holds the pixels.

    Raises:
        ValueError: If there is none, or several.
    """
    names = [name for name in inputs if "pixel_values" in name or name in PIXEL_NAMES]
    if len(names) > 1:
        raise ValueError(
            "the model must read the photo through one input, but its processor returns "
            f"{' and '.join(names)}; models with two vision encoders, or with a separate input for "
            "tiles, are not supported"
        )
    for name in PIXEL_NAMES:
        if isinstance(inputs.get(name), Tensor):
            return name
    raise ValueError(
        f"the processor must return {', '.join(PIXEL_NAMES[:-1])} or {PIXEL_NAMES[-1]}, got "
        f"{', '.join(inputs)}"
    )


ONE_TEXT = {
    "do_sample": False, "num_beams": 1, "num_return_sequences": 1, "prompt_lookup_num_tokens": None,
}  # fmt: skip
"""Options of `generate` for a single text."""


def text_decoder(model: nn.Module) -> tuple[str, nn.Module]:
    """Return the name of the text decoder of a model, with a dot at its end, and the decoder."""
    own: Any = model
    decoder = own.get_decoder()
    decoder = getattr(decoder, "decoder", decoder)  # the decoder of an encoder-decoder
    name = next(name for name, module in model.named_modules() if module is decoder)
    return f"{name}.", decoder


def encoded(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs with the encoded photo, so that a model encodes it only once."""
    computed: dict[str, Any] = {}

    def stop(_: Any, input_ids: Tensor, **kwargs: Any) -> Tensor:
        names = ("mm_encoder_outputs", "encoder_outputs")  # decoder-only, encoder-decoder
        computed.update({name: kwargs[name] for name in names if kwargs.get(name)})
        return input_ids

    run_generate(model, inputs, {**ONE_TEXT, "max_new_tokens": 1, "custom_generate": stop})
    if "mm_encoder_outputs" in computed:
        inputs = {name: each for name, each in inputs.items() if name != pixel_name(inputs)}
    return {**inputs, **computed}


def run_generate(
    model: nn.Module, inputs: dict[str, Any], options: dict[str, Any], processor: Any = None
) -> Any:
    """Run `model.generate`.

    Args:
        model: The model.
        inputs: Its inputs, which are copied, since some models, such as BLIP, modify them.
        options: Options of `generate`.
        processor: A logits processor that is called after all others.

    Raises:
        ValueError: If classifier-free guidance mixes two runs for each word.
    """
    from transformers import GenerationMixin

    own: Any = model
    mixin: Any = GenerationMixin
    run, guidance = own.generate, getattr(own.generation_config, "guidance_scale", None)
    overridden = type(own).generate is not mixin.generate
    if overridden and "logits_processor" in inspect.signature(run).parameters:
        # Janus ignores it, and generates text without guidance
        run, guidance = partial(mixin.generate, own), None
    guidance = options.get("guidance_scale", guidance)
    if guidance not in (None, 1):
        raise ValueError("guidance_scale mixes two runs for each word, only one of which reads the "
                         "photo, so words have no single map; omit guidance_scale")  # fmt: skip
    processors = [*options.get("logits_processor", ()), *([processor] if processor else [])]
    chosen = {**options, "guidance_scale": guidance, "logits_processor": processors}
    with torch.no_grad():
        return run(**deepcopy(inputs), **chosen, return_dict_in_generate=True)
