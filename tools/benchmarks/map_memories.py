"""Peak memory of attention maps in a forward pass, measured in a separate process.

python -m benchmarks.map_memories recorded vit_base_patch16_224 8 2   method, model, images, threads
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

MapFunction = Callable[[Tensor], Sequence[Tensor]]
METHODS = ("plain", "recorded", "extracted")


def map_memory(method: str, name: str, images: int) -> float | None:
    """Return the peak megabytes that a forward pass adds; None if not measurable.

    Raises:
        RuntimeError: If the process failed.
    """
    words = [method, name, str(images), str(torch.get_num_threads())]
    return printed_memory("benchmarks.map_memories", words)


def forward_with_maps(method: str, model: nn.Module) -> MapFunction:
    """Return a function from images to the attention weights of all layers.

    Args:
        method: `plain`, without weights; `recorded`, the rows of the class token by visattn; or
            `extracted`, all rows by timm, for which fused attention is disabled.
        model: A timm model.
    """
    if method == "plain":
        return lambda images: (model(images), ())[1]
    if method == "recorded":

        def recorded(images: Tensor) -> Sequence[Tensor]:
            with record(model, queries="class") as records:
                model(images)
            return records.weights

        return recorded
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # pyright: ignore[reportArgumentType] (timm's flag)
    extract: Any = AttentionExtract(model)
    return lambda images: list(extract(images).values())


@torch.no_grad()
def main(argv: Sequence[str]) -> int:
    """Print the peak memory of one forward pass."""
    method, name, images, threads = argv
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    model: Any = timm.create_model(name).eval()
    run = forward_with_maps(method, model)
    batch = torch.randn(int(images), *model.pretrained_cfg["input_size"])
    run(batch[:1])  # warm-up: excludes one-time allocations
    before = megabytes("VmRSS")
    weights = run(batch)
    print(megabytes("VmHWM") - before)
    return 0 if all(layer.isfinite().all() for layer in weights) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
