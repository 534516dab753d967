"""Which activations of a network lie on a grid, and what to send through it in their place."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from visattn.recording.model_info import FeatureSite
from visattn.recording.token_grid import (
    Grid,
    coded,
    fits,
    holds_numbers,
    in_order,
    numbers_in,
    split_tokens,
    windows_of,
)

IMAGES = 2  # so that it shows in which order windows of several images lie


class GridProbe:
    """Watches what the modules of a network put out while it runs on zeros.

    Args:
        size: Height and width of the images.
        roles: Of the tokens that the network may put before its grid.
        known: Grids on which marked images have shown activations to lie.
    """

    def __init__(self, size: tuple[int, int], roles: tuple[str, ...], known: list[Grid]) -> None:
        self.size, self.roles, self.known = size, roles, known
        self.seen: list[Grid] = []
        self.shuffled = False  # whether tokens were put out of the order of their grid
        self.norm: FeatureSite | None = None
        self.latest: FeatureSite | None = None

    def hook(self, site: str) -> Callable[..., Any]:
        """Return a hook that watches a module, and lets norms put out tokens with numbers.

        Args:
            site: Path of the module.
        """

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            found = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(found, Tensor) or found.ndim not in (3, 4) or len(found) != IMAGES:
                return None
            self.shuffled = self.shuffled or _out_of_order(found)
            norm = "Norm" in type(module).__name__ and found is output
            passed = self._passed(args, found) if norm else found
            feature = self.feature(site, passed, first=isinstance(module, nn.Conv2d))
            if feature is None:
                return passed if norm else None
            self.latest = feature
            self.norm = feature if norm else self.norm
            if feature.layout != "b n c":
                self.seen.append(feature.grid)
            return passed if norm else None

        return hook

    def code(self, given: Tensor) -> Tensor | None:
        """Return tokens that say which they are; None for what carries that or is no grid.

        Args:
            given: What a module is given.
        """
        if not given.is_floating_point() or given.ndim not in (3, 4) or len(given) != IMAGES:
            return None
        feature = self.feature("", given)
        if feature is None or holds_numbers(given):
            return None
        last = feature.layout != "b c y x"
        places = feature.before + feature.grid[0] * feature.grid[1]
        return coded(given, places, last=last) if given.shape[-1 if last else 1] > 4 else None

    def _passed(self, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return what a norm is to put out: the numbers that came in, or new ones."""
        given = args[0] if args else None
        if isinstance(given, Tensor) and given.shape == output.shape and holds_numbers(given):
            return given
        code = self.code(output)
        return output if code is None else code

    def feature(self, site: str, found: Tensor, *, first: bool = False) -> FeatureSite | None:
        """Return on which grid activations lie; None if on none.

        Args:
            site: Of the module that put them out.
            found: The activations.
            first: Whether channels are known to come first.
        """
        shape = found.shape
        if found.ndim == 3:
            split = split_tokens(shape[1], self.roles, self.size, self.seen)
            return (
                None
                if split is None or self.shuffled or split[1] not in self.known
                else FeatureSite(site, "b n c", split[1], len(split[0]))
            )
        leading, trailing = (shape[1], shape[2]), (shape[2], shape[3])
        options = [trailing] if first else [trailing, leading]
        options = [grid for grid in options if grid in self.known]
        seen = [grid for grid in options if grid in self.seen]
        grid = next((grid for grid in seen or options if fits(grid, self.size)), None)
        if grid is None:
            return None
        return FeatureSite(site, "b c y x" if grid is trailing else "b y x c", grid)


def _out_of_order(found: Tensor) -> bool:
    """Whether tokens carry numbers that do not rise from one to the next."""
    if found.ndim != 3:
        return False
    numbers = numbers_in(found, IMAGES, found.shape[1])
    windows = None if numbers is None else windows_of(numbers, IMAGES)
    return windows is not None and not in_order(windows)
