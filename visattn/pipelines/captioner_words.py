"""Forward pass of a captioner over an image and its whole caption, for the methods of words."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.attribution.words import TokenVectors, WordLayer, WordRun
from visattn.functional.attribution.masks import occlusion_windows, window_masks
from visattn.models.captioner import Captioner, WordSite
from visattn.results.kinds import START


def captioner_run(
    model: Captioner, features: Float[Tensor, "1 c y x"], words: Sequence[int]
) -> WordRun:
    """Return the forward pass of a captioner over one image and its caption.

    Args:
        model: Captioner, in evaluation mode.
        features: Encoder features of the image.
        words: Token ids of the caption, without start and end.

    Raises:
        ValueError: If the caption is empty, or the model samples the place of each word or is an
            ensemble.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.encoder import SmallEncoder
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red", "blue"), encoder, hidden_size=11).eval()
        >>> run = captioner_run(model, torch.rand(1, 8, 3, 5), [4, 5])
        >>> run.log_probs.shape, run.layers[0].weights().shape
        (torch.Size([2]), torch.Size([1, 2, 15]))
    """
    if not len(words):
        raise ValueError("the caption must have at least one word, got none")
    if not (sites := model.word_sites()):
        raise ValueError(
            f"{type(model).__name__} has no decoder of its own: use attention without layers and "
            "heads, or occlusion; of an ensemble, explain one of its members"
        )
    if model.places == "sample":
        raise ValueError(
            "methods for words need places that do not depend on chance, but this model samples "
            'them: set its places to "argmax" or "expectation"'
        )
    recurrent = all(site.cross for site in sites)
    features = features.detach().requires_grad_()
    with _stored_weights(sites) as stored, _stored_projection(model) as projected:
        log_probs = word_log_probs(model, features, words)[0]
    layers = tuple(
        WordLayer(site, tuple(steps), _columns(steps, features) if cross else None)
        for site, cross, steps in _grouped(stored, recurrent=recurrent)
    )
    return WordRun(
        log_probs,
        layers,
        TokenVectors(projected[0], lambda places: places[0]),
        TokenVectors(features, lambda grid: grid[0].flatten(1).T),
        recurrent=recurrent,
    )


def word_log_probs(
    model: Captioner, features: Float[Tensor, "b c y x"], words: Sequence[int]
) -> Float[Tensor, "b t"]:
    """Return the log-probability of each word of a caption, for each of several images.

    Args:
        model: Captioner.
        features: Encoder features of the images.
        words: Token ids of the caption, without start and end.
    """
    count, length = len(features), len(words)
    tokens = torch.tensor([START, *words], device=features.device)
    lengths = torch.full((count,), length, device=features.device)
    output = model.teacher_force(features, tokens[:-1].expand(count, -1), lengths)
    targets = tokens[output.steps + 1]
    log_probs = output.logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    order = (output.rows * length + output.steps).argsort()
    return log_probs[order].unflatten(0, (count, length))


@torch.no_grad()
def word_occlusion(
    model: Captioner,
    image: Float[Tensor, "1 3 y x"],
    words: Sequence[int],
    *,
    window_cells: int = 2,
    internal_batch_size: int = 32,
) -> Float[Tensor, "t gy gx"]:
    """Return the mean decrease of each word's log-probability over the windows that hide a cell.

    The windows have the mean color and slide by one cell of the feature grid. Where hiding raises
    the log-probability the map is 0.

    Args:
        model: Captioner, in evaluation mode.
        image: Normalized, of the size of the encoder's input.
        words: Token ids of the caption, without start and end.
        window_cells: Side of the window in cells.
        internal_batch_size: Images in one forward pass.

    Raises:
        ValueError: If the window has no cell.

    Source:
        Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2, for the log-probability of each word.
    """
    grid, size = model.encoder.grid_size, (image.shape[2], image.shape[3])
    side = (window_cells, window_cells)
    windows = occlusion_windows(grid, window_size=side, stride=(1, 1)).to(image.device)
    cells = window_masks(windows, grid)
    scale = torch.tensor([size[1] / grid[1], size[0] / grid[0]], device=image.device).repeat(2)
    hidden = window_masks((windows * scale).round().long(), size)
    original = word_log_probs(model, model.encoder(image), words)
    decrease = torch.cat(
        [
            original - word_log_probs(model, model.encoder(image * ~part[:, None]), words)
            for part in hidden.split(internal_batch_size)
        ]
    )
    total = torch.einsum("wt,wyx->tyx", decrease, cells.to(decrease))
    return (total / cells.sum(0)).relu()


def _columns(steps: Sequence[Tensor], features: Tensor) -> Tensor:
    count = features.shape[-2] * features.shape[-1]
    return torch.arange(count, device=steps[0].device)


Stored = list[tuple[str, bool, Tensor]]


@contextmanager
def _stored_weights(sites: Sequence[WordSite]) -> Iterator[Stored]:
    """Store site, whether it attends to the image, and the weights of each attention call."""
    stored: Stored = []
    handles = [
        site.module.register_forward_hook(_hook(stored, site.name, cross=site.cross))
        for site in sites
    ]
    try:
        yield stored
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _stored_projection(model: Captioner) -> Iterator[list[Tensor]]:
    """Store the projected features `1 n c`, the values that the decoder reads."""
    stored: list[Tensor] = []
    projection = model.get_submodule("decoder.feature_proj")
    handle = projection.register_forward_hook(lambda *call: stored.append(call[-1]))
    try:
        yield stored
    finally:
        handle.remove()


def _hook(stored: Stored, site: str, *, cross: bool) -> Any:
    def store(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        if not output.requires_grad:  # a place that was selected, without a gradient
            output = output.detach().requires_grad_()
        heads = output.shape[1] if output.ndim == 4 else 1
        node = output.reshape(heads, -1, output.shape[-1])
        stored.append((site, cross, node))
        return node.view(output.shape)  # the decoder goes on from the stored weights

    return store


def _grouped(stored: Stored, *, recurrent: bool) -> list[tuple[str, bool, list[Tensor]]]:
    """Return the weights of each layer; a recurrent decoder calls its only one for each word."""
    if recurrent:
        return [(stored[0][0], True, [weights for *_, weights in stored])]
    return [(site, cross, [weights]) for site, cross, weights in stored]
