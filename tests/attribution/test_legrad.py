"""LeGrad beside plain computations of the paper's formulas."""

from typing import Any

import pytest
import timm
import torch
from image_text_models import tiny_siglip, tiny_tokenizer
from torch import Tensor
from torch.nn.functional import normalize

import visattn as va
from visattn.attribution.legrad import legrad
from visattn.attribution.targets import Score
from visattn.models.backbones.text_models import text_classifier
from visattn.recording.subject import analyze_model

IMAGES = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_legrad_of_siglip_takes_the_weights_of_its_pool() -> None:
    model = tiny_siglip()
    texts = text_classifier(model.double(), ["a red ball", "the sky"], tiny_tokenizer())
    subject: Any = analyze_model(texts)
    tower, head = model.vision_model, model.vision_model.head
    pool = head.attention
    hidden = tower.embeddings(IMAGES)
    expected = torch.zeros(2, 25, dtype=torch.float64)
    width = pool.embed_dim // pool.num_heads
    wq, wk, wv = pool.in_proj_weight.chunk(3)
    bq, bk, bv = pool.in_proj_bias.chunk(3)
    for block in tower.encoder.layers:
        hidden = block(hidden, None)
        tokens = tower.post_layernorm(hidden).detach().requires_grad_()
        query = head.probe.expand(2, -1, -1)
        q, k, v = (
            each.unflatten(-1, (pool.num_heads, width)).transpose(1, 2)
            for each in (query @ wq.T + bq, tokens @ wk.T + bk, tokens @ wv.T + bv)
        )
        attention = (q @ k.mT / width**0.5).softmax(-1)
        pooled = pool.out_proj((attention @ v).transpose(1, 2).flatten(2))
        pooled = (pooled + head.mlp(head.layernorm(pooled)))[:, 0]
        score = (normalize(pooled, dim=-1) @ subject.model.text_features[1]).sum()
        [gradient] = torch.autograd.grad(score * subject.model.logit_scale, attention)
        expected += gradient.clamp(min=0).mean((1, 2))
    computed = legrad(subject, IMAGES, Score((1,)))
    torch.testing.assert_close(computed, expected.unflatten(1, (5, 5)), rtol=1e-8, atol=1e-12)


def test_legrad_of_a_class_token_vit_differentiates_the_head_of_mean_tokens() -> None:
    torch.manual_seed(1)
    model: Any = timm.create_model(
        "vit_tiny_patch16_224", img_size=48, embed_dim=24, depth=2, num_heads=3, num_classes=5
    )
    model = model.double().eval()
    images = torch.randn(2, 3, 48, 48, dtype=torch.float64)
    tokens = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    terms: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        inputs = tokens.detach().requires_grad_()
        kept: list[Tensor] = []
        handle = block.attn.attn_drop.register_forward_hook(
            lambda _m, _i, o, kept=kept: kept.append(o)
        )
        tokens = block(inputs)
        handle.remove()
        score = model.head(model.norm(tokens.mean(1)))[:, 3].sum()
        [gradient] = torch.autograd.grad(score, kept[0])
        terms.append(gradient.clamp(min=0).mean((1, 2))[:, 1:])
        block.attn.fused_attn = True
    expected = torch.stack(terms).sum(0).unflatten(1, (3, 3))
    computed = legrad(analyze_model(model, 48), images, Score((3,)))
    torch.testing.assert_close(computed, expected, rtol=1e-8, atol=1e-12)


NAMES = ("vit_wee_patch16_reg1_gap_256", "deit_tiny_distilled_patch16_224",
         "vit_small_patch16_36x1_224")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_legrad_of_registers_distillation_and_parallel_branches(name: str) -> None:
    torch.manual_seed(2)
    small: dict[str, Any] = {"embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5}
    explainer = va.Explainer(timm.create_model(name, img_size=48, **small))
    images = torch.randn(2, 3, 48, 48)
    maps = [each.values for each in explainer.explain(images, "legrad", 2)]
    assert maps[0].shape == (3, 3)
    assert float(maps[0].min()) >= 0 < float(maps[0].max())
    [alone] = explainer.explain(images[1:], "legrad", lambda output: output[:, 2])
    torch.testing.assert_close(alone.values, maps[1])
