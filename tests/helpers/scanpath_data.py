"""Synthetic scan paths."""

import numpy as np

from visattn.viz.scanpaths.record import ScanPathData

CLASSES = ("cat", "dog", "bird", "fish", "horse", "cow", "sheep")


def miniature_scan(
    size: tuple[int, int] = (40, 60),
    *,
    glimpses: int = 3,
    scales: int = 2,
    glimpse: int = 5,
    channels: int = 3,
    classes: tuple[str, ...] = CLASSES,
    seed: int = 3,
) -> ScanPathData:
    """Return a scan in which the probability of the last class increases."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform((0, 0), (size[1], size[0]), (glimpses, 1, 2))
    half = 0.1 * max(size) * 2.0 ** np.arange(scales)[:, None]
    logits = rng.normal(size=(glimpses, len(classes)))
    logits[:, -1] += np.linspace(0, 6, glimpses)
    shares = np.exp(logits)
    down, along = np.mgrid[: size[0], : size[1]] / max(size)
    layers = (np.sin(9 * down + 3 * along), np.cos(5 * along), np.sin(11 * along * down))
    return ScanPathData(
        np.stack([127 + 60 * layer for layer in layers], axis=-1).astype(np.uint8),
        np.concatenate([middles - half, middles + half], -1),
        rng.integers(0, 256, (glimpses, scales, channels, glimpse, glimpse), dtype=np.uint8),
        shares / shares.sum(1, keepdims=True),
        classes,
    )
