"""Networks of Hugging Face: maps as their eager code computes them, the output as ever."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from visattn.attribution.explained_model import subject_of
from visattn.recording.recorder import record

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
def test_maps_are_those_of_eager_code(name: str) -> None:
    build, cells, roles = MODELS[name]
    torch.manual_seed(5)
    model = build().eval()
    subject = subject_of(model)
    x = torch.randn(2, 3, *subject.card.size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        before = model(pixel_values=x).logits
        with record(model) as seen:
            assert torch.equal(model(pixel_values=x).logits, before)
        model.set_attn_implementation("eager")
        with record(model) as eager:
            told = model(x, output_attentions=True).attentions
    assert torch.equal(subject.scores(x[:1]), model(x[:1]).logits)
    assert len(seen.maps) == len(subject.card.layers) == (3 if name == "swin" else 2)
    assert seen.weights[0].shape == (2, 2, len(roles) + cells, len(roles) + cells)
    assert seen.maps[0].made["before"] == roles
    for one, other in zip(seen.weights, eager.weights, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    if name != "swin":  # where those that are told are of windows
        for one, other in zip(seen.weights, told, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_kernels_of_their_own_are_refused() -> None:
    model = MODELS["vit"][0]()
    model.config._attn_implementation = "flash_attention_2"
    own = r"kernels of its own \(flash_attention_2\) .*set_attn_implementation\('sdpa'\)"
    with pytest.raises(ValueError, match=own), record(model):
        pass
    with pytest.raises(ValueError, match=own):
        subject_of(model)
