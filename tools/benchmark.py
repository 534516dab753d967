"""Times visattn's ways against the plain ones, in one run, turn by turn.

    python tools/benchmark.py                 training and search
    python tools/benchmark.py training        one of them
    python tools/benchmark.py blocks          every block, against timm's and a plain one; hours
    python tools/benchmark.py blocks --only se cbam --table docs/blocks_speed.md
    python tools/benchmark.py glimpses        the retina, and an epoch of 60,000 digits; minutes
    python tools/benchmark.py transformers    Vision Transformers against others'; minutes
    python tools/benchmark.py transformers --only growth --table docs/attention_growth.md
    python tools/benchmark.py maps            Grad-CAM, recording, overlays; minutes
    python tools/benchmark.py data            photos from files, shards, kept features; minutes

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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.caption_speeds import COMPARISONS, Comparison


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
        help="these blocks; of transformers speed, memory, rows, growth; of maps gradcam, rows, "
        "extraction, overlay; of data reading, memory, opening (all)")  # fmt: skip
    add("--table", type=Path, metavar="FILE", help="write a page of Markdown; of transformers, "
        "that of the growth and its image")  # fmt: skip
    data = parser.add_argument_group("data")
    data.add_argument("--samples", type=int, default=512, metavar="N",
                      help="photos of an epoch (512)")  # fmt: skip
    data.add_argument("--photos", type=Path, metavar="DIR",
                      help="folder to take them from (drawn)")  # fmt: skip
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

    from visattn.blocks.registry import names

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
    return told(timed_glimpses(rounds=asked.rounds, digits=asked.digits), asked.out)


def time_transformers(asked: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Measure Vision Transformers."""
    from benchmarks.transformer_speeds import PARTS, figures

    parts = asked_parts(asked, parser, PARTS)
    return told(figures(parts, rounds=asked.rounds, page=asked.table), asked.out)


def time_maps(asked: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Measure how maps come about and onto photos."""
    from benchmarks.map_speeds import PARTS, map_figures

    return told(map_figures(asked_parts(asked, parser, PARTS), rounds=asked.rounds), asked.out)


def time_data(asked: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Measure how fast photos come, and what that holds."""
    from benchmarks.data_speeds import BATCH, PARTS, data_figures

    if asked.samples < BATCH:
        parser.error(f"samples must be at least {BATCH}, a batch; got {asked.samples}")
    parts = asked_parts(asked, parser, PARTS)
    figures = data_figures(parts, rounds=asked.rounds, samples=asked.samples, photos=asked.photos)
    return told(figures, asked.out)


def asked_parts(
    asked: argparse.Namespace, parser: argparse.ArgumentParser, known: Sequence[str]
) -> Sequence[str]:
    """Return the parts of a comparison that are asked for, or all."""
    if wrong := [part for part in asked.only or () if part not in known]:
        parser.error(f"no part {', '.join(wrong)}; there are {', '.join(known)}")
    return asked.only or known


def told(figures: Iterable[Any], out: Path | None) -> int:
    """Say each figure as it is found, and write down what was found so far."""
    found = []
    for figure in figures:
        found.append(figure._asdict())
        print(figure, flush=True)
        if out:
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


ALONE: dict[str, Callable[[argparse.Namespace, argparse.ArgumentParser], int]] = {
    "blocks": time_blocks,
    "glimpses": time_glimpses,
    "transformers": time_transformers,
    "maps": time_maps,
    "data": time_data,
}


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
