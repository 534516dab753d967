"""Values that must not change, kept as JSON that a person can read."""

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

KEPT = Path(__file__).parents[1] / "net" / "kept"
# Kernels of other processors sum in another order. On one machine, nothing may change at all:
# VISATTN_NET_EXACT=1 compares every bit of what was written there.
EXACT = bool(os.environ.get("VISATTN_NET_EXACT"))
TOLERANCE = 1e-3
ROUNDING = 1e-4  # of smaller numbers the difference counts, not its ratio: they may be what cancels

Keep = Callable[..., None]


def write(name: str, values: Any) -> None:
    """Keep values under a name."""
    path = KEPT / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_lines(_json(values)))


def differences(
    name: str, values: Any, tolerance: float, exact_only: Sequence[str] = ()
) -> list[str]:
    """Return a line for each value that differs from the kept one.

    Args:
        name: Name of the kept values.
        values: New values.
        tolerance: Of numbers, relative to the largest one of an array.
        exact_only: Keys that other kernels change, compared on the machine that wrote them only.
    """
    path = KEPT / f"{name}.json"
    if not path.exists():
        return [f"kept/{name}.json is missing; write it with make net and look at it"]
    out: list[str] = []
    kept, computed = json.loads(path.read_text()), _json(values)
    for key in () if EXACT else exact_only:
        kept.pop(key, None)
        computed.pop(key, None)
    _compare(kept, computed, "", 0.0 if EXACT else tolerance, out)
    return out


def _json(values: Any) -> Any:
    return json.loads(json.dumps(_plain(values), allow_nan=False))


def _plain(value: Any) -> Any:
    """Return lists, dicts, strings and numbers; an array keeps shape and values."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        numbers = [_rounded(number) for number in value.ravel().tolist()]
        return {"shape": list(value.shape), "values": numbers}
    if isinstance(value, float | np.floating):
        return _rounded(float(value))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _rounded(number: float) -> float | int | bool | str:
    """Return seven digits, which tell float32 apart as far as a change of code would show."""
    if isinstance(number, float):
        return float(f"{number:.7g}") if math.isfinite(number) else str(number)
    return number


def _lines(value: Any) -> str:
    """Return JSON with a line per entry of the two outer levels, so that it can be read."""
    if not isinstance(value, dict):
        return json.dumps(value) + "\n"
    entries = []
    for key, each in value.items():
        if isinstance(each, dict) and "values" not in each and each:
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in each.items())
            entries.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            entries.append(f"{json.dumps(key)}: {json.dumps(each)}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _compare(kept: Any, new_value: Any, where: str, tolerance: float, out: list[str]) -> None:
    """Add a line for each entry that differs."""
    if isinstance(kept, dict) and isinstance(new_value, dict):
        for key in [*kept, *(key for key in new_value if key not in kept)]:
            if key not in kept or key not in new_value:
                out.append(f"{where}/{key}: {'is new' if key in new_value else 'is gone'}")
            else:
                _compare(kept[key], new_value[key], f"{where}/{key}", tolerance, out)
    elif isinstance(kept, list) and isinstance(new_value, list) and len(kept) == len(new_value):
        if _numbers(kept) and _numbers(new_value):
            _compare_numbers(kept, new_value, where, tolerance, out)
        else:
            for index, (old, new) in enumerate(zip(kept, new_value, strict=True)):
                _compare(old, new, f"{where}/{index}", tolerance, out)
    elif _numbers([kept]) and _numbers([new_value]):
        _compare_numbers([kept], [new_value], where, tolerance, out)
    elif kept != new_value:
        out.append(f"{where}: {_short(kept)} became {_short(new_value)}")


def _numbers(values: list[Any]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _compare_numbers(
    kept: Any, new_value: Any, where: str, tolerance: float, out: list[str]
) -> None:
    """Compare relative to the largest number; whole numbers and zeros stay as they are."""
    if all(isinstance(each, int) for each in kept):
        if kept != new_value:
            out.append(f"{where}: {_short(kept)} became {_short(new_value)}")
        return
    old, new = np.array(kept), np.array(new_value)
    off = np.abs(old - new)
    if off.size and off.max() > tolerance * max(np.abs(old).max(), ROUNDING):
        worst = int(off.argmax())
        out.append(f"{where}[{worst}]: {kept[worst]:.7g} became {new_value[worst]:.7g}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 90 else f"{text[:87]}..."
