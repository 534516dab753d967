"""Hugging Face models: maps equal those of eager attention, and the output does not change."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from visattn.recording.recorder import record
from visattn.recording.subject import analyze_model

PLAIN: dict[str, Any] = {
    "num_labels": 3, "image_size": (24, 40), "patch_size": 8, "hidden_size": 12,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip
WINDOWS: dict[str, Any] = {
    "num_labels": 3, "image_size": 40, "patch_size": 4, "embed_dim": 12, "depths": [2, 1],
    "num_heads": [2, 3], "window_size": 5,
}  # fmt: skip
MODELS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "vit": (lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**PLAIN)), 15,
        ("class",)),
    "deit": (lambda: transformers.DeiTForImageClassificationWithTeacher(
        transformers.DeiTConfig(**PLAIN)), 15, ("class", "distillation")),
    "dinov2": (lambda: transformers.Dinov2ForImageClassification(
        transformers.Dinov2Config(**{**PLAIN, "image_size": 32})), 16, ("class",)),
    "swin": (lambda: transformers.SwinForImageClassification(transformers.SwinConfig(**WINDOWS)),
        100, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_maps_equal_those_of_eager_attention(name: str) -> None:
    build, cells, prefix_tokens = MODELS[name]
    torch.manual_seed(5)
    model = build().eval()
    subject = analyze_model(model)
    x = torch.randn(2, 3, *subject.info.input_size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        before = model(pixel_values=x).logits
        with record(model) as recording:
            assert torch.equal(model(pixel_values=x).logits, before)
        model.set_attn_implementation("eager")
        with record(model) as eager:
            attentions = model(x, output_attentions=True).attentions
    assert torch.equal(subject.scores(x[:1]), model(x[:1]).logits)
    assert len(recording.maps) == len(subject.info.attention_layers) == (3 if name == "swin" else 2)
    assert recording.weights[0].shape == (
        2,
        2,
        len(prefix_tokens) + cells,
        len(prefix_tokens) + cells,
    )
    assert recording.maps[0].info.prefix_tokens == prefix_tokens
    for weights, expected in zip(recording.weights, eager.weights, strict=True):
        torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)
    if name != "swin":  # whose output_attentions are by window
        for weights, expected in zip(recording.weights, attentions, strict=True):
            torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)


def test_other_attention_kernels_raise_an_error() -> None:
    model = MODELS["vit"][0]()
    model.config._attn_implementation = "flash_attention_2"
    message = (
        r"must be 'sdpa' or 'eager' .* got 'flash_attention_2' .*set_attn_implementation\('sdpa'\)"
    )
    with pytest.raises(ValueError, match=message), record(model):
        pass
    with pytest.raises(ValueError, match=message):
        analyze_model(model)
