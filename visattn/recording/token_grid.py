"""Token grids: which grid a number of tokens forms, and token indices sent through a network."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import inf, log, prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.recording.model_info import FeatureLayer

Grid = tuple[int, int]
PROBE_BATCH_SIZE = 2  # shows in which order the windows of several images are stacked
_DIGIT = 128  # base of the encoded indices; float16 and bfloat16 represent all digits exactly
_DIGITS = 3
_CODE = _DIGITS + 1  # channels of a code: the digits, and the number of the image, from 1


def fits(grid: Grid, image_size: tuple[int, int]) -> bool:
    """Whether a grid of square cells can cover an image, up to one cell of padding or cropping.

    Example:
        >>> fits((3, 5), (48, 80)), fits((15, 1), (48, 80))
        (True, False)
    """
    pairs = list(zip(grid, image_size, strict=True))
    if not all(1 <= cells <= length for cells, length in pairs):
        return False
    # A cell may be cut off at the border or stand half outside: one more or one less fits as well.
    smallest = max(length / (cells + 1) for cells, length in pairs)
    largest = min(length / (cells - 1) if cells > 1 else inf for cells, length in pairs)
    return smallest < largest


def covers(grid: Grid, image_size: tuple[int, int]) -> bool:
    """Whether a grid of cells of any shape, with several rows and columns, can cover an image.

    Most grids do, so that it must be measured where their cells lie.

    Example:
        >>> covers((6, 5), (48, 80)), covers((15, 1), (48, 80))
        (True, False)
    """
    return all(2 <= cells <= length for cells, length in zip(grid, image_size, strict=True))


def infer_grid(
    num_tokens: int, image_size: tuple[int, int], observed_grids: Iterable[Grid]
) -> Grid | None:
    """Return rows and columns of a number of tokens; None if they form no grid of the image.

    The grid is one observed in the network, or one that is coarser by an integer factor; if none
    was observed, one of square cells that fill the image.

    Example:
        >>> infer_grid(15, (48, 80), [(6, 10)]), infer_grid(16, (48, 80), [(6, 10)])
        ((3, 5), None)
    """
    grids = list(dict.fromkeys(observed_grids))
    same_count = [grid for grid in grids if grid[0] * grid[1] == num_tokens]
    if same_count:
        return min(same_count, key=lambda grid: _anisotropy(grid, image_size))
    if not grids:
        height, width = image_size
        strides = (n for n in range(2, min(image_size)) if not height % n and not width % n)
        grids = [(height // stride, width // stride) for stride in strides]
        return next((grid for grid in grids if grid[0] * grid[1] == num_tokens), None)
    coarser = {
        grid: fits((rows, columns), image_size)
        for rows, columns in grids
        for factor in range(2, 9)
        if prod(grid := (-(-rows // factor), -(-columns // factor))) == num_tokens
    }
    # Where the finer cells are not square, coarser ones cannot be expected to be.
    matching = [grid for grid, square in coarser.items() if fits(grid, image_size) or not square]
    return min(matching, key=lambda grid: _anisotropy(grid, image_size), default=None)


def _anisotropy(grid: Grid, image_size: tuple[int, int]) -> float:
    """Return 0 for square cells, and more the longer they are."""
    return abs(log(image_size[0] / grid[0] * grid[1] / image_size[1]))


def split_prefix_tokens(
    num_tokens: int,
    prefix_tokens: Sequence[str],
    image_size: tuple[int, int],
    observed_grids: Sequence[Grid],
) -> tuple[tuple[str, ...], Grid] | None:
    """Split tokens into prefix tokens and the grid of the others.

    Returns None if the others form no grid.

    Args:
        prefix_tokens: Kinds of the prefix tokens of the network; a layer may have all, none, or
            those of one kind.

    Example:
        >>> split_prefix_tokens(16, ("class",), (48, 80), [(3, 5)])
        (('class',), (3, 5))
    """
    kinds = dict.fromkeys(prefix_tokens)
    options = [
        tuple(prefix_tokens),
        (),
        *(tuple(token for token in prefix_tokens if token == kind) for kind in kinds),
    ]
    # 16 tokens may be a class token and 3 x 5 patches, or 4 x 4 patches: a grid that was seen in
    # the network wins over one that could be.
    for allow_coarser in (False, True):
        for prefix in options:
            count = num_tokens - len(prefix)
            known = [grid for grid in observed_grids if allow_coarser or grid[0] * grid[1] == count]
            if observed_grids and not known:
                continue
            if (grid := infer_grid(count, image_size, known)) is not None:
                return prefix, grid
    return None


def encode_indices(like: Tensor, num_tokens: int, *, channels_last: bool) -> Tensor:
    """Return a tensor whose tokens encode their own index and image in the first channels.

    Example:
        >>> decode_indices(encode_indices(torch.zeros(2, 2, 3, 7), 6, channels_last=True), 2, 6)
        tensor([[ 0,  1,  2,  3,  4,  5],
                [ 6,  7,  8,  9, 10, 11]])
    """
    # Token 300 of image 2 in a tensor of 7 channels: 300 = 44 + 2 x 128 -> [44, 2, 0, 2, 0, 0, 0].
    # Padding is all zeros, so that "image 0" is an empty slot of a window.
    indices = torch.arange(num_tokens, device=like.device)
    digits = [indices // _DIGIT**power % _DIGIT for power in range(_DIGITS)]
    code = torch.stack(digits, -1).expand(len(like), -1, -1)
    images = torch.arange(1, len(like) + 1, device=like.device)[:, None, None]
    code = torch.cat((code, images.expand(-1, num_tokens, 1)), -1).to(like.dtype)
    code = code.unflatten(1, like.shape[1:-1] if channels_last else like.shape[2:])
    encoded = torch.zeros_like(like)
    if channels_last:
        encoded[..., :_CODE] = code
    else:
        encoded[:, :_CODE] = code.movedim(-1, 1)
    return encoded


def decode_indices(tokens: Tensor, groups: int, slots: int) -> Int[Tensor, "g n"] | None:
    """Return the indices that tokens encode, -1 for empty slots; None if they encode none.

    Indices continue from one image to the next.

    Args:
        groups: Number of groups of tokens (images, or windows of images).
        slots: Tokens in a group.
    """
    for codes in _grouped_layouts(tokens, groups, slots):
        digits = codes[..., :_DIGITS]
        images = codes[..., _DIGITS].round().long()
        occupied = images > 0
        powers = torch.tensor([_DIGIT**power for power in range(_DIGITS)], device=codes.device)
        indices = (digits.round().long() * powers).sum(-1)
        exact = bool((codes[..., :_CODE] == codes[..., :_CODE].round()).all())
        if not exact or bool(codes[..., _CODE:].any()) or not bool(occupied.any()):
            continue
        # Each token of each image exactly once: anything else was computed, not passed through.
        count = int(indices.max()) + 1
        used_images = images[occupied]
        unique = indices[occupied] + (used_images - 1) * count
        expected = int(used_images.max()) * count
        complete = unique.numel() == expected == unique.unique().numel()
        if int(used_images.min()) == 1 and complete:
            return torch.where(occupied, indices + (images - 1) * count, -1)
    return None


def _grouped_layouts(
    tokens: Tensor, groups: int, slots: int
) -> Iterable[Float[Tensor, "{groups} {slots} _"]]:
    """Yield the ways to read tokens as groups of slots, channels last."""
    if tokens.ndim < 2 or not tokens.is_floating_point():
        return
    for axis in dict.fromkeys((-1, 1)):
        channels = tokens.shape[axis]
        if channels > _CODE and tokens.numel() == groups * slots * channels:
            moved = tokens.detach().float().movedim(axis, -1)
            yield moved.reshape(groups, slots, channels)


def encodes_indices(tokens: Tensor) -> bool:
    """Whether tokens encode indices, in any layout."""
    images = len(tokens)
    return any(
        decode_indices(tokens, images, tokens[0].numel() // channels) is not None
        for channels in {tokens.shape[-1], tokens.shape[1]}
    )


def windows_per_image(indices: Int[Tensor, "g n"], images: int) -> Int[Tensor, "w n"] | None:
    """Return the token indices of each window of one image.

    Returns None if the windows of several images are interleaved. Empty slots are -1.
    """
    count = (int(indices.max()) + 1) // images
    # [image 1: all windows, image 2: all windows] is what torch's reshapes give; then the second
    # half is the first one, `count` further on.
    by_image = indices.unflatten(0, (images, -1))
    offsets = torch.arange(images)[:, None, None].to(by_image) * count
    local = torch.where(by_image < 0, by_image, by_image - offsets)
    equal = bool((local == local[:1]).all()) and int(local.max()) < count
    return local[0] if equal else None


def is_sequential(windows: Int[Tensor, "w n"]) -> bool:
    """Whether there is a single window, which holds all tokens in order.

    Example:
        >>> is_sequential(torch.tensor([[0, 1, 2]])), is_sequential(torch.tensor([[1, 2, 0]]))
        (True, False)
    """
    tokens = windows[0].tolist()
    ordered = all(after == before + 1 for before, after in pairwise([-1, *tokens]))
    return len(windows) == 1 and ordered


def rectangular_window_size(windows: Int[Tensor, "w n"], columns: int) -> Grid | None:
    """Return height and width of windows that are rectangles of a grid; None if they are not.

    Example:
        >>> rectangular_window_size(torch.tensor([[0, 1, 5, 6], [2, 3, 7, 8]]), 5)
        (2, 2)
    """
    full = [window for window in windows.tolist() if min(window) >= 0]
    sizes = set[Grid | None]()
    for window in full:
        ys = sorted({index // columns for index in window})
        xs = sorted({index % columns for index in window})
        contiguous = ys[-1] - ys[0] + 1 == len(ys) and xs[-1] - xs[0] + 1 == len(xs)
        sizes.add((len(ys), len(xs)) if contiguous else None)
    return max((size for size in sizes if size is not None), default=None)


class GridProbe:
    """Finds the grids of a network's activations while token indices are sent through it."""

    def __init__(
        self,
        image_size: tuple[int, int],
        prefix_tokens: tuple[str, ...],
        known_grids: list[Grid],
    ) -> None:
        self.image_size = image_size
        self.prefix_tokens = prefix_tokens
        self.known_grids = known_grids
        self.observed_grids: list[Grid] = []
        self.permuted = False  # whether a module put tokens into another order
        self.last_norm: FeatureLayer | None = None
        self.last_features: FeatureLayer | None = None

    def forward_hook(self, site: str) -> Callable[..., Any]:
        """Return a hook that observes a module, and makes norms return encoded tokens."""

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            tensor = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(tensor, Tensor) or not _is_batch(tensor):
                return None
            self.permuted = self.permuted or _is_permuted(tensor)
            norm = "Norm" in type(module).__name__ and tensor is output
            passed = self._norm_output(args, tensor) if norm else tensor
            layer = self.infer_layer(site, passed, channels_first=isinstance(module, nn.Conv2d))
            if layer is None:
                return passed if norm else None
            self.last_features = layer
            self.last_norm = layer if norm else self.last_norm
            if layer.layout != "b n c":
                self.observed_grids.append(layer.grid)
            return passed if norm else None

        return hook

    def encode(self, tensor: Tensor) -> Tensor | None:
        """Return a tensor with encoded indices; None if it is encoded already or has no grid."""
        if not tensor.is_floating_point() or not _is_batch(tensor):
            return None
        layer = self.infer_layer("", tensor)
        if layer is None or encodes_indices(tensor):
            return None
        channels_last = layer.layout != "b c y x"
        if tensor.shape[-1 if channels_last else 1] <= _CODE:
            return None
        num_tokens = layer.num_prefix_tokens + layer.grid[0] * layer.grid[1]
        return encode_indices(tensor, num_tokens, channels_last=channels_last)

    def split(self, num_tokens: int) -> tuple[tuple[str, ...], Grid] | None:
        """Return the prefix tokens and the grid of tokens; None if they form no grid."""
        grids = self.observed_grids or self.known_grids
        return split_prefix_tokens(num_tokens, self.prefix_tokens, self.image_size, grids)

    def _norm_output(self, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return the encoded input of a norm unchanged, or its output newly encoded."""
        tensor = args[0] if args else None
        if isinstance(tensor, Tensor) and tensor.shape == output.shape and encodes_indices(tensor):
            return tensor
        encoded = self.encode(output)
        return output if encoded is None else encoded

    def infer_layer(
        self, site: str, activations: Tensor, *, channels_first: bool = False
    ) -> FeatureLayer | None:
        """Return layout and grid of activations; None if they lie on no known grid.

        Args:
            channels_first: Whether channels are known to be the second axis.
        """
        shape = activations.shape
        if activations.ndim == 3:
            split = self.split(shape[1])
            if split is None or self.permuted or split[1] not in self.known_grids:
                return None
            return FeatureLayer(site, "b n c", split[1], len(split[0]))
        leading = (shape[1], shape[2])
        trailing = (shape[2], shape[3])
        options = [trailing] if channels_first else [trailing, leading]
        options = [grid for grid in options if grid in self.known_grids]
        observed = [grid for grid in options if grid in self.observed_grids]
        grid = next(iter(observed or options), None)
        if grid is None:
            return None
        return FeatureLayer(site, "b c y x" if grid is trailing else "b y x c", grid)


def _is_batch(tensor: Tensor) -> bool:
    return tensor.ndim in (3, 4) and len(tensor) == PROBE_BATCH_SIZE


def _is_permuted(tokens: Tensor) -> bool:
    """Whether encoded tokens are not in the order of their indices."""
    if tokens.ndim != 3:
        return False
    indices = decode_indices(tokens, PROBE_BATCH_SIZE, tokens.shape[1])
    windows = None if indices is None else windows_per_image(indices, PROBE_BATCH_SIZE)
    return windows is not None and not is_sequential(windows)
