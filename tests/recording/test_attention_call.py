"""Calls of `nn.MultiheadAttention`: fast path, masks, no leaks."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

from visattn.recording.recorder import record


def torchvision_vit() -> Any:
    torch.manual_seed(7)
    model: Any = TorchvisionViT(32, 8, 2, 2, 12, 20, num_classes=5).eval()
    nn.init.normal_(model.heads[0].weight)
    return model


@pytest.mark.parametrize("grad", [False, True])
def test_torchvision_keeps_its_fast_path_and_its_weights_are_recorded(grad: bool) -> None:
    model = torchvision_vit()
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(11))
    expected: list[Tensor] = []

    def request_weights(_: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    with torch.set_grad_enabled(grad):
        before = model(x)
        with record(model) as recording:
            assert torch.equal(model(x), before)
        for block in model.encoder.layers:
            block.self_attention.register_forward_pre_hook(request_weights, with_kwargs=True)
            block.self_attention.register_forward_hook(lambda _, __, out: expected.append(out[1]))
        model(x)
    assert [item.values.shape for item in recording.maps] == [(3, 2, 17, 4, 4)] * 2
    for a, b in zip(recording.weights, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


class Masked(nn.Module):
    """Multi-head attention over a grid with key padding and attention masks."""

    def __init__(self, *, per_head: bool = False, width: int = 12, **options: bool) -> None:
        super().__init__()
        self.per_head, self.extra = per_head, width - 12
        self.stem = nn.Conv2d(3, 12, 4, 4)
        self.attend = nn.MultiheadAttention(12, 3, kdim=width, vdim=width, **options)
        self.weights: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).mT
        if not self.attend.batch_first:
            tokens = tokens.transpose(0, 1)
        hidden = torch.arange(15) % 7 == 3
        shape = (3 * len(x), 15, 15) if self.per_head else (15, 15)
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.2
        mask &= ~torch.eye(15, dtype=torch.bool)
        keys = F.pad(tokens, (0, self.extra), value=1.0)
        output, weights = self.attend(
            tokens, keys, keys, key_padding_mask=hidden.expand(len(x), -1),
            attn_mask=mask, average_attn_weights=False,
        )  # fmt: skip
        self.weights.append(weights)
        return output.mean(1 if self.attend.batch_first else 0)


@pytest.mark.parametrize(
    "options",
    [{"batch_first": False}, {"batch_first": True, "width": 13},
     {"batch_first": True, "per_head": True, "bias": False}],
)  # fmt: skip
def test_masks_of_multi_head_attention_are_applied(options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    model = Masked(**options).eval()
    with record(model) as recording:
        model(torch.randn(2, 3, 12, 20))
    torch.testing.assert_close(recording.weights[0], model.weights[-1], atol=1e-6, rtol=0)
    assert recording.maps[0].site == "attend"


def test_the_model_is_restored_after_an_error_and_a_hundred_calls() -> None:
    torch.manual_seed(3)
    model = Masked(batch_first=True)
    x = torch.randn(1, 3, 12, 20)
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    with pytest.raises(RuntimeError, match="test error"), record(model):
        raise RuntimeError("test error")
    with pytest.raises(RuntimeError, match="expected input"), record(model):
        model(torch.randn(1, 5, 12, 20))
    num_objects = 0
    for number in range(100):
        with record(model, queries=[0]) as recording:
            model(x)
        assert recording.weights[0].shape == (1, 3, 1, 15)
        model.weights.clear()
        if number == 9:
            gc.collect()
            num_objects = len(gc.get_objects())
    gc.collect()
    assert len(gc.get_objects()) - num_objects < 90  # less than one per call
    after = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    assert hooks == after
    assert model.training
    assert torch._C._len_torch_function_stack() == 0
    assert F.softmax(x, -1).shape == x.shape
