"""Rows of words: attention of generated tokens, from one recorded run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from visattn.recording.attention_call import ALL, AttentionCall
from visattn.recording.interception import attention_calls


class WordRows:
    """Records the last rows of attention layers, and verifies them.

    Args:
        model: The model.
        sites: Attention layers to record (`layer#2` is the second call of one), with the number of
            last query rows to record of each; None for all rows.
        keep: Receives the weights of a layer, `[b h r m]`, and returns what is kept of them.
        differentiable: Whether the model continues with the recorded weights, so that they are
            part of the graph; they are kept as `[h n m]`, without `keep`.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Mapping[str, int | None],
        *,
        keep: Callable[[str, Tensor], Tensor],
        differentiable: bool = False,
    ) -> None:
        self.model = model
        self.sites = sites
        self.keep = keep
        self.differentiable = differentiable
        self.rows: dict[str, Tensor] = {}
        self.unsupported: dict[str, str] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside the block."""
        with attention_calls(self.model, self._on_call):
            yield

    def _on_call(self, call: AttentionCall) -> Tensor | None:
        if call.name not in self.sites:
            return None
        if call.unsupported:
            self.unsupported.setdefault(call.name, call.unsupported)
            return None
        if self.differentiable:
            weights = call.weights()
            if not weights.requires_grad:  # no pixel reaches this layer
                weights = weights.detach().requires_grad_()
            self.rows[call.name] = _heads_as_axis(weights)[0]
            # the model continues from this node of the graph
            return self.rows[call.name].reshape(weights.shape)
        count = self.sites[call.name]
        first = 0 if count is None else call.shape[2] - count
        with torch.no_grad():
            weights, _ = call.proved_weights(ALL, ALL if first == 0 else slice(first, None))
            self.rows[call.name] = self.keep(call.name, _heads_as_axis(weights))
        return None


def _heads_as_axis(weights: Tensor) -> Tensor:
    """Return weights of one caption as `[1 h r m]`; bmm has the heads on the batch axis."""
    return weights.transpose(0, 1) if weights.shape[1] == 1 else weights
