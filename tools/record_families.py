"""Record attention of one small model of each timm family, and write a table of the results.

    python tools/record_families.py --out docs/reference/recorded_models.md
    python tools/record_families.py --check-locations --only swin_transformer tnt

Weights are random: the table reports whether every map is exact or refused with a reason. With
`--check-locations`, blocks of pixels are perturbed one after the other, and the default layer of
class activation maps and the recorded attention must change at the same locations. Runs for some
minutes on a CPU, offline.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from location_checks import LocationCheck, check_locations
from timm.models import model_entrypoint
from torch import nn

from visattn.attribution.explained_model import analyze_model
from visattn.commands.options import CommandParser
from visattn.recording.recorder import record

_ATTENDS = re.compile(r"scaled_dot_product_attention|softmax\(|Attention|MobileVit|create_attn")
_SIZES = (
    "test", "pico", "nano", "atto", "femto", "wee", "xxxs", "xxs", "xs", "xtiny", "tiny", "ti",
    "mini", "t0", "b0", "t8", "m0", "s0", "s1", "5m", "s", "small", "medium", "m", "base",
)  # fmt: skip
_SMALL_MODELS = {
    "byoanet": "botnet26t_256", "cait": "cait_xxs24_224", "fastvit": "fastvit_sa12",
    "metaformer": "caformer_s18",
    "vision_transformer_sam": "samvit_base_patch16_224", "edgenext": "edgenext_xx_small",
    "iformer": "iformer_t",
}  # fmt: skip
_ADDITIONAL = (
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
_TWO_LAYERS = ("deepseek_vit", "gemma4_vit", "qwen3_vit", "naflexvit")
_IMAGES = 2
_MIN_HIT_RATE = 0.8  # deep layers of random networks are noisy; chance is 0.2
_MAX_TOKENS = 4096  # with more tokens, only two rows are recorded

HEAD = """# What can be recorded of timm's models

One small model of each file of timm {version} whose models may attend to something, with random
weights, on {images} images of the size that it is made for. Made by `python
tools/record_families.py`.

- **maps**: layers that `visattn.record` shows. Of each, rows sum to 1, the keys are the grid of the
  layer and the tokens before it, and the model's output is the same
  to the bit as without recording.
- **error**: the largest difference between the weights times the values and what came out of fused
  attention, in units of the largest value. `own` stands for models that compute their weights
  themselves: what is shown is what they multiply their values by.
- **refused**: layers that cannot be shown, with the reason. Methods that use gradients or scores
  fit these models all the same.

| file | model | maps | error | refused |
|---|---|--:|--:|---|
"""


@dataclass(frozen=True)
class Outcome:
    """Result of recording one model.

    Args:
        family: File of timm.
        name: Name of the model.
        maps: Number of recorded layers.
        error: Error of weights times values against the output; None if the model computes weights.
        refused: Reasons by site.
        mixed: Whether heads are mixed after the recorded softmax.
    """

    family: str
    name: str
    maps: int
    error: float | None
    refused: dict[str, str]
    mixed: bool = False

    def row(self) -> str:
        """Return the row of the table."""
        counts = {why: list(self.refused.values()).count(why) for why in self.refused.values()}
        reasons = "; ".join(f"{count} x {why}" for why, count in counts.items())
        error = "" if not self.maps else "own" if self.error is None else f"{self.error:.0e}"
        maps = f"{self.maps}, before heads are mixed" if self.mixed else str(self.maps)
        return f"| {self.family} | {self.name} | {maps} | {error} | {reasons} |"


def families(*, every: bool = False) -> list[tuple[str, str]]:
    """Return the model files of timm, each with a small model.

    Args:
        every: Whether to include files without attention.
    """
    groups: dict[str, list[str]] = {}
    for name in timm.list_models():
        groups.setdefault(model_entrypoint(name).__module__, []).append(name)
    results = list(_ADDITIONAL)
    for module, names in groups.items():
        if every or _ATTENDS.search(inspect.getsource(sys.modules[module])):
            family = module.rpartition(".")[2]
            results.append((family, _SMALL_MODELS.get(family) or min(names, key=_size)))
    return sorted(results)


def _size(name: str) -> tuple[int, int, str]:
    words = name.split("_")
    ranks = [_SIZES.index(word) for word in words if word in _SIZES]
    digits = [int(word) for word in re.findall(r"\d{3}", name)]
    return (min(ranks, default=len(_SIZES)), min(digits, default=0), name)


def outcome(family: str, name: str, model: nn.Module) -> Outcome:
    """Record a model on random images.

    Args:
        family: File of timm.
        name: Name of the model.
        model: The model, in evaluation mode.
    """
    info = analyze_model(model).info
    refused = dict(info.unsupported_layers)
    if info.attention_error:
        return Outcome(family, name, 0, None, refused or {"": info.attention_error})
    all_rows = all(
        rows * columns <= _MAX_TOKENS
        for rows, columns in (layer.grid for layer in info.attention_layers)
    )
    images = torch.randn(_IMAGES, len(info.mean), *info.input_size)
    with torch.no_grad():
        before = model(images)
        with record(model, queries="all" if all_rows else [0, -1]) as records:
            after = model(images)
    if not torch.equal(before, after):
        raise RuntimeError(
            f"recording changed the output of {name} by {(before - after).abs().max()}"
        )
    error: list[Any] = [attention_map.info.more["deviation"] for attention_map in records.maps]
    known = [float(deviation) for deviation in error if deviation is not None]
    mixed = any("mixed" in attention_map.info.more for attention_map in records.maps)
    return Outcome(
        family,
        name,
        len(records.maps),
        max(known, default=None),
        {**refused, **records.unsupported},
        mixed,
    )


def outcomes(names: Sequence[tuple[str, str]]) -> Iterator[Outcome]:
    """Record each model.

    Args:
        names: Pairs of a file and a model.
    """
    for family, name in names:
        torch.manual_seed(0)
        try:
            kwargs: dict[str, Any] = {"depth": 2} if family in _TWO_LAYERS else {}
            yield outcome(family, name, timm.create_model(name, **kwargs).eval())
        except (ValueError, RuntimeError, TypeError, AssertionError, IndexError) as error:
            yield Outcome(family, name, 0, None, {"": f"FAILED {type(error).__name__}: {error}"})


def check_all_locations(names: Sequence[tuple[str, str]]) -> Iterator[LocationCheck]:
    """Check for each model that perturbations show at their locations.

    Args:
        names: Pairs of a file and a model.
    """
    for family, name in names:
        torch.manual_seed(0)
        kwargs: dict[str, Any] = {"depth": 2} if family in _TWO_LAYERS else {}
        model: Any = timm.create_model(name, **kwargs).eval()
        if not model.num_classes:  # most of timm's models come with a classifier, some without
            model.reset_classifier(5)
        yield check_locations(name, model)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table.

    Args:
        argv: Options; those of the command line if None.
    """
    parser = CommandParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="a Markdown file")
    parser.add_argument("--only", nargs="*", help="files of timm, such as swin_transformer")
    parser.add_argument(
        "--check-locations", action="store_true", help="perturb blocks of pixels instead"
    )
    args = parser.parse_args(argv)
    pairs = families(every=args.check_locations)
    names = [pair for pair in pairs if not args.only or pair[0] in args.only]
    if args.check_locations:
        return _report_locations(check_all_locations(names))
    rows: list[str] = []
    for result in outcomes(names):
        rows.append(result.row())
        print(rows[-1], flush=True)
    if args.out:
        head = HEAD.format(version=timm.__version__, images=_IMAGES)
        args.out.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return int(any("FAILED" in row for row in rows))


def _report_locations(checks: Iterable[LocationCheck]) -> int:
    failures = 0
    for check in checks:
        print(check.row(), flush=True)
        failures += sum(
            hits < _MIN_HIT_RATE * count for hits, count in (check.features, check.attention)
        )
    print(f"{failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
