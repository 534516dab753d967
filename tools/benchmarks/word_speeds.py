"""Speed of captions with maps of vision-language models, compared with `generate` alone."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image

from benchmarks.clocks import in_turn
from benchmarks.transformer_speeds import SpeedFigure
from visattn.images.reader import LoadedImage
from visattn.pipelines.words.replay import generate_and_replay

PARTS = ("tiny", "base")
WORDS = 20
SIZES = {"tiny": (64, 2, 2), "base": (768, 12, 12)}  # width, layers and heads of both parts


class Letters:
    """A tokenizer whose tokens are numbers."""

    all_special_ids = (0,)

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Return the numbers, with spaces."""
        return " ".join(map(str, ids))


def word_figures(parts: Sequence[str], *, rounds: int) -> Iterator[SpeedFigure]:
    """Measure captions of one size after the other.

    Raises:
        AssertionError: If the words differ.
    """
    for part in parts:
        yield caption_speed(part, rounds)


def caption_speed(part: str, rounds: int) -> SpeedFigure:
    """Time a caption of 20 words with maps, of a ViT and a GPT-2 with random weights."""
    width, layers, heads = SIZES[part]
    torch.manual_seed(0)
    encoder = hf.ViTConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
                           intermediate_size=4 * width)  # fmt: skip
    decoder = hf.GPT2Config(n_embd=width, n_layer=layers, n_head=heads, add_cross_attention=True)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model: Any = hf.VisionEncoderDecoderModel(config).eval()
    images = hf.ViTImageProcessor()
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    options = {"max_new_tokens": WORDS, "min_new_tokens": WORDS, "do_sample": False,
               "decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 0}  # fmt: skip

    def plain() -> Any:
        inputs = images(images=[Image.fromarray(pixels)], return_tensors="pt")
        return model.generate(**inputs, **options)

    def maps() -> Any:
        [[replay]] = generate_and_replay(
            model, LoadedImage(pixels), processor=(images, Letters()), **options
        )
        return replay, replay.caption()

    replay = maps()[0]  # places of image tokens are found once, here
    if replay.token_ids.tolist() != plain()[0, -WORDS:].tolist():
        raise AssertionError("the words with maps must be those of generate")
    timings = in_turn({"ours": plain, "maps": maps}, rounds)  # the ratio is maps / plain
    seconds = {"generate": timings["ours"].seconds, "with maps": timings["maps"].seconds}
    inputs = images(images=[Image.fromarray(pixels)], return_tensors="pt")
    share = replay.rows.nbytes / eager_bytes(model, {**inputs, **options})
    title = f"caption of {WORDS} words, {part}, s; kept {share:.2%} of eager attention; time ratio"
    return SpeedFigure(title, seconds, *timings["maps"][1:], "target: at most 1.25")


def eager_bytes(model: Any, arguments: dict[str, Any]) -> int:
    """Return the bytes of attention that `generate` returns with `output_attentions`."""
    model.set_attn_implementation("eager")
    output = model.generate(**arguments, return_dict_in_generate=True, output_attentions=True)
    steps = (*output.decoder_attentions, *output.cross_attentions)
    return sum(each.nbytes for layers in (output.encoder_attentions, *steps) for each in layers)
