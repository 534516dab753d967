"""Prompts are what the examples of transformers pass: text, chat messages, or one per photo."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_vlms import build
from tokenizers.processors import TemplateProcessing
from torch.nn import functional as F
from vlm_runs import options, photo, sharp

import visattn
from visattn.pipelines.words.captions import PhotoWords, read_words
from visattn.pipelines.words.language_model import PhotoProcessor

PHOTO = {"type": "image"}
TEXT = "w7 w8 w9"
"""Families whose processors return a prompt as labels, or which have none of their own."""


def say(role: str, *content: Any) -> dict[str, Any]:
    parts = [each if isinstance(each, dict) else {"type": "text", "text": each} for each in content]
    return {"role": role, "content": parts}


def ids_of(processor: Any) -> list[int]:
    """Return the ids of `TEXT`."""
    tokenizer = processor[1] if isinstance(processor, tuple) else processor.tokenizer
    return tokenizer.convert_tokens_to_ids(TEXT.split())


def captions(family: str, images: Any, prompt: Any, **more: Any) -> list[PhotoWords]:
    model, processor = sharp(family)
    results = read_words(model, images, processor=processor, prompt=prompt,
                                **options(family, **more))  # fmt: skip
    return [replay for [replay] in results]


def test_chat_messages_are_rendered_as_the_processor_does() -> None:
    model, processor = sharp("qwen2_vl")
    messages = [say("system", "w10"), say("user", PHOTO, "w1 w2"), say("assistant", "w7"),
                say("user", "w8")]  # fmt: skip
    [replay] = captions("qwen2_vl", photo(), messages)
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    ids = processor(images=[Image.fromarray(photo().pixels)], text=[text], return_tensors="pt")
    prompt = replay.inputs["input_ids"][:, : ids["input_ids"].shape[1]]
    assert prompt.tolist() == ids["input_ids"].tolist()
    [rendered] = captions("qwen2_vl", photo(), text)
    assert rendered.text.tokens.tolist() == replay.text.tokens.tolist()
    torch.testing.assert_close(rendered.text.rows, replay.text.rows)
    assert PhotoProcessor(model, processor, text).text == text


def test_a_list_of_prompts_has_one_for_each_photo() -> None:
    photos = [photo(), photo((90, 180), seed=1), photo((180, 90), seed=2)]
    prompts = ["<image> w1", "<image> w2 w3 w4", "w5"]
    together = captions("llava", photos, prompts)
    for image, prompt, result in zip(photos, prompts, together, strict=True):
        [alone] = captions("llava", image, prompt)
        assert alone.text.tokens.tolist() == result.text.tokens.tolist()
        torch.testing.assert_close(alone.text.rows, result.text.rows, atol=2e-6, rtol=0)


@pytest.mark.parametrize("count", [1, 3])
def test_other_numbers_of_prompts_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=rf"one for each of 2 photos, got {count}"):
        captions("llava", [photo(), photo()], ["w1"] * count, max_new_tokens=1, min_new_tokens=1)


@pytest.mark.parametrize(
    ("family", "prompt", "match"),
    [
        ("qwen2_vl", [say("user", "w1")], "add {'type': 'image'}"),
        ("qwen2_vl", [{"role": "user", "content": "w1"}], "add {'type': 'image'}"),
        ("qwen2_vl", [say("user", PHOTO, PHOTO)], "exactly one photo, got 2 photos in"),
        ("qwen2_vl", [say("user", {"type": "video"})], "one photo, but they contain a video"),
        ("llava", [say("user", PHOTO, "w1")], "chat template"),
        *(("llava", wrong, "must be text, or chat") for wrong in (5, b"w1", {"role": "user"})),
    ],
)
def test_prompts_that_do_not_fit_are_refused(family: str, prompt: Any, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        PhotoProcessor(*build(family), prompt)


def test_rendered_prompts_of_another_image_token_are_kept() -> None:
    model, processor = build("internvl")  # its template writes <image>, it inserts <IMG_CONTEXT>
    processor.chat_template = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<IMG_CONTEXT>"
        "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
    )
    processor.image_token = "<other>"
    text = "<IMG_CONTEXT> w1"
    assert PhotoProcessor(model, processor, text).text == text
    assert PhotoProcessor(model, processor, "w1").text == "<IMG_CONTEXT>w1"


@pytest.mark.parametrize(
    "family", ["ved", "donut", "blip", "blip2", "git", "llava", "qwen2_vl", "paligemma",
               "florence2", "kosmos2", "pix2struct", "mllama", "nougat"],
)  # fmt: skip
def test_a_prompt_reaches_the_model(family: str) -> None:
    [replay] = captions(family, photo(), TEXT, max_new_tokens=2, min_new_tokens=2)
    lists = [value.flatten().tolist() for value in replay.inputs.values()
             if isinstance(value, torch.Tensor) and not value.is_floating_point()]  # fmt: skip
    texts = [" ".join(map(str, each)) for each in lists]
    kept = ids_of(sharp(family)[1])
    kept = kept[1:2] if family == "blip" else kept  # its generate removes what BERT tokenizers add
    assert any(" ".join(map(str, kept)) in each for each in texts)


@pytest.mark.parametrize("family", ["ved", "trocr", "donut", "nougat", "pix2struct"])
def test_decoders_continue_the_prompt(family: str) -> None:
    model, processor = sharp(family)
    [replay] = captions(family, photo(), TEXT)
    images = processor[0] if isinstance(processor, tuple) else processor.image_processor
    own = images(images=[Image.fromarray(photo().pixels)], return_tensors="pt")
    settings: Any = model.generation_config
    starts = [settings.decoder_start_token_id]
    start = [] if family in ("donut", "nougat") else starts
    ids = torch.tensor([[*start, *ids_of(processor), *replay.text.tokens.tolist()]])
    with torch.no_grad():
        logits = model(**own, decoder_input_ids=ids[:, :-1]).logits[0, -len(replay.text.tokens) :]
    expected = -F.cross_entropy(logits, replay.text.tokens, reduction="none")
    torch.testing.assert_close(replay.text.log_probs, expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_questions_above_the_photo_are_no_image_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    images = sharp("pix2struct")[1].image_processor
    monkeypatch.setattr(images, "is_vqa", True)

    def render(text: str, **_: Any) -> Image.Image:  # half as wide as the photo
        return Image.linear_gradient("L").resize((150, 10 * len(text.split()))).convert("RGB")

    monkeypatch.setattr(inspect.getmodule(type(images)), "render_text", render)
    for text, top, height, first in ((TEXT, 36, 48, 6), ("w7", 30, 50, 0)):
        [replay] = captions("pix2struct", photo(), text)  # 180 x 300 pixels below 60, or 20
        edges = torch.tensor([0, *(top + height * row for row in range(4))])
        placed = replay.placement.boxes[::6, [1, 3]]
        torch.testing.assert_close(placed, torch.stack([edges[:-1], edges[1:]], 1).float(),
                                   atol=0.5, rtol=0)  # fmt: skip
        assert replay.tokens.columns.tolist() == list(range(first, first + 24))
    with pytest.raises(ValueError, match="draws a question above the photo; pass it as prompt"):
        captions("pix2struct", photo(), None)


def test_a_prompt_may_end_with_the_photo() -> None:
    """Whose tokens have positions along three axes, from which `generate` counts on."""
    model: Any = sharp("qwen2_vl")[0]
    [replay] = captions("qwen2_vl", photo(), "w1 <|image_pad|>")
    plain = model.generate(**replay.inputs, **options("qwen2_vl"))
    assert plain[0, -5:].tolist() == replay.text.tokens.tolist()
    assert replay.gradient_attention().shape == replay.attention().shape


def test_prompts_that_cannot_be_used_are_refused() -> None:
    for family, name in (("git", "Git"), ("blip", "Blip")):
        model, processor = sharp(family)
        pair = (processor.image_processor, processor.tokenizer)
        with pytest.raises(ValueError, match=f"prompt of {name}.* needs the processor of"):
            read_words(model, photo(), processor=pair, prompt=TEXT, **options(family))
    prompts = ["w1", "w2 w3"]
    alone = captions("ved", [photo()] * 2, prompts)
    assert [each.inputs["decoder_input_ids"].shape[1] for each in alone] == [1, 2]


def with_begin_token() -> tuple[Any, Any]:
    """LLaVA whose template writes the begin token, and whose tokenizer adds it, as in Gemma 3."""
    model, processor = build("llava")
    processor.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    processor.chat_template = (
        "{{ bos_token }} {% if tools %}w9 {% endif %}{% for m in messages %}"
        "{% for p in m.content %}{% if p.type == 'image' %}<image> {% else %}"
        "{{ p.text }} {% endif %}{% endfor %}{% endfor %}"
    )
    return model, processor


@pytest.mark.parametrize("kind", ["text", "messages", "rendered", "held"])
def test_ids_and_text_are_those_of_apply_chat_template(kind: str) -> None:
    model, processor = with_begin_token()
    image = Image.fromarray(photo().pixels)
    held = [say("user", {"type": "image", "image": image}, "w1 w2")]
    bare = [say("user", PHOTO, "w1 w2")]
    inputs = processor.apply_chat_template(held, tokenize=True, return_dict=True,
                                           return_tensors="pt")  # fmt: skip
    words = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    expected = model.generate(**inputs, **words)[0, inputs["input_ids"].shape[1] :]
    rendered = processor.apply_chat_template(bare)
    prompt = {"text": "w1 w2", "messages": bare, "rendered": rendered, "held": held}[kind]
    [result] = visattn.caption(model, None if kind == "held" else image, processor=processor,
                               prompt=prompt, **words)  # fmt: skip
    process = PhotoProcessor(model, processor, bare if kind == "held" else prompt)
    assert process(image)["input_ids"].tolist() == inputs["input_ids"].tolist()
    decoded = processor.tokenizer.decode(expected, skip_special_tokens=True)
    assert result.text.split() == decoded.split()
    if kind == "held":
        with pytest.raises(ValueError, match="messages contain the photo; omit images"):
            visattn.caption(model, image, processor=processor, prompt=held)


def test_options_of_templates_and_pipelines_are_taken() -> None:
    model, processor = with_begin_token()
    image = Image.fromarray(photo().pixels)
    process = PhotoProcessor(model, processor, "w1", {"tools": [{"name": "w9"}]})
    assert process.text == "<s> w9 <image> w1 "
    pipe = SimpleNamespace(model=model, processor=processor, image_processor=None, tokenizer=None)
    length = process(image)["input_ids"].shape[1]
    [result] = visattn.caption(pipe, image, prompt="w1", max_length=length + 2,
                               chat_template_kwargs={"tools": [{"name": "w9"}]})  # fmt: skip
    assert len(result.log_probs) <= 3
