"""Colors that the models inside of a model receive, measured."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.recording.frozen import first_weight, without_grad
from visattn.recording.outputs import output_tensors

_TOLERANCE = 1e-3  # of colors in [0, 1]


class _AllReceived(Exception):  # noqa: N818 - ends the run of a model, and is no error
    pass


@dataclass(frozen=True, eq=False)
class ColorMap:
    """How the colors that an inner model receives follow from those of the image.

    Args:
        scale: Factor of each channel.
        shift: Summand of each channel.
        separate: Whether each channel is a linear function of the same channel of the image.
    """

    scale: Float[Tensor, " c"]
    shift: Float[Tensor, " c"]
    separate: bool


def received_colors(
    model: nn.Module,
    forward: Callable[[Tensor], Any],
    inner: Mapping[str, nn.Module],
    size: tuple[int, int],
    channels: int,
) -> dict[str, ColorMap]:
    """Return how the colors of inner models follow from those of the image.

    The model runs on images of one color each. Inner models that do not run, or not on images of as
    many channels, are left out; so are all if the model does not run.

    Example:
        >>> class Bright(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Conv2d(3, 2, 1)
        ...     def forward(self, x): return self.net(2 * x - 1)
        >>> model = Bright()
        >>> colors = received_colors(model, model, {"net": model.net}, (5, 7), 3)["net"]
        >>> colors.scale.tolist(), colors.shift.tolist(), colors.separate
        ([2.0, 2.0, 2.0], [-1.0, -1.0, -1.0], True)
    """
    black = torch.zeros(1, channels)
    gray = torch.full((1, channels), 0.5)
    colors = torch.cat([black, torch.eye(channels), gray])
    images = colors[:, :, None, None].expand(-1, -1, *size).to(first_weight(model))
    received: dict[str, Tensor] = {}

    def hook(site: str) -> Callable[..., None]:
        def store(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensors = output_tensors([args, kwargs])
            image = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
            if image is not None:
                received.setdefault(site, image.detach().float())
            if len(received) == len(inner):
                raise _AllReceived

        return store

    with ExitStack() as stack:
        stack.enter_context(without_grad(model))
        for site, module in inner.items():
            for inside in module.modules():  # some are not called as a whole: forward_features
                handle = inside.register_forward_pre_hook(hook(site), with_kwargs=True)
                stack.callback(handle.remove)
        try:
            forward(images)
        except _AllReceived:
            pass
        except Exception:  # noqa: BLE001 - reported when the model is probed
            return {}
    shape = (len(images), channels)
    whole = {site: image for site, image in received.items() if image.shape[:2] == shape}
    return {
        site: _color_map(image)
        for site, image in whole.items()
        if image.ndim == 4 and image.numel()
    }


def _color_map(image: Float[Tensor, "k c y x"]) -> ColorMap:
    """Return the map of colors from images in black, each primary color, and gray."""
    center = image[:, :, image.shape[2] // 2, image.shape[3] // 2].cpu()
    black = center[0]
    primary = center[1:-1] - center[0]
    gray = center[-1]
    scale = primary.diagonal()
    size = float(primary.abs().max()) * _TOLERANCE
    mixed = (primary - scale.diag()).abs().max() > size
    linear = (black + primary.sum(0) / 2 - gray).abs().max() <= size
    return ColorMap(scale, black, bool(linear and not mixed and scale.abs().min() > size))
