"""Benchmark visattn against plain implementations and other libraries, in interleaved rounds.

    python tools/benchmark.py                 training steps, and beam search of captioners
    python tools/benchmark.py training        one of them
    python tools/benchmark.py blocks          all blocks, against timm and plain code; hours
    python tools/benchmark.py blocks --only se cbam --table docs/notes/blocks_speed.md
    python tools/benchmark.py glimpses        glimpses, and an epoch of 60,000 digits; minutes
    python tools/benchmark.py transformers    Vision Transformers against other libraries; minutes
    python tools/benchmark.py transformers --only growth --table docs/notes/attention_growth.md
    python tools/benchmark.py maps            Grad-CAM, recording, overlays, RISE; minutes
    python tools/benchmark.py first           first maps of networks in new processes; minutes
    python tools/benchmark.py peers --table docs/results/peers.csv
                                              maps beside those of other libraries; minutes
    python tools/benchmark.py gradients --weights runs/scenes_soft/1/checkpoints/best.ckpt
                                              gradient noise of hard attention; a minute
    python tools/benchmark.py words           captions of vision-language models; minutes
    python tools/benchmark.py bulk            overlays of --num-samples photos; minutes
    python tools/benchmark.py bulk --only index --num-samples 10000
                                              their index alone; seconds
    python tools/benchmark.py scores          rewards of self-critical training, removal; a minute
    python tools/benchmark.py loader          crops of photos for training; a minute
    python tools/benchmark.py step            operations and host syncs of a training step; seconds
    python tools/benchmark.py gpu --table FILE   all that needs a GPU, as a table; 20 minutes;
                                              without a GPU a dry run of small sizes; a minute

With one thread, seconds are CPU time, which other processes lengthen less than the clock.
Timings are noisy: compare the median ratio and its range over the rounds rather than seconds. Each
comparison also checks that both implementations return the same.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from benchmarks import caption_speeds, caption_transformer_speeds, training_speeds
from benchmarks.caption_speeds import Comparison
from benchmarks.clocks import clock

from visattn.commands.options import CommandParser

COMPARISONS = (
    caption_speeds.COMPARISONS
    | caption_transformer_speeds.COMPARISONS
    | training_speeds.COMPARISONS
)


def time_comparison(comparison: Comparison, rounds: int) -> dict[str, object]:
    """Run both implementations in turn; return median times and the range of the ratio."""
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(rounds):
        for name, run in (("plain", comparison.plain), ("ours", comparison.ours)):
            begin = clock()
            run()
            seconds[name].append(clock() - begin)
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


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"any of {', '.join(COMPARISONS)}; or one of {', '.join(ALONE)}",
    )
    add("--rounds", type=int, default=7, help="timed rounds (7)")
    add("--threads", type=int, default=2, help="torch threads (2)")
    add("--out", type=Path, metavar="FILE", help="write the results as JSON")
    glimpses = parser.add_argument_group("glimpses")
    glimpses.add_argument("--num-digits", type=int, default=60_000, metavar="N",
                           help="digits of the epoch (60000; 0: none)")  # fmt: skip
    add("--only", nargs="+", metavar="PART",
        help="parts to run. blocks: block names; transformers: speed, memory, rows, growth; maps: "
        "gradcam, channels, rows, extraction, overlay, perturbation, changed; first: cnns, vits; "
        "peers: cams, channels, pixels, perturbation, attention; "
        "words: tiny, base; bulk: "
        "overlays, index; scores: rewards, removal; "
        "step: vit, ram, captioner; loader: small, "
        "large; gpu: step, vit, loader, rise, gradcam, overlay, kernels, epochs")  # fmt: skip
    add("--table", type=Path, metavar="FILE", help="write a Markdown page; for transformers, "
        "the scaling of attention with its plot; for peers, a CSV file")  # fmt: skip
    gradients = parser.add_argument_group("gradients")
    gradients.add_argument("--weights", nargs="+", type=Path, metavar="FILE",
                           help="checkpoints of captioners of scenes")  # fmt: skip
    bulk = parser.add_argument_group("bulk")
    bulk.add_argument("--num-samples", type=int, default=512, metavar="N",
                      help="photos (512)")  # fmt: skip
    blocks = parser.add_argument_group("blocks")
    blocks.add_argument("--shapes", nargs="+", type=shape, metavar="BxCxYxX",
                        help="feature shapes (32x256x56x56 8x64x112x112)")  # fmt: skip
    blocks.add_argument("--max-memory", type=float, default=6.0, metavar="GB",
                        help="memory limit of pairwise attention weights (6)")  # fmt: skip
    return parser


def shape(text: str) -> tuple[int, ...]:
    """Parse a shape, such as 32x256x56x56."""
    sides = text.split("x")
    if len(sides) != 4 or not all(side.isdigit() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"must be like 32x256x56x56, got {text!r}")
    return tuple(map(int, sides))


def time_blocks(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Time blocks; the results so far are written after each."""
    from benchmarks.block_speeds import SHAPES, markdown, time_blocks as iterate_timings

    from visattn.blocks.registry import list_blocks

    results = []
    timings = iterate_timings(
        args.only or list_blocks(),
        args.shapes or SHAPES,
        rounds=args.rounds,
        max_gigabytes=args.max_memory,
    )
    try:
        for speed in timings:
            results.append(speed)
            print(speed, flush=True)
            if args.table:
                args.table.write_text(markdown(results, rounds=args.rounds), encoding="utf-8")
            if args.out:
                records = [dataclasses.asdict(result) for result in results]
                args.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    except ValueError as error:
        parser.error(str(error))
    return 0


def time_glimpses(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Time glimpse extraction and an epoch of training."""
    from benchmarks.glimpse_speeds import BATCH, time_glimpses as iterate_timings

    if args.num_digits and args.num_digits < BATCH:
        parser.error(f"--num-digits must be 0 or at least {BATCH}, a batch; got {args.num_digits}")
    return report(iterate_timings(rounds=args.rounds, digits=args.num_digits), args.out)


def time_transformers(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Measure Vision Transformers."""
    from benchmarks.transformer_speeds import PARTS, figures

    parts = selected_parts(args, parser, PARTS)
    return report(figures(parts, rounds=args.rounds, page=args.table), args.out)


def time_maps(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Benchmark the computation of maps and overlays."""
    from benchmarks.map_speeds import PARTS, map_figures

    return report(map_figures(selected_parts(args, parser, PARTS), rounds=args.rounds), args.out)


def time_words(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Benchmark captions with maps of vision-language models against `generate`."""
    from benchmarks.word_speeds import PARTS, word_figures

    return report(word_figures(selected_parts(args, parser, PARTS), rounds=args.rounds), args.out)


def measure_gradients(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Measure the signal-to-noise ratio of the gradients of hard attention."""
    from benchmarks.gradient_noise import gradient_noise

    if not args.weights:
        parser.error("gradients needs --weights FILE ..., checkpoints of captioners of scenes")
    return report(gradient_noise(args.weights, repeats=3 * args.rounds), args.out)


def time_loader(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Benchmark crops of photos for training."""
    from benchmarks.loader_speeds import PARTS, loader_figures

    parts = selected_parts(args, parser, tuple(PARTS))
    return report(loader_figures(parts, rounds=args.rounds), args.out)


def time_bulk(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Benchmark overlays of many photos."""
    from benchmarks.bulk_speeds import PARTS, bulk_figures

    if args.num_samples < 1:
        parser.error(f"--num-samples must be at least 1, got {args.num_samples}")
    parts = selected_parts(args, parser, PARTS)
    return report(bulk_figures(parts, rounds=args.rounds, photos=args.num_samples), args.out)


def time_scores(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Benchmark rewards of self-critical training, and scores of maps by removal."""
    from benchmarks.score_speeds import PARTS, score_figures

    parts = selected_parts(args, parser, PARTS)
    return report(score_figures(parts, rounds=args.rounds), args.out)


def count_steps(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Count the operations and host syncs of training steps."""
    from benchmarks.step_counts import MODELS, step_counts

    return report(step_counts(selected_parts(args, parser, tuple(MODELS))), args.out)


def measure_gpu(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Write the table of a GPU."""
    from benchmarks.gpu_speeds import PARTS, gpu_figures, table_head

    lines = [table_head(dry=not torch.cuda.is_available())]
    print(lines[0], flush=True)
    for row in gpu_figures(selected_parts(args, parser, PARTS), rounds=args.rounds):
        print(row, flush=True)
        lines.append(str(row))
        if args.table:
            args.table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def time_first_maps(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Print the table of first maps."""
    from benchmarks.first_maps import CASES, HEAD, first_maps

    print(HEAD, flush=True)
    parts = selected_parts(args, parser, tuple(CASES))
    return report(first_maps(parts, rounds=args.rounds), args.out)


def time_peers(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Compare maps with those of other libraries; the rows so far are written after each."""
    from benchmarks.peer_speeds import CASES, peer_rows, write_table

    parts = selected_parts(args, parser, tuple(CASES))
    rows = []
    for row in peer_rows(parts, rounds=args.rounds):
        rows.append(row)
        print(*row.cells().values(), sep=" | ", flush=True)
        if args.table:
            write_table(rows, args.table, commit_and_date())
    return 0


def commit_and_date() -> str:
    """Return the commit and today's date, as tables of results have them."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return f"{commit} {datetime.now(UTC):%Y-%m-%d}"


def selected_parts(
    args: argparse.Namespace, parser: argparse.ArgumentParser, known: Sequence[str]
) -> Sequence[str]:
    """Return the selected parts of a benchmark, or all."""
    if unknown := [part for part in args.only or () if part not in known]:
        parser.error(f"there is no part {', '.join(unknown)}; choose from {', '.join(known)}")
    return args.only or known


def report(figures: Iterable[Any], out: Path | None) -> int:
    """Print each figure; write all so far as JSON."""
    records = []
    for figure in figures:
        records.append(figure._asdict())
        print(figure, flush=True)
        if out:
            out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0


ALONE: dict[str, Callable[[argparse.Namespace, argparse.ArgumentParser], int]] = {
    "blocks": time_blocks,
    "glimpses": time_glimpses,
    "transformers": time_transformers,
    "maps": time_maps,
    "first": time_first_maps,
    "peers": time_peers,
    "words": time_words,
    "gradients": measure_gradients,
    "bulk": time_bulk,
    "scores": time_scores,
    "loader": time_loader,
    "step": count_steps,
    "gpu": measure_gpu,
}


def main(argv: Sequence[str]) -> int:
    """Run the selected comparisons."""
    parser = build_parser()
    args = parser.parse_args(argv)
    known = (*COMPARISONS, *ALONE)
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"there is no comparison {', '.join(unknown)}; choose from {', '.join(known)}")
    alone = next((name for name in args.names if name in ALONE), None)
    if alone and len(args.names) > 1:
        parser.error(f"{alone} must be run alone, without other comparisons")
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, {platform.machine()}")
    if alone:
        return ALONE[alone](args, parser)
    figures = []
    for name in args.names or COMPARISONS:
        figure = time_comparison(COMPARISONS[name](), args.rounds)
        figures.append(figure)
        print(
            f"{figure['comparison']}: plain {figure['plain_s']:.3f} s, "
            f"ours {figure['ours_s']:.3f} s, {figure['ratio']:.2f} times as fast "
            f"({figure['ratio_min']:.2f} to {figure['ratio_max']:.2f}; "
            f"target: {figure['floor']:g} or more)",
            flush=True,
        )
    if args.out:
        args.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
