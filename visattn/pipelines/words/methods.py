"""Methods for the words of a vision-language model: gradients and occlusion."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from visattn.attribution.perturbation import occlusion_windows, window_masks
from visattn.attribution.words import WordLayer, WordRun
from visattn.pipelines.word_source import WordGrids
from visattn.pipelines.words.language_model import pixel_name
from visattn.pipelines.words.replay import WordReplay
from visattn.pipelines.words.spans import word_means
from visattn.results.captions import Caption

_WINDOWS_PER_SIDE = 7  # of an occlusion window, as for classifiers


@dataclass(frozen=True, eq=False)
class ReplayedWords:
    """The words of a caption for a vision-language model."""

    replay: WordReplay

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.replay.model

    def run(self) -> WordRun:
        """Return a differentiable forward pass over the caption.

        Raises:
            ValueError: If words read the image through learned queries.
        """
        replay = self.replay
        if replay.tokens.between:
            raise ValueError(
                f"the words of {type(replay.model).__name__} read learned queries instead of image "
                "tokens, so that gradients of its attention have no place on the photo; use the "
                "methods attention or occlusion"
            )
        run = replay.run(differentiable=True)
        layers = [WordLayer(site, (weights,), replay.columns.to(weights.device))
                  for site, weights in run.weights.items()]  # fmt: skip
        return WordRun(run.log_probs, tuple(layers))

    def place(self, rows: Float[Tensor, "t i"]) -> WordGrids:
        """Return the mean over the tokens of each word, on the grid of the photo."""
        placement = self.replay.placement
        words = word_means(rows.float().cpu(), self.replay.words.spans)
        return WordGrids(placement.rasterize(words), placement.geometry)

    @torch.no_grad()
    def occlude(self, window_cells: int | None) -> WordGrids:
        """Return the mean decrease of each word's log-probability over windows that hide a cell.

        The windows are painted on the photo, in its mean color; they slide by half of their side,
        which is 1/7 of the longer side of the grid by default, and at least 2 cells.

        Source:
            Zeiler and Fergus 2013, arXiv:1311.2901, section 4.2, for the log-probability of each
            word.
        """
        replay = self.replay
        placement = replay.placement
        grid, geometry = placement.grid_size, placement.geometry
        side = min(window_cells or max(2, -(-max(grid) // _WINDOWS_PER_SIDE)), *grid)
        step = max(1, side // 2)
        windows = occlusion_windows(grid, window_size=(side, side), stride=(step, step))
        corners = geometry.to_image(windows.double().view(-1, 2)).view(-1, 4).round().long()
        original = _word_sums(replay, replay.run().log_probs)
        total = torch.zeros(len(original), *grid)
        counts = torch.zeros(grid)
        color = replay.image.pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
        name = pixel_name(replay.inputs)
        for (left, top, right, bottom), cells in zip(
            corners.tolist(), window_masks(windows, grid), strict=True
        ):
            hidden = replay.image.pixels.copy()
            hidden[max(top, 0) : bottom, max(left, 0) : right] = color
            pixels = replay.process(Image.fromarray(hidden))[name]
            decrease = original - _word_sums(replay, replay.run(pixels=pixels).log_probs)
            total += decrease[:, None, None] * cells
            counts += cells
        return WordGrids((total / counts).relu(), geometry)

    def described(self, caption: Caption, selected: dict[str, list[int]]) -> Caption:
        """Return a caption that says of which layers and heads its maps are the mean."""
        more = {**caption.maps.info.more, **selected}
        if caption.maps.info.method == "occlusion":  # it reads no layers and heads
            more = {name: more[name] for name in more if name not in ("layers", "heads")}
        maps = replace(caption.maps, info=replace(caption.maps.info, more=more))
        return replace(caption, maps=maps, notes=self.replay.describe(maps.info))


def _word_sums(replay: WordReplay, log_probs: Float[Tensor, " t"]) -> Float[Tensor, " w"]:
    """Return the log-probability of each word: the sum over its tokens."""
    values = log_probs.float().cpu()
    return torch.stack([values[slice(*span)].sum() for span in replay.words.spans])
