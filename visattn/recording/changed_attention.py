"""Attention that the scores of a model read, by changing it layer by layer and row by row."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from visattn.recording.attention_call import AttentionCall
from visattn.recording.frozen import without_grad
from visattn.recording.interception import (
    attention_calls,
    in_this_run,
    probing,
    tapped_attention,
)
from visattn.recording.outputs import class_scores
from visattn.recording.probe import Layouts, ObservedTokens, layout_of
from visattn.recording.read_rows import Reading, as_read_rows

_FACTOR = -1e4  # of changed weights, which shows behind the small factors of residual branches
_CHANGED = 1e-4  # share of the largest score by which scores differ that are changed
_BATCH = 16
_GROUPS = 16  # in which patches are changed together at first


@dataclass(frozen=True, eq=False)
class _Change:
    """Attention to change: a layer, and which of its tokens; None for all."""

    site: str
    rows: Bool[Tensor, " n"] | None = None


@dataclass(eq=False)
class _ChangedAttention:
    """Changes the attention of each image of a batch in another way."""

    model: nn.Module
    layouts: Layouts
    changes: Sequence[_Change | None]
    failed: set[str] = field(default_factory=set)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Change attention inside the block."""
        with ExitStack() as stack:
            for site, attention in tapped_attention(self.model):
                hook = in_this_run(self._output_hook(site))
                stack.callback(attention.register_forward_hook(hook).remove)
            stack.enter_context(attention_calls(self.model, self._replace))
            yield

    def _replace(self, call: AttentionCall) -> Tensor | None:
        """Return changed weights of an attention call; None if it stays as it is."""
        if call.unsupported:
            self.failed.add(call.site)
            return None
        layout = layout_of(self.layouts, call.site, call.index)
        if not any(change is not None and change.site == call.site for change in self.changes):
            return None
        if call.heads_mixed or not isinstance(layout, ObservedTokens):
            self.failed.add(call.site)
            return None
        groups, _, queries, _ = call.shape
        masks = [self._slots(change, call.site, layout, queries) for change in self.changes]
        # Batches hold the unchanged image first, then one image per change: one run tests many.
        mask = torch.stack(masks).flatten(0, 1).view(groups, 1, queries, 1)
        # Flipped and enlarged weights are no attention any more, and no symmetry hides the change.
        weights = call.weights()
        return torch.where(mask.to(weights.device), _FACTOR * weights.flip(-1), weights)

    def _slots(
        self, change: _Change | None, site: str, layout: ObservedTokens, queries: int
    ) -> Bool[Tensor, "w p"]:
        """Return which queries of each window of an image to change."""
        num_windows = 1 if layout.windows is None else len(layout.windows)
        if change is None or change.site != site:
            return torch.zeros(num_windows, queries, dtype=torch.bool)
        if change.rows is None or layout.layer.single_query:
            return torch.ones(num_windows, queries, dtype=torch.bool)
        if layout.windows is None:
            return change.rows[None]
        windows = layout.windows.cpu()
        return change.rows[windows.clamp(min=0)] & (windows >= 0)

    def _output_hook(self, site: str) -> Callable[..., Any]:
        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            tensor = output[0] if isinstance(output, tuple) else output
            changed = tensor.clone()
            for index, change in enumerate(self.changes):
                if change is None or change.site != site:
                    continue
                mask = torch.ones(tensor.shape[1], dtype=torch.bool)
                if change.rows is not None and tensor.ndim == 3:
                    mask = change.rows
                mask = mask.to(tensor.device)
                changed[index, mask] = _FACTOR * tensor[index, mask].flip(-1)
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return hook


def read_by_change(
    model: nn.Module, image: Tensor, forward: Callable[[Tensor], Any], layouts: Layouts
) -> Reading | None:
    """Return what the scores read, from runs in which the attention of one layer or row is changed.

    It tells layers and rows, but no shares: each row that is read counts the same.
    """
    layers = [calls[0].layer for calls in layouts.values() if isinstance(calls[0], ObservedTokens)]
    test = _Test(model, image, forward, layouts)
    try:
        changed = test.run([_Change(layer.site) for layer in layers])
        read = [layer for layer, is_read in zip(layers, changed, strict=True) if is_read]
        sites = {layer.site for layer in read}
        unread = tuple(layer.site for layer in layers if layer.site not in sites)
        if not read or read[-1].single_query or read[-1].site in test.failed:
            return Reading(unread)
        last = read[-1]
        layout = layouts[last.site][0]
        num_prefix = len(last.prefix_tokens)
        cells = last.grid[0] * last.grid[1]
        rows = test.rows_of(last.site, num_prefix, cells)
    except (RuntimeError, ValueError, NotImplementedError):  # of a model that takes no batches
        return None
    if not isinstance(layout, ObservedTokens) or not bool(rows.any()):
        return Reading(unread)
    return Reading(
        unread, as_read_rows(rows.float() / rows.sum(), layout, linear=int(rows.sum()) == 1)
    )


@dataclass(eq=False)
class _Test:
    """Runs of a model with changed attention."""

    model: nn.Module
    image: Tensor
    forward: Callable[[Tensor], Any]
    layouts: Layouts
    failed: set[str] = field(default_factory=set)

    def run(self, changes: Sequence[_Change]) -> list[bool]:
        """Return for each change whether it changes the scores; also if it could not be made."""
        results: list[bool] = []
        for start in range(0, len(changes), _BATCH):
            batch = changes[start : start + _BATCH]
            attention = _ChangedAttention(self.model, self.layouts, [None, *batch])
            images = self.image.expand(len(batch) + 1, -1, -1, -1).contiguous()
            with without_grad(self.model), probing(), attention.active():
                scores = class_scores(self.forward(images), len(images)).float()
            self.failed |= attention.failed
            same = (scores - scores[:1]).abs() <= _CHANGED * scores[:1].abs().max()
            results += [
                change.site in attention.failed or not is_same
                for change, is_same in zip(batch, same.all(1)[1:].tolist(), strict=True)
            ]
        return results

    def rows_of(self, site: str, num_prefix: int, num_cells: int) -> Bool[Tensor, " n"]:
        """Return which tokens of a layer the scores read."""
        count = num_prefix + num_cells
        tokens = torch.arange(count)
        groups = [tokens[index : index + 1] for index in range(num_prefix)]
        groups += list(tokens[num_prefix:].chunk(_GROUPS))
        read = self._changed(site, groups, count)
        if not all(read[num_prefix:]):  # some patches: each of their groups one by one
            singles = [
                token
                for group, is_read in zip(groups, read, strict=True)
                if is_read
                for token in group
            ]
            groups = [token[None] for token in singles]
            read = self._changed(site, groups, count)
        rows = torch.zeros(count, dtype=torch.bool)
        for group, is_read in zip(groups, read, strict=True):
            rows[group] = is_read
        return rows

    def _changed(self, site: str, groups: Sequence[Tensor], count: int) -> list[bool]:
        masks = [torch.zeros(count, dtype=torch.bool) for _ in groups]
        for mask, group in zip(masks, groups, strict=True):
            mask[group] = True
        return self.run([_Change(site, mask) for mask in masks])
