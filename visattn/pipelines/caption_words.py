"""Maps per word of a captioner: attention, gradients, relevance, Grad-CAM and occlusion."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from visattn.attribution.perturbation import occlusion_windows, window_masks
from visattn.attribution.words import WordRun, word_attributions
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.recording.frozen import frozen
from visattn.recording.interception import in_this_run
from visattn.recording.places import CellStrides
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.kinds import START, UNKNOWN, WORD_QUANTITIES, WordMethod


def explain_captions(
    model: Captioner,
    images: Sequence[LoadedImage],
    captions: Sequence[Caption],
    method: WordMethod,
    *,
    resize_mode: ResizeMode,
    **chosen: Any,
) -> list[Caption]:
    """Return captions, and their alternatives, with the maps of another method.

    Their gates are kept.

    Args:
        model: Captioner.
        images: The photo of each caption.
        captions: Captions that it generated.
        method: As for `visattn.caption`.
        resize_mode: How images get the shape of the input: `crop`, `squash` or `pad`.
        chosen: `layers`, `heads` and `window_cells`, as for `visattn.caption`.

    Raises:
        ValueError: If there is no such layer or head, or the method needs `attention_site`.

    Source:
        Grad-CAM of a word: Selvaraju et al. 2017, arXiv:1610.02391, section 7.1.
    """

    def explain(image: LoadedImage, result: Caption) -> Caption:
        others = tuple(explain(image, other) for other in result.alternatives)
        explained = _explained(model, image, result, method, resize_mode, **chosen)
        return replace(explained, alternatives=others)

    return [explain(*pair) for pair in zip(images, captions, strict=True)]


def _explained(
    model: Captioner,
    image: LoadedImage,
    result: Caption,
    method: WordMethod,
    resize_mode: ResizeMode,
    *,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    window_cells: int | None = None,
) -> Caption:
    """Return a caption with the maps of a method."""
    encoder, grid = model.encoder, model.encoder.grid_size
    pixels, geometry = resize_to_input(image, ResizeSpec(encoder.img_size, mode=resize_mode))
    pixels, margin = pixels[None].to(encoder.shift.device), (0, 0)
    ids = {word: token for token, word in enumerate(model.words)}
    words = [ids.get(word, UNKNOWN) for word in result.words]
    with frozen(model):
        if method == "occlusion":
            values = occlude_words(model, pixels, words, window_cells)
        else:
            with CellStrides().watching(encoder) as strides:
                features = encoder(pixels)
            margin = strides.margin(grid, encoder.img_size)
            run = captioner_run(model, features, words)
            rows = word_attributions(run, method, layers=layers, heads=heads)
            values = rows.unflatten(-1, grid).float().cpu()
    info = replace(result.maps.info, method=method, quantity=WORD_QUANTITIES.get(method, ""))
    more: dict[str, Any] = {}
    if method != "attention":
        # Gradients of a confident word are small, so each map is normalized to a sum of 1.
        sums = values.sum((-2, -1), keepdim=True)
        values = values / sums.masked_fill(sums <= 0, 1.0)
        info = info | MapInfo(more={"scale": "each map sums to 1"})
        more = {"kind": "gradient", "site": "encoder"}
    place = {"geometry": geometry.inset(margin), "margin": margin}
    return replace(result, maps=replace(result.maps, values=values, info=info, **place, **more))


_BATCH = 32  # occluded images per forward pass


def captioner_run(
    model: Captioner, features: Float[Tensor, "1 c y x"], words: Sequence[int]
) -> WordRun:
    """Return the forward pass of a captioner over one image and its caption.

    The words are token ids without start and end; the model is in evaluation mode.

    Raises:
        ValueError: If the model samples the position of each word.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> encoder = SmallEncoder((24, 40), channels=8)
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red", "blue"), encoder, hidden_size=11).eval()
        >>> run = captioner_run(model, torch.rand(1, 8, 3, 5), [4, 5])
        >>> run.log_probs.shape, run.attention().shape
        (torch.Size([2]), torch.Size([1, 1, 2, 15]))
    """
    if model.places == "sample":
        raise ValueError(
            "methods for words need deterministic positions, but this model samples "
            'them: set its places to "argmax" or "expectation"'
        )
    features = features.detach().requires_grad_()
    tokens = features.flatten(2).mT
    with _stored(model) as (weights, projected):
        log_probs = word_log_probs(model, tokens.mT.view_as(features), words)[0]
    if [each.shape[1:-1] for each in projected] == [tokens.shape[1:-1]]:
        tokens = projected[0]
    own = [step for name, [step, *_] in weights.items() if name.endswith("self_attn")]
    cross = [steps for name, steps in weights.items() if not name.endswith("self_attn")]
    return WordRun(log_probs, cross, own, tokens, features)


def word_log_probs(
    model: Captioner, features: Float[Tensor, "b c y x"], words: Sequence[int]
) -> Float[Tensor, "b t"]:
    """Return the log-probability of each word of a caption, for each of several images."""
    count = len(features)
    length = len(words)
    tokens = torch.tensor([START, *words], device=features.device)
    lengths = torch.full((count,), length, device=features.device)
    output = model.teacher_force(features, tokens[:-1].expand(count, -1), lengths)
    targets = tokens[output.steps + 1]
    log_probs = output.logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    # Teacher forcing returns all images of step 0, then of step 1 and so on.
    order = (output.rows * length + output.steps).argsort()
    return log_probs[order].unflatten(0, (count, length))


@torch.no_grad()
def occlude_words(
    model: Captioner,
    pixels: UInt8[Tensor, "1 3 y x"],
    words: Sequence[int],
    window_cells: int | None = None,
) -> Float[Tensor, "t gy gx"]:
    """Return the mean decrease of each word's log-probability over the windows on a cell.

    The windows have the mean color and slide by one cell of the feature grid. The map is 0 where
    occlusion raises the log-probability.

    Raises:
        ValueError: If the window has no cell.

    Source:
        Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2, for the log-probability of each word.
    """
    encoder = model.encoder
    grid, size = encoder.grid_size, encoder.img_size
    side = 2 if window_cells is None else window_cells
    windows = occlusion_windows(grid, window_size=(side, side), stride=(1, 1)).to(pixels.device)
    cells = window_masks(windows, grid)
    scale = torch.tensor([size[1] / grid[1], size[0] / grid[0]], device=pixels.device)
    hidden = window_masks((windows * scale.repeat(2)).round().long(), size)
    image = encoder.normalize(pixels)
    original = word_log_probs(model, encoder(image), words)
    rest = [
        word_log_probs(model, encoder(image * ~masks[:, None]), words)
        for masks in hidden.split(_BATCH)
    ]
    decrease = original - torch.cat(rest)
    total = torch.einsum("wt,wyx->tyx", decrease, cells.to(decrease))
    return (total / cells.sum(0)).relu().float().cpu()


@contextmanager
def _stored(model: Captioner) -> Iterator[tuple[dict[str, list[Tensor]], list[Tensor]]]:
    """Store the weights `h q m` of each attention, and the projected features `1 n c`.

    Weights are kept by the name of their site, once for each call: a transformer calls each layer
    once, a recurrent decoder its only one for each word.
    """
    weights: dict[str, list[Tensor]] = {}
    projected: list[Tensor] = []
    sites = {model.attention_site: model.get_submodule(model.attention_site)}
    if isinstance(model, TransformerCaptioner):
        sites = {
            f"decoder.layers.{index}.{name}": layer.get_submodule(f"{name}.attn_drop")
            for index, layer in enumerate(model.decoder.layers)
            for name in ("self_attn", "cross_attn")
        }

    def storing(name: str) -> Any:
        def store(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            if not output.requires_grad:  # hard attention: a selected position, without a gradient
                output = output.detach().requires_grad_()
            heads = output.shape[1] if output.ndim == 4 else 1
            node = output.reshape(heads, -1, output.shape[-1])
            weights.setdefault(name, []).append(node)
            return node.view(output.shape)  # the decoder continues from the stored weights

        return store

    def project(_module: nn.Module, _args: Any, output: Tensor) -> None:
        projected.append(output)

    hooks = [(module, storing(name)) for name, module in sites.items()]
    if projection := getattr(model.decoder, "feature_proj", None):
        hooks.append((projection, project))
    with ExitStack() as stack:
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(in_this_run(hook)).remove)
        yield weights, projected
