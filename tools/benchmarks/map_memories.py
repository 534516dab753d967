"""What attention maps hold at most while a model looks, in a process of its own.

python -m benchmarks.map_memories recorded vit_base_patch16_224 8 2   how, whose, images, threads
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import timm
import torch
from timm.utils.attention_extract import AttentionExtract
from torch import Tensor, nn

from benchmarks.peak_memories import megabytes, printed_memory
from visattn.recording.recorder import record

Way = Callable[[Tensor], Sequence[Tensor]]
WAYS = ("plain", "recorded", "extracted")


def map_memory(way: str, name: str, images: int) -> float | None:
    """Return the megabytes that a look adds to a process at most; None where nobody counts.

    Raises:
        RuntimeError: If the process failed.
    """
    words = [way, name, str(images), str(torch.get_num_threads())]
    return printed_memory("benchmarks.map_memories", words)


def look_of(way: str, model: nn.Module) -> Way:
    """Return what looks at images and gives the weights of all layers, in their order.

    Args:
        way: `plain`, which gives none; `recorded`, the rows of the class token by ours; or
            `extracted`, all rows by timm's, for which the model gives up fused attention.
        model: Of timm's.
    """
    if way == "plain":
        return lambda images: (model(images), ())[1]
    if way == "recorded":

        def recorded(images: Tensor) -> Sequence[Tensor]:
            with record(model, queries="class") as seen:
                model(images)
            return seen.weights

        return recorded
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # pyright: ignore[reportArgumentType] (timm's flag)
    extract: Any = AttentionExtract(model)
    return lambda images: list(extract(images).values())


@torch.no_grad()
def main(argv: Sequence[str]) -> int:
    """Print what one look holds."""
    way, name, images, threads = argv
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    model: Any = timm.create_model(name).eval()
    look = look_of(way, model)
    given = torch.randn(int(images), *model.pretrained_cfg["input_size"])
    look(given[:1])  # so that what is set up once does not count
    before = megabytes("VmRSS")
    kept = look(given)
    print(megabytes("VmHWM") - before)
    return 0 if all(weights.isfinite().all() for weights in kept) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
