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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from marked_blocks import Marked, marked
from timm.models import model_entrypoint
from torch import nn

from visattn.attribution.explained_model import subject_of
from visattn.recording.recorder import record

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
_IMAGES = 2
_ENOUGH = 0.8  # of the blocks; far layers of random networks are noisy, and by chance it is 0.2
_MANY = 4096  # tokens, beyond which only two rows are recorded

HEAD = """# What can be recorded of timm's models

One small model of each file of timm {version} whose models may attend to something, with random
weights, on {images} images of the size that it is made for. Made by `python
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
    images = torch.randn(_IMAGES, len(card.mean), *card.size)
    with torch.no_grad():
        before = model(images)
        with record(model, queries="all" if few else [0, -1]) as seen:
            after = model(images)
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
        model: Any = timm.create_model(name, **less).eval()
        if not model.num_classes:  # most of timm's models come with a classifier, some without
            model.reset_classifier(5)
        yield marked(name, model)


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
        head = HEAD.format(version=timm.__version__, images=_IMAGES)
        chosen.out.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return int(any("FAILED" in row for row in rows))


def _all_right(found: Iterable[Marked]) -> int:
    wrong = 0
    for one in found:
        print(one.row(), flush=True)
        wrong += sum(hits < _ENOUGH * count for hits, count in (one.features, one.attention))
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
