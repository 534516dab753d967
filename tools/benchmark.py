"""Times visattn's ways against the plain ones, in one run, turn by turn.

    python tools/benchmark.py                 training and search
    python tools/benchmark.py training        one of them
    python tools/benchmark.py blocks          every block, against timm's and a plain one; hours
    python tools/benchmark.py blocks --only se cbam --table docs/blocks_speed.md
    python tools/benchmark.py glimpses        the retina, and an epoch of 60,000 digits; minutes
    python tools/benchmark.py transformers    Vision Transformers against others'; minutes
    python tools/benchmark.py transformers --only growth --table docs/attention_growth.md

Machines are noisy: read the ratio of the medians, and its spread over the rounds; the seconds
belong to this machine and this hour. Each comparison also checks that both ways give the same.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.functional.captions import caption_loss
from visattn.functional.search import Rules, beam_search
from visattn.models.captioners import END, PAD, SPECIALS, START, UNKNOWN
from visattn.models.encoders import ImageEncoder
from visattn.models.soft_attention import SoftAttentionCaptioner


class Comparison(NamedTuple):
    """Two ways to the same result, and how much faster ours is meant to be."""

    title: str
    plain: Callable[[], object]
    ours: Callable[[], object]
    floor: float


class GivenFeatures(ImageEncoder):
    """Stands where an encoder would: the features themselves are made up."""

    def __init__(self, channels: int, grid: tuple[int, int]) -> None:
        super().__init__((32, 32), (0.5,) * 3, (0.5,) * 3)
        self.channels, self.grid = channels, grid

    def features(self, pictures: Tensor) -> tuple[Tensor, ...]:
        """Refuse: nobody asks."""
        raise NotImplementedError("features are given, not computed")


def captioner(channels: int, side: int, vocabulary: int) -> SoftAttentionCaptioner:
    """Return a captioner of the usual size over side x side regions."""
    words = [*SPECIALS, *(f"word{index}" for index in range(vocabulary - len(SPECIALS)))]
    encoder = GivenFeatures(channels, (side, side))
    return SoftAttentionCaptioner(
        words, encoder, word_width=512, hidden=512, attention=512, dropout=0.0
    )


# ------------------------------------------------------------------ one training step


def training() -> Comparison:
    """16 captions of 10 to 20 words, 196 regions of 2048 features, 8000 words."""
    torch.manual_seed(0)
    model = captioner(2048, 14, 8000)
    features = torch.randn(16, 2048, 14, 14)
    lengths = torch.randint(10, 21, (16,)).sort(descending=True).values
    lengths[0] = 20
    captions = torch.randint(len(SPECIALS), 8000, (16, 21))
    captions[:, 0] = START

    def ours() -> Tensor:
        model.zero_grad()
        read = model.unroll(features, captions[:, :-1], lengths)
        targets = captions[read.rows, read.steps + 1]
        loss = caption_loss(read.logits, targets, len(lengths), reduction="mean")
        loss.backward()
        return loss.detach()

    def plain() -> Tensor:
        model.zero_grad()
        loss = stepwise_loss(model, features, captions, lengths)
        loss.backward()
        return loss.detach()

    torch.testing.assert_close(ours(), plain(), atol=1e-5, rtol=1e-5)
    return Comparison("training step, 16 x 196 x 2048, <= 20 words", plain, ours, 3.0)


def stepwise_loss(
    model: SoftAttentionCaptioner, features: Tensor, captions: Tensor, lengths: Tensor
) -> Tensor:
    """The loop that one writes first: everything anew at each step, on rows of full length."""
    annotations = features.flatten(2).transpose(1, 2).contiguous()
    mean = annotations.mean(1)
    hidden, cell = model.first_hidden(mean), model.first_cell(mean)
    logits = []
    for step in range(int(lengths.max())):
        keys = model.look.key(annotations)
        scores = torch.tanh(keys + model.look.query(hidden)[:, None]) @ model.look.vector
        weights = scores.softmax(1)
        seen = torch.sigmoid(model.gate(hidden)) * (weights[..., None] * annotations).sum(1)
        word = model.embed(captions[:, step])
        hidden, cell = model.cell(torch.cat((word, seen), 1), (hidden, cell))
        told = torch.tanh(model.tell_hidden(hidden) + word + model.tell_seen(seen))
        logits.append(model.tell(told))
    said = torch.stack(logits, 1)
    inside = torch.arange(said.shape[1]) < lengths[:, None]
    return cross_entropy(said[inside], captions[:, 1 : said.shape[1] + 1][inside])


# ------------------------------------------------------------------ beam search


def search() -> Comparison:
    """64 pictures, 49 regions of 1280 features, 8000 words, beam 5."""
    torch.manual_seed(0)
    model = captioner(1280, 7, 8000).eval()
    features = torch.randn(64, 1280, 7, 7)
    with torch.no_grad():
        model.tell.bias[END] += 6.0  # an untrained model would hardly ever stop
        model.tell.weight.mul_(4.0)
    rules = Rules(END, 20, 5, 0.0, (PAD, START, UNKNOWN))

    @torch.no_grad()
    def found(some: Tensor) -> list[list[int]]:
        best = beam_search(
            model.step, model.start(some), pictures=len(some), start=START, rules=rules, beam=5
        )
        pairs = zip(best.tokens[:, 0], best.lengths[:, 0], strict=True)
        return [tokens[:length].tolist() for tokens, length in pairs]

    def ours() -> list[list[int]]:
        return found(features)

    def plain() -> list[list[int]]:
        return [found(one[None])[0] for one in features]

    if ours() != plain():
        raise SystemExit("search: the batch and the single pictures give different captions")
    return Comparison("beam search, 64 x 49 x 1280, beam 5", plain, ours, 3.0)


# ------------------------------------------------------------------ the clock

COMPARISONS: dict[str, Callable[[], Comparison]] = {"training": training, "search": search}


def timed(comparison: Comparison, rounds: int) -> dict[str, object]:
    """Run both ways in turn and return medians and the ratio's spread."""
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(rounds):
        for name, run in (("plain", comparison.plain), ("ours", comparison.ours)):
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    ratios = [slow / fast for slow, fast in zip(seconds["plain"], seconds["ours"], strict=True)]
    return {
        "comparison": comparison.title,
        "plain_s": statistics.median(seconds["plain"]),
        "ours_s": statistics.median(seconds["ours"]),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "floor": comparison.floor,
    }


def options() -> argparse.ArgumentParser:
    """Return what the command line may say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"of {', '.join((*COMPARISONS, *ALONE))}")
    add("--rounds", type=int, default=7, help="times that each way runs (7)")
    add("--threads", type=int, default=2, help="of torch (2)")
    add("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    glimpses = parser.add_argument_group("glimpses")
    glimpses.add_argument("--digits", type=int, default=60_000, metavar="N",
                           help="of the epoch, timed less often (60000; 0: none)")  # fmt: skip
    add("--only", nargs="+", metavar="PART",
        help="these blocks, or of transformers speed, memory, rows, growth (all)")  # fmt: skip
    add("--table", type=Path, metavar="FILE", help="write a page of Markdown; of transformers, "
        "that of the growth and its picture")  # fmt: skip
    blocks = parser.add_argument_group("blocks")
    blocks.add_argument("--shapes", nargs="+", type=shape, metavar="BxCxYxX",
                        help="of the features (32x256x56x56 8x64x112x112)")  # fmt: skip
    blocks.add_argument("--memory", type=float, default=6.0, metavar="GB",
                        help="what the weights of all pairs of places may take (6)")  # fmt: skip
    return parser


def shape(text: str) -> tuple[int, ...]:
    """Return the sides that are written as 32x256x56x56."""
    sides = text.split("x")
    if len(sides) != 4 or not all(side.isdigit() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"must be like 32x256x56x56, got {text!r}")
    return tuple(map(int, sides))


def time_blocks(asked: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Time blocks; what was found is written after each, so that nothing is lost."""
    from benchmarks.block_speeds import SHAPES, markdown, speeds

    from visattn.blocks.catalogues import names

    found = []
    timed_blocks = speeds(
        asked.only or names(), asked.shapes or SHAPES, rounds=asked.rounds, gigabytes=asked.memory
    )
    try:
        for speed in timed_blocks:
            found.append(speed)
            print(speed, flush=True)
            if asked.table:
                asked.table.write_text(markdown(found, rounds=asked.rounds), encoding="utf-8")
            if asked.out:
                kept = json.dumps([dataclasses.asdict(one) for one in found], indent=1)
                asked.out.write_text(kept + "\n", encoding="utf-8")
    except ValueError as error:
        parser.error(str(error))
    return 0


def time_glimpses(asked: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Time the retina and an epoch of training; what was found is written after each."""
    from benchmarks.glimpse_speeds import BATCH, timed_glimpses

    if asked.digits and asked.digits < BATCH:
        parser.error(f"digits must be 0 or at least {BATCH}, a batch; got {asked.digits}")
    found = []
    for speed in timed_glimpses(rounds=asked.rounds, digits=asked.digits):
        found.append(speed._asdict())
        print(speed, flush=True)
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def time_transformers(asked: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Measure Vision Transformers; what was found is written after each."""
    from benchmarks.transformer_speeds import PARTS, figures

    parts = asked.only or PARTS
    if wrong := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    found = []
    for figure in figures(parts, rounds=asked.rounds, page=asked.table):
        found.append(figure._asdict())
        print(figure, flush=True)
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


ALONE = {"blocks": time_blocks, "glimpses": time_glimpses, "transformers": time_transformers}


def main(argv: Sequence[str]) -> int:
    """Run the comparisons that are asked for."""
    parser = options()
    asked = parser.parse_args(argv)
    known = (*COMPARISONS, *ALONE)
    if wrong := [name for name in asked.names if name not in known]:
        parser.error(f"no comparison {', '.join(wrong)}; there are {', '.join(known)}")
    alone = next((name for name in asked.names if name in ALONE), None)
    if alone and len(asked.names) > 1:
        parser.error(f"{alone} are timed alone, without other comparisons")
    torch.set_num_threads(asked.threads)
    print(f"torch {torch.__version__}, {asked.threads} threads, {platform.machine()}")
    if alone:
        return ALONE[alone](asked, parser)
    figures = []
    for name in asked.names or COMPARISONS:
        figure = timed(COMPARISONS[name](), asked.rounds)
        figures.append(figure)
        print(
            f"{figure['comparison']}: plain {figure['plain_s']:.3f} s, "
            f"ours {figure['ours_s']:.3f} s, {figure['ratio']:.2f} times as fast "
            f"({figure['ratio_min']:.2f} to {figure['ratio_max']:.2f}; "
            f"at least {figure['floor']:g} is meant)",
            flush=True,
        )
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
