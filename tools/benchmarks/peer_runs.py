"""Maps by visattn or another library in a process of its own; `peer_speeds.py` starts them.

    python tools/benchmarks/peer_runs.py LIBRARY METHOD NETWORK CLASS FILE

The first map is written to FILE, and CPU seconds and memory that it took are printed; for each line
of the standard input another map is computed, and its CPU seconds are printed. It runs in `.venv`
and in `.venv-peers`, and imports only what its library needs.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

STEPS, SAMPLES, MASKS_AT_ONCE = 20, 10, 4
STATUS = Path("/proc/self/status")
Run = Callable[[], Tensor]
OPTIONS: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"n_steps": STEPS},
    "smoothgrad": {"num_samples": SAMPLES},
    "rise": {"num_masks": 16},
    "attention": {"layer": -1},
}
"""Arguments of our methods; the others get the same."""


def build(network: str) -> tuple[nn.Module, Tensor]:
    """Return a network with random weights, `NAME@SIDE` of torchvision or timm, and an image."""
    name, _, side = network.partition("@")
    torch.manual_seed(0)
    if name.startswith("vit_"):
        import timm

        model: nn.Module = timm.create_model(name)
    else:
        from torchvision.models import get_model

        model = get_model(name, weights=None)
    return model.eval(), torch.randn(1, 3, int(side), int(side))


def last_layer(model: Any) -> nn.Module:
    """Return the last layer of features of a CNN of torchvision."""
    return model.layer4 if hasattr(model, "layer4") else model.features


def of_visattn(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the call of our method."""
    from visattn.attribution.methods import METHODS

    options = dict(OPTIONS.get(method, {}))
    if method == "occlusion":
        side = image.shape[-1] // 4
        options = {"sliding_window_size": side, "stride": side, "score_type": "logits"}
    return lambda: METHODS[method](model, image, label, **options)


def of_gradcam(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the call of pytorch-grad-cam."""
    import pytorch_grad_cam as library  # pyright: ignore[reportMissingImports]
    from pytorch_grad_cam.utils.model_targets import (  # pyright: ignore[reportMissingImports]
        ClassifierOutputTarget,
    )

    names = {"gradcam": "GradCAM", "layercam": "LayerCAM", "scorecam": "ScoreCAM"}
    names |= {"gradcam++": "GradCAMPlusPlus", "ablationcam": "AblationCAM"}
    method_class = getattr(library, names[method])

    def run() -> Tensor:
        with method_class(model=model, target_layers=[last_layer(model)]) as cam:
            return torch.from_numpy(cam(image, targets=[ClassifierOutputTarget(label)]).copy())

    return run


def of_torchcam(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the call of torchcam."""
    from torchcam import methods  # pyright: ignore[reportMissingImports]

    names = {"gradcam": "GradCAM", "layercam": "LayerCAM", "scorecam": "ScoreCAM"}
    names |= {"gradcam++": "GradCAMpp"}
    method_class = getattr(methods, names[method])

    def run() -> Tensor:
        with method_class(model, target_layer=last_layer(model)) as extractor:
            scores = model(image.clone().requires_grad_())
            return extractor(label, scores)[0].detach()

    return run


def of_captum(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the call of captum."""
    from captum import attr  # pyright: ignore[reportMissingImports]

    def gradcam() -> Tensor:
        maps = attr.LayerGradCam(model, last_layer(model)).attribute(
            image, target=label, relu_attributions=True
        )
        return maps[:, 0].detach()

    def saliency() -> Tensor:
        return attr.Saliency(model).attribute(image, target=label).amax(1)

    def smoothgrad() -> Tensor:
        tunnel = attr.NoiseTunnel(attr.Saliency(model))
        spread = 0.15 * float(image.amax() - image.amin())
        maps = tunnel.attribute(
            image, nt_type="smoothgrad", nt_samples=SAMPLES, stdevs=spread, target=label, abs=False
        )
        return maps.abs().amax(1).detach()

    def integrated_gradients() -> Tensor:
        maps = attr.IntegratedGradients(model).attribute(image, target=label, n_steps=STEPS)
        return maps.sum(1).detach()

    def occlusion() -> Tensor:
        side = image.shape[-1] // 4
        with torch.no_grad():
            return attr.Occlusion(model).attribute(
                image,
                (3, side, side),
                (3, side, side),
                target=label,
                perturbations_per_eval=MASKS_AT_ONCE,
            )[:, 0]

    runs = (gradcam, saliency, smoothgrad, integrated_gradients, occlusion)
    return {"input_gradient" if run is saliency else run.__name__: run for run in runs}[method]


def of_timm(model: Any, image: Tensor, method: str, _: int) -> Run:
    """Return the extraction of attention by timm, for the rows of the class token."""
    from timm.utils.attention_extract import AttentionExtract

    if method != "attention":
        raise ValueError(f"timm extracts attention, got {method}")
    for block in model.blocks:
        block.attn.fused_attn = False
    extract = AttentionExtract(model, method="fx")

    def run() -> Tensor:
        with torch.no_grad():
            weights = [*extract(image).values()][-1]
        return on_grid(weights[:, :, 0, 1:].mean(1))

    return run


def of_rollout(model: Any, image: Tensor, _: str, __: int) -> Run:
    """Return the rollout of vit-explain: products of whole matrices from hooked layers."""

    def run() -> Tensor:
        result = torch.eye(model.pos_embed.shape[1])
        for weights in hooked_weights(model, image):
            mixed = (weights.mean(1) + torch.eye(weights.shape[-1])) / 2
            result = mixed / mixed.sum(-1, keepdim=True) @ result
        return on_grid(result[:, 0, 1:])

    return run


def of_vector_rollout(model: Any, image: Tensor, _: str, __: int) -> Run:
    """Return a rollout that carries only the row of the class token, from the last layer down."""

    def run() -> Tensor:
        weights = hooked_weights(model, image)
        row = torch.eye(weights[0].shape[-1])[None, :1]
        for layer in reversed(weights):
            row = (row @ layer.mean(1) + row) / 2
        return on_grid(row[:, 0, 1:])

    return run


def hooked_weights(model: Any, image: Tensor) -> list[Tensor]:
    """Return the attention of all layers of a timm model, which is not fused meanwhile."""
    kept: list[Tensor] = []
    handles = []
    for block in model.blocks:
        block.attn.fused_attn = False
        hook = block.attn.attn_drop.register_forward_hook(lambda _, __, out: kept.append(out))
        handles.append(hook)
    with torch.no_grad():
        model(image)
    for handle in handles:
        handle.remove()
    return kept


def of_plain_rise(model: nn.Module, image: Tensor, method: str, label: int) -> Run:
    """Return the loop of the published code of RISE, on the masks that ours has."""
    from visattn.attribution.perturbation import rise_grids, rise_masks

    if method != "rise":
        raise ValueError(f"the loop is that of rise, got {method}")
    count = OPTIONS["rise"]["num_masks"]
    grids = rise_grids(count, num_cells=7, keep_probability=0.5, seed=0)
    masks = rise_masks(*grids, (image.shape[2], image.shape[3]))

    def run() -> Tensor:
        with torch.no_grad():
            chunks = (masks[:, None] * image).split(MASKS_AT_ONCE)
            scores = torch.cat([model(chunk).softmax(1)[:, label] for chunk in chunks])
        return (scores @ masks.flatten(1)).view(1, *masks.shape[1:]) / count / 0.5

    return run


def on_grid(values: Tensor) -> Tensor:
    """Return the values of patches `[b, n]` on their grid `[b, y, x]`."""
    side = round(values.shape[1] ** 0.5)
    return values.unflatten(1, (side, side))


LIBRARIES: dict[str, Callable[[nn.Module, Tensor, str, int], Run]] = {
    "visattn": of_visattn,
    "grad-cam": of_gradcam,
    "torchcam": of_torchcam,
    "captum": of_captum,
    "timm": of_timm,
    "vit-explain": of_rollout,
    "row by row": of_vector_rollout,
    "plain loop": of_plain_rise,
}


def megabytes(entry: str) -> float:
    """Return the current (`VmRSS`) or peak (`VmHWM`) memory of this process; 0 if not known."""
    if not STATUS.exists():
        return 0.0
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[entry].split()[0]) / 1024


def main() -> int:
    """Compute the first map, and further ones on demand."""
    library, method, network, label, file = sys.argv[1:]
    torch.set_num_threads(1)
    model, image = build(network)
    run = LIBRARIES[library](
        model, image, method, int(label)
    )  # imports the library, which does not count
    begin, before = time.process_time(), megabytes("VmRSS")
    maps = run()
    first = {"first": time.process_time() - begin, "memory": megabytes("VmHWM") - before}
    save_file({"maps": maps.float().contiguous()}, file)
    print(json.dumps(first), flush=True)
    for _ in sys.stdin:
        begin = time.process_time()
        run()
        print(time.process_time() - begin, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
