"""Words of a LLaVA with maps: time, memory and values, compared with other libraries.

python -m benchmarks.word_peers --rounds 5      (in tools/; vlmprobe demands transformers 5.3)

pip install vl-saliency==1.1.6 'vlmprobe[transformers]==1.0.1' installs what is compared; what is
missing is left out.
"""

import copy
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.peak_memories import megabytes, printed_memory
from visattn.commands.options import CommandParser
from visattn.images.reader import LoadedImage
from visattn.pipelines.words import image_tokens
from visattn.pipelines.words.replay import generate_and_replay

hf: Any = transformers
WORDS = 20
OPTIONS = {"max_new_tokens": WORDS, "min_new_tokens": WORDS, "do_sample": False}
PEERS = {"vl-saliency": "vl_saliency", "vlmprobe": "vlm_probing"}
Rows = torch.Tensor | None


class Work:
    """A LLaVA with random weights: 24 x 24 image tokens, 8 layers and 8 heads in both parts.

    Args:
        width: Hidden size.
    """

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        size = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 8,
                "num_attention_heads": 8}  # fmt: skip
        vision = {**size, "model_type": "clip_vision_model", "patch_size": 14, "image_size": 336,
                  "projection_dim": 16}  # fmt: skip
        text = {**size, "model_type": "llama", "vocab_size": 200, "bos_token_id": 1,
                "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
        self.model = hf.LlavaForConditionalGeneration(hf.LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=4, image_seq_length=576,
        )).eval()  # fmt: skip
        images = hf.CLIPImageProcessor(size={"shortest_edge": 336},
                                       crop_size={"height": 336, "width": 336})  # fmt: skip
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                if "q_proj" in name or "k_proj" in name:  # attention that is far from even
                    weight.mul_(4.0)
        self.edited = copy.deepcopy(self.model)  # vlmprobe leaves its own attention in the model
        self.edited.set_attn_implementation("eager")
        self.processor = hf.LlavaProcessor(images, _tokenizer(), patch_size=14,
                                           vision_feature_select_strategy="default",
                                           num_additional_image_tokens=1)  # fmt: skip
        self.pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)

    def inputs(self) -> dict[str, Any]:
        """Return the processed photo and prompt."""
        image = Image.fromarray(self.pixels)
        return dict(self.processor(images=[image], text=["<image>w1 w2"], return_tensors="pt"))

    def use(self, kernel: str) -> None:
        """Set the attention implementation."""
        self.model.set_attn_implementation(kernel)

    @torch.no_grad()
    def generate(self, model: Any = None, **options: Any) -> Any:
        """Return inputs and what a model generates, by default the unchanged one."""
        inputs = self.inputs()
        return inputs, (model or self.model).generate(**inputs, **OPTIONS, **options)

    def plain(self) -> Rows:
        """Generate without maps, with fused attention."""
        self.use("sdpa")
        self.generate()

    def ours(self, *, first: bool) -> Rows:
        """Generate, and return the rows of visattn; the caption has the maps."""
        self.use("sdpa")
        if first:
            image_tokens._CACHE.clear()  # noqa: SLF001 (places of image tokens)
        [[replay]] = generate_and_replay(self.model, LoadedImage(self.pixels), prompt="w1 w2",
                                         processor=self.processor, **OPTIONS)  # fmt: skip
        replay.caption()
        return replay.rows

    def eager(self) -> Rows:
        """Generate with `output_attentions`."""
        self.use("eager")
        inputs, output = self.generate(output_attentions=True, return_dict_in_generate=True)
        steps = [torch.stack([layer[0, :, -1] for layer in step]).mean(1)
                 for step in output.attentions]  # fmt: skip
        return torch.stack([step[:, _columns(inputs)] for step in steps], 1)

    def vl_saliency(self) -> Rows:
        """Generate, and capture attention; the row of a token is that of the next one."""
        from vl_saliency import SaliencyExtractor  # pyright: ignore[reportMissingImports]

        self.use("eager")
        inputs, ids = self.generate()
        extractor = SaliencyExtractor(self.model, self.processor, store_grads=False)
        trace = extractor.capture(ids, **inputs)
        rows = [trace.map(token=step).map.mean(1).flatten(1) for step in range(WORDS - 1)]
        return torch.stack([rows[0] * torch.nan, *rows], 1)  # that of the first word is not kept

    def vlmprobe(self) -> Rows:
        """Generate, and profile attention with vlmprobe; that includes entropies and more."""
        from vlm_probing import Prober  # pyright: ignore[reportMissingImports]

        inputs, ids = self.generate(self.edited)
        whole = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        profile = Prober(self.edited, self.processor).attention.profile(include_attention=True)
        weights = profile.run(whole).tensors["attention"]
        first = inputs["input_ids"].shape[1] - 1
        rows = weights.flatten(1, -3)[:, :, first : first + WORDS].mean(1)
        return rows[..., _columns(inputs)]

    def runs(self) -> dict[str, Callable[[], Rows]]:
        """Return what is compared, by its name."""
        runs: dict[str, Callable[[], Rows]] = {
            "generate": self.plain,
            "visattn, first photo of a size": partial(self.ours, first=True),
            "visattn, later photos": partial(self.ours, first=False),
            "eager output_attentions": self.eager,
            "vl-saliency": self.vl_saliency,
            "vlmprobe": self.vlmprobe,
        }
        missing = {
            name for name, module in PEERS.items() if importlib.util.find_spec(module) is None
        }
        return {name: run for name, run in runs.items() if name not in missing}


def _tokenizer() -> Any:
    words = ["<pad>", "<s>", "</s>", "<unk>", "<image>", *(f"w{number}" for number in range(60))]
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip


def _columns(inputs: dict[str, Any]) -> torch.Tensor:
    return (inputs["input_ids"][0] == 4).nonzero()[:, 0]


def measured_memory(name: str, width: int) -> float:
    """Return the megabytes that one run adds to this process at its peak, after a plain one."""
    work = Work(width)
    work.plain()
    if "later" in name:
        work.ours(first=True)
    run = work.runs()[name]
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = megabytes("VmRSS")
    run()
    return megabytes("VmHWM") - before


def compare(width: int, rounds: int) -> None:
    """Print times, ratios, memory and differences of values."""
    work = Work(width)
    runs = work.runs()
    rows = {name: run() for name, run in runs.items()}
    expected = rows["eager output_attentions"]
    assert expected is not None  # noqa: S101
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            begin = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - begin)
    print(f"width {width}, transformers {hf.__version__}, {rounds} rounds")
    for name, times in seconds.items():
        ratios = [own / plain for own, plain in zip(times, seconds["generate"], strict=True)]
        memory = printed_memory("benchmarks.word_peers", ["--memory", name, "--width", str(width)])
        values = rows[name]
        distance = (
            "" if values is None else f"{float((values - expected).abs().nan_to_num().max()):.0e}"
        )
        print(
            f"| {name} | {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}) | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | "
            f"{memory:.0f} | {distance} |"
        )


def main(argv: Sequence[str]) -> int:
    """Compare, or print the memory of one run."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--memory", metavar="NAME")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.memory:
        print(measured_memory(args.memory, args.width))
    else:
        compare(args.width, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
