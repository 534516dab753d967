"""Captions and scan paths of the models that come with the package."""

import numpy as np
from kept_values import Keep

import visattn as va
from visattn.data.scenes.dataset import Scenes
from visattn.pipelines.scanpath import glimpses


def _photos() -> list[np.ndarray]:
    scenes = Scenes(3, size=96, split="test")
    images = [scenes[index].image for index in range(3)]
    return [image.permute(1, 2, 0).numpy() for image in images if image is not None]


def test_captions(keep: Keep) -> None:
    captions = va.caption(va.load("scenes-captioner"), _photos())
    keep(
        "bundled/captioner",
        {
            str(number): {
                "words": caption.words,
                "log_probs": caption.log_probs,
                "gates": caption.gates,
                "maps": caption.maps.values,
            }
            for number, caption in enumerate(captions)
        },
        tolerance=1e-2,
    )


def test_scan_paths(keep: Keep) -> None:
    paths = glimpses(va.load("scenes-glimpses"), _photos())
    keep(
        "bundled/glimpses",
        {
            str(number): {"boxes": path.boxes, "probabilities": path.probabilities}
            for number, path in enumerate(paths)
        },
        tolerance=1e-2,
    )
