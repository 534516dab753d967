"""Record one small model of each family of timm that attends to something, and write the table.

    python tools/record_families.py --out docs/recorded_models.md
    python tools/record_families.py --marks --only swin_transformer tnt

Weights are random: what is asked is whether every map is exact or refused with a reason, not what
it shows. With `--marks`, blocks of pixels are changed one after the other, and it is checked that
the default layer of class activation maps, and the attention that is shown, answer at the places of
these blocks. Takes some minutes on a CPU, and no network.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import model_entrypoint
from torch import nn

from visattn.maps import record
from visattn.maps.activation_methods import on_grid
from visattn.maps.marked_readings import MarkedReader
from visattn.maps.model_cards import ModelCard, Subject
from visattn.maps.subjects import subject_of

_ATTENDS = re.compile(r"scaled_dot_product_attention|softmax\(|Attention|MobileVit|create_attn")
_SIZES = (
    "test", "pico", "nano", "atto", "femto", "wee", "xxxs", "xxs", "xs", "xtiny", "tiny", "ti",
    "mini", "t0", "b0", "t8", "m0", "s0", "s1", "5m", "s", "small", "medium", "m", "base",
)  # fmt: skip
_NAMED = {
    "byoanet": "botnet26t_256", "cait": "cait_xxs24_224", "fastvit": "fastvit_sa12",
    "metaformer": "caformer_s18",
    "vision_transformer_sam": "samvit_base_patch16_224", "edgenext": "edgenext_xx_small",
    "iformer": "iformer_t",
}  # fmt: skip
_MORE = (
    ("deit", "deit_tiny_patch16_224"), ("deit", "deit_tiny_distilled_patch16_224"),
    ("pit", "pit_ti_224"), ("vitamin", "vitamin_small_224"), ("eva", "eva02_tiny_patch14_224"),
    ("vision_transformer", "vit_small_patch14_reg4_dinov2"),
    ("vision_transformer", "vit_wee_patch16_reg1_gap_256"),
    ("vision_transformer", "vit_base_patch16_siglip_224"),
    ("vision_transformer_hybrid", "vit_tiny_r_s16_p8_224"),
    ("mobilenetv3", "mobilenetv4_hybrid_medium"), ("maxxvit", "maxvit_rmlp_pico_rw_256"),
    ("swin_transformer", "swin_tiny_patch4_window7_224"),
    ("swin_transformer_v2", "swinv2_tiny_window8_256"), ("byoanet", "halonet26t"),
)  # fmt: skip
_SHALLOW = ("deepseek_vit", "gemma4_vit", "qwen3_vit", "naflexvit")
_PICTURES = 2
_MANY = 4096  # tokens, beyond which only two rows are recorded

HEAD = """# What can be recorded of timm's models

One small model of each file of timm {version} whose models may attend to something, with random
weights, on {pictures} pictures of the size that it is made for. Made by `python
tools/record_families.py`.

- **maps**: layers that `visattn.record` shows. Of each, rows sum to 1, the keys are the grid of the
  layer and the tokens before it, and the model's output is the same
  to the bit as without recording.
- **off**: the largest difference between the weights times the values and what came out of fused
  attention, in units of the largest value. `own` stands for models that compute their weights
  themselves: what is shown is what they multiply their values by.
- **refused**: layers that cannot be shown, with the reason. Methods that use gradients or scores
  fit these models all the same.

| file | model | maps | off | refused |
|---|---|--:|--:|---|
"""


@dataclass(frozen=True)
class Outcome:
    """What came of recording one model.

    Args:
        family: File of timm.
        name: Of the model.
        maps: How many layers were shown.
        off: How far weights times values are from the output; None if the model computes weights.
        refused: Sites and reasons.
        mixed: Whether heads are mixed behind the softmax that is shown.
    """

    family: str
    name: str
    maps: int
    off: float | None
    refused: dict[str, str]
    mixed: bool = False

    def row(self) -> str:
        """Return the line of the table."""
        counts = {why: list(self.refused.values()).count(why) for why in self.refused.values()}
        told = "; ".join(f"{count} x {why}" for why, count in counts.items())
        off = "" if not self.maps else "own" if self.off is None else f"{self.off:.0e}"
        maps = f"{self.maps}, before heads are mixed" if self.mixed else str(self.maps)
        return f"| {self.family} | {self.name} | {maps} | {off} | {told} |"


@dataclass(frozen=True)
class Marked:
    """What blocks of pixels that were changed showed.

    Args:
        name: Of the model.
        layer: The default layer of class activation maps, or why there is none.
        features: Blocks to which the cells of that layer at their place answer most, and all.
        attention: Blocks at whose place the keys of the first and last layer change most, and all.
    """

    name: str
    layer: str
    features: tuple[int, int]
    attention: tuple[int, int]

    def row(self) -> str:
        """Return the line of the table."""
        right = [f"{hits} of {marks}" if marks else "" for hits, marks in
            (self.features, self.attention)]  # fmt: skip
        return f"| {self.name} | {self.layer} | {right[0]} | {right[1]} |"


def marked(name: str, model: nn.Module, size: tuple[int, int] | None = None) -> Marked:
    """Return where changes of single blocks of pixels show.

    Tokens attend to themselves alone while features are looked at, so that random weights do not
    carry a change everywhere.

    Args:
        name: Of the model.
        model: Itself, in evaluation mode.
        size: Height and width of its pictures; None for what it is made for.
    """
    subject = subject_of(model, size)
    card = subject.card
    attention = (0, 0)
    if card.layers:
        ends = dict.fromkeys((card.layers[0].site, card.layers[-1].site))
        attention = _sums(_keys_that_answer(subject, site) for site in ends)
    if not card.features:
        return Marked(name, card.no_features, (0, 0), attention)
    site = card.features[-1]
    blocks = _blocks(site.grid)
    with torch.no_grad(), _changed(model, site.site) as put_out:
        subject.scores(_changed_pictures(card, site.grid, blocks))
    laid = on_grid(put_out[0], site)
    change = (laid[1:] - laid[:1]).square().sum(1)
    layer = f"{site.site}, {site.grid[0]} x {site.grid[1]}"
    return Marked(name, layer, _hits(change, blocks), attention)


def _keys_that_answer(subject: Subject, site: str) -> tuple[int, int]:
    layer = next(one for one in subject.card.layers if one.site == site)
    grid = layer.keys or layer.grid
    blocks = _blocks(grid)
    pictures = _changed_pictures(subject.card, grid, blocks)
    with torch.no_grad(), record(subject.model, layers=[site]) as seen:
        subject.scores(pictures)
    values = seen.maps[0].values
    change = (values[1:] - values[:1]).abs().flatten(1, -3).sum(1)
    return _hits(change, blocks)


def _blocks(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Return some cells of a grid, none of them the mirror image of another."""
    shares = ((0.15, 0.3), (0.3, 0.85), (0.7, 0.1), (0.85, 0.6), (0.5, 0.45))
    cells = ((int(rows * grid[0]), int(columns * grid[1])) for rows, columns in shares)
    return list(dict.fromkeys(cells))


def _changed_pictures(
    card: ModelCard, grid: tuple[int, int], blocks: list[tuple[int, int]]
) -> torch.Tensor:
    """Return noise, and the same with other noise in each block."""
    height, width = card.size
    random = torch.Generator().manual_seed(3)
    usual, other = torch.randn(2, len(card.mean), height, width, generator=random)
    rows, columns = -(-height // grid[0]), -(-width // grid[1])
    pictures = [usual]
    for row, column in blocks:
        picture = usual.clone()
        place = (slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns))
        picture[:, *place] = 2 * other[:, *place]
        pictures.append(picture)
    return torch.stack(pictures)


@contextmanager
def _changed(model: nn.Module, site: str) -> Iterator[list[torch.Tensor]]:
    """Let tokens attend to themselves alone, and catch what a module puts out."""
    put_out: list[torch.Tensor] = []
    reader = MarkedReader(model, (1, 1))
    handle = model.get_submodule(site).register_forward_hook(
        lambda _, __, output: put_out.append(output[0] if isinstance(output, tuple) else output)
    )
    with reader.apart():
        yield put_out
    handle.remove()


def _hits(change: torch.Tensor, blocks: list[tuple[int, int]]) -> tuple[int, int]:
    """Return how many blocks change a cell most that is theirs or next to it, and all."""
    columns = change.shape[-1]
    most = [divmod(int(one.argmax()), columns) for one in change]
    near = [max(abs(a - c), abs(b - d)) <= 1 for (a, b), (c, d) in zip(most, blocks, strict=True)]
    return sum(near), len(near)


def _sums(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    hits, marks = zip(*counts, strict=True)
    return sum(hits), sum(marks)


def families(*, every: bool = False) -> list[tuple[str, str]]:
    """Return files of models, each with a small model of it.

    Args:
        every: Whether to return those too whose models attend to nothing.
    """
    groups: dict[str, list[str]] = {}
    for name in timm.list_models():
        groups.setdefault(model_entrypoint(name).__module__, []).append(name)
    found = list(_MORE)
    for module, names in groups.items():
        if every or _ATTENDS.search(inspect.getsource(sys.modules[module])):
            family = module.rpartition(".")[2]
            found.append((family, _NAMED.get(family) or min(names, key=_size)))
    return sorted(found)


def _size(name: str) -> tuple[int, int, str]:
    words = name.split("_")
    ranks = [_SIZES.index(word) for word in words if word in _SIZES]
    digits = [int(word) for word in re.findall(r"\d{3}", name)]
    return (min(ranks, default=len(_SIZES)), min(digits, default=0), name)


def outcome(family: str, name: str, model: nn.Module) -> Outcome:
    """Return what comes of recording a model.

    Args:
        family: File of timm.
        name: Of the model.
        model: Itself, in evaluation mode.
    """
    card = subject_of(model).card
    refused = dict(card.refused)
    if card.refusal:
        return Outcome(family, name, 0, None, refused or {"": card.refusal})
    few = all(rows * columns <= _MANY for rows, columns in (one.grid for one in card.layers))
    pictures = torch.randn(_PICTURES, len(card.mean), *card.size)
    with torch.no_grad():
        before = model(pictures)
        with record(model, queries="all" if few else [0, -1]) as seen:
            after = model(pictures)
    if not torch.equal(before, after):
        raise RuntimeError(
            f"recording changed the output of {name} by {(before - after).abs().max()}"
        )
    off: list[Any] = [one.made["deviation"] for one in seen.maps]
    known = [float(one) for one in off if one is not None]
    mixed = any("mixed" in one.made for one in seen.maps)
    return Outcome(
        family, name, len(seen.maps), max(known, default=None), {**refused, **seen.refused}, mixed
    )


def outcomes(names: Sequence[tuple[str, str]]) -> Iterator[Outcome]:
    """Return what comes of each model, one after the other.

    Args:
        names: Of files, each with a model.
    """
    for family, name in names:
        torch.manual_seed(0)
        try:
            less: dict[str, Any] = {"depth": 2} if family in _SHALLOW else {}
            yield outcome(family, name, timm.create_model(name, **less).eval())
        except (ValueError, RuntimeError, TypeError, AssertionError, IndexError) as error:
            yield Outcome(family, name, 0, None, {"": f"FAILED {type(error).__name__}: {error}"})


def marks(names: Sequence[tuple[str, str]]) -> Iterator[Marked]:
    """Return what changed blocks show of each model, one after the other.

    Args:
        names: Of files, each with a model.
    """
    for family, name in names:
        torch.manual_seed(0)
        less: dict[str, Any] = {"depth": 2} if family in _SHALLOW else {}
        yield marked(name, timm.create_model(name, **less).eval())


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table.

    Args:
        argv: Options; those of the command line if None.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="a Markdown file")
    parser.add_argument("--only", nargs="*", help="files of timm, such as swin_transformer")
    parser.add_argument("--marks", action="store_true", help="change blocks of pixels instead")
    chosen = parser.parse_args(argv)
    found = families(every=chosen.marks)
    names = [one for one in found if not chosen.only or one[0] in chosen.only]
    if chosen.marks:
        return _all_right(marks(names))
    rows: list[str] = []
    for one in outcomes(names):
        rows.append(one.row())
        print(rows[-1], flush=True)
    if chosen.out:
        head = HEAD.format(version=timm.__version__, pictures=_PICTURES)
        chosen.out.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return int(any("FAILED" in row for row in rows))


def _all_right(found: Iterable[Marked]) -> int:
    wrong = 0
    for one in found:
        print(one.row(), flush=True)
        wrong += sum(hits < count for hits, count in (one.features, one.attention))
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
