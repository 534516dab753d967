"""Maps are drawn from the rows and layers that are read; what is not read changes nothing."""

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import pytest
import torch
import transformers
from image_text_models import PLAIN
from random_numbers import photo
from torch import Tensor, nn

import visattn as va
from visattn.attribution.layer_weights import resolve_attention_layer
from visattn.models import VisionTransformer
from visattn.recording.subject import analyze_model

SMALL: dict[str, Any] = {**PLAIN, "image_size": 48, "patch_size": 16, "num_hidden_layers": 3}
METHODS = ("attention", "rollout", "relevance", "gradient_attention", "gradient_rollout",
           "legrad")  # fmt: skip


def uneven(model: nn.Module) -> nn.Module:
    """Return a model whose attention is far from even."""
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data *= 3
    return model.eval()


def values(model: nn.Module, method: str, target: Any = 1, **options: Any) -> Tensor:
    [heatmap] = va.explain(model, photo(48, 48), method, target, **options)
    return heatmap.values


class HiddenState(nn.Module):
    """A head on one of the hidden states of an encoder of Hugging Face."""

    def __init__(self, read: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.vit = transformers.ViTModel(transformers.ViTConfig(**SMALL), add_pooling_layer=False)
        self.head, self.read, self.image_size = nn.Linear(24, 3), read, 48

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(self.vit(x, output_hidden_states=True)))


def siglip() -> Any:
    text = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
    options: dict[str, Any] = {"vision_config": SMALL, "text_config": text, "num_labels": 3}
    config = transformers.SiglipConfig(**options)
    return transformers.SiglipForImageClassification(config)


def second_last() -> Any:
    return HiddenState(lambda output: output.hidden_states[-2][:, 1:].mean(1))


@pytest.mark.parametrize(
    ("build", "unread", "last"),
    [
        (siglip, "vision_model.head.attention", "vision_model.encoder.layers.2.self_attn"),
        (second_last, "vit.layers.2.attention", "vit.layers.1.attention"),
    ],
)
def test_new_weights_in_layers_that_no_score_reads_change_no_map(
    build: Callable[[], Any], unread: str, last: str
) -> None:
    torch.manual_seed(0)
    model: Any = uneven(build())
    info = analyze_model(model).info
    assert [layer.site for layer in info.unread_layers] == [unread]
    assert info.attention_layers[-1].site == resolve_attention_layer(info, -1).site == last
    before = {method: values(model, method) for method in METHODS}
    for weight in model.get_submodule(unread).parameters():
        weight.data.normal_()
    for method, expected in before.items():
        assert expected.max() > 0
        torch.testing.assert_close(values(model, method), expected, atol=1e-6, rtol=1e-4)
    [named] = va.explain(model, photo(48, 48), "attention", layers=unread)
    assert named.info.layer == unread
    assert "no score depends on" in named.info.more["unread"]
    with pytest.raises(ValueError, match="attention layers that the scores of .* read"):
        values(model, "gradient_attention", layers=unread)


class Beside(nn.Module):
    """Attention among tokens and, on request, to channels; scores read one, both or neither."""

    def __init__(self, *read: str) -> None:
        super().__init__()
        self.conv, self.head, self.image_size = nn.Conv2d(3, 24, 16, 16), nn.Linear(24, 3), 48
        self.tokens = nn.MultiheadAttention(24, 2, batch_first=True)
        self.channels = nn.MultiheadAttention(9, 3, batch_first=True)
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).flatten(2).mT
        outputs = {"tokens": self.tokens(x, x, x)[0],
                   "channels": self.channels(x.mT, x.mT, x.mT)[0].mT}  # fmt: skip
        return self.head((x + sum(outputs[name] for name in self.read)).mean(1))


def test_attention_counts_only_if_it_is_read() -> None:
    torch.manual_seed(0)
    for read in (("tokens", "channels"), ("tokens",)):
        info = analyze_model(Beside(*read).eval()).info
        assert [layer.site for layer in info.attention_layers] == ["tokens"]
        assert [site for site, _ in info.unsupported_layers] == [*read[1:]]
    model = Beside().eval()
    assert "gradcam" in va.methods_for(model)
    with pytest.raises(ValueError, match=r"no score depends on its attention \(tokens\)"):
        values(model, "attention")


@pytest.mark.parametrize("rows", ["class", "patches", "all"])
def test_maps_are_drawn_from_the_rows_that_are_read(rows: str) -> None:
    reads: dict[str, Callable[[Any], Tensor]] = {
        "class": lambda output: output.last_hidden_state[:, 0],
        "patches": lambda output: output.last_hidden_state[:, 1:].mean(1),
        "all": lambda output: output.last_hidden_state.mean(1),
    }
    torch.manual_seed(0)
    model = uneven(HiddenState(reads[rows]))
    drawn = values(model, "attention")
    torch.testing.assert_close(drawn, values(model, "attention", queries=rows))
    others = [each for each in reads if each != rows]
    assert all(not torch.allclose(drawn, values(model, "attention", queries=e)) for e in others)
    info = analyze_model(model).info
    with va.record(model, queries=rows) as recording, torch.no_grad():
        model(torch.randn(1, 3, 48, 48))
    assert recording.maps[-1].site == info.attention_layers[-1].site
    [heatmap] = va.explain(model, photo(48, 48), "attention")
    assert heatmap.info.more["rows"] == {"class": "class", "patches": "patches"}.get(
        rows, "class 0.1, patches 0.9"
    )
    assert "rows" not in va.explain(model, photo(48, 48), "attention", queries=[0])[0].info.more


def test_a_target_function_is_drawn_from_the_rows_that_it_reads() -> None:
    torch.manual_seed(0)
    model: Any = uneven(transformers.ViTModel(transformers.ViTConfig(**SMALL)))
    for target, queries in (
        (lambda output: output.last_hidden_state[:, 6, 3], [6]),
        (lambda output: output.last_hidden_state[:, 1:, 3].mean(1), "patches"),
        (lambda output: output.pooler_output[:, 3], "class"),
        (None, "class"),  # the vector that stands for the image
    ):
        drawn = values(model, "attention", target)
        torch.testing.assert_close(drawn, values(model, "attention", target, queries=queries))
    target = lambda output: output.hidden_states[1][:, 0, 3]  # noqa: E731
    model.config.output_hidden_states = True
    [heatmap] = va.explain(model, photo(48, 48), "attention", target)
    assert heatmap.info.layer == "layers.0.attention"


def test_all_attention_methods_work_with_sequence_pooling() -> None:
    torch.manual_seed(0)
    model: Any = VisionTransformer(
        ("ant", "bee", "cat"), img_size=(16, 16), stem="overlapping", embed_dim=24, depth=2,
        num_heads=2, global_pool="sequence",
    )  # fmt: skip
    explainer = va.Explainer(uneven(model))
    batch = explainer.prepare([photo(16, 16), photo(16, 16)[::-1].copy()])
    [heatmap, _] = explainer.map(batch, "attention")
    features: list[Tensor] = []
    handle = model.attn_pool.register_forward_hook(lambda _, args, __: features.append(args[0]))
    with torch.no_grad():
        model.classify(batch.inputs)
        expected = model.attn_pool.score(features[-1]).squeeze(-1).softmax(-1)
    handle.remove()
    torch.testing.assert_close(heatmap.values.flatten(), expected[0])
    for method in METHODS[1:]:
        both = explainer.map(batch, method, 1)
        assert both[0].values.shape == (8, 8)
        assert both[0].values.max() > 0


def test_legrad_of_the_last_hidden_state_is_that_of_the_output_without_its_norm() -> None:
    torch.manual_seed(0)
    model: Any = uneven(HiddenState(lambda output: output.hidden_states[-1][:, 0]))
    plain: Any = HiddenState(lambda output: output.last_hidden_state[:, 0])
    plain.load_state_dict(model.state_dict())
    plain.vit.layernorm = nn.Identity()
    expected = values(plain.eval(), "legrad")
    assert expected.max() > 0
    torch.testing.assert_close(values(model, "legrad"), expected)


class Detached(HiddenState):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            tokens = self.vit(x).last_hidden_state
        return self.head(tokens[:, 1:].mean(1))


def test_what_gradients_cannot_say_is_refused() -> None:
    torch.manual_seed(0)
    model = uneven(Detached(lambda output: output))
    right = values(model, "attention", queries="patches")
    torch.testing.assert_close(values(model, "attention"), right)
    for method in ("relevance", "gradient_attention", "legrad"):
        with pytest.raises(ValueError, match="or runs layers inside torch.no_grad"):
            values(model, method)
    summed = HiddenState(lambda output: reduce(add, output.hidden_states[1:])[:, 0])
    joined = HiddenState(
        lambda output: torch.cat([each[:, :1] for each in output.hidden_states[1:]], 1).mean(1)
    )
    for several in (summed, joined):
        with pytest.raises(ValueError, match="only on the output of its last block, .*, but they"):
            values(uneven(several), "legrad")


class TwoEncoders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (HiddenState(lambda o: o.last_hidden_state[:, 0]) for _ in "ab")
        self.image_size = 48

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x)


def test_layers_side_by_side_are_refused_where_they_would_be_multiplied() -> None:
    torch.manual_seed(0)
    model = uneven(TwoEncoders())
    assert values(model, "attention", layers="first.vit.layers.2").max() > 0
    with pytest.raises(ValueError, match=r"first.vit.layers.2.* and second.vit.* run in parallel"):
        values(model, "rollout")
