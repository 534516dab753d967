"""Image-text models as classifiers of texts: Hugging Face, open_clip, and models alike."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from image_text_models import (
    CONTEXT,
    SIZE,
    clip_processor,
    siglip_processor,
    tiny_clip,
    tiny_siglip,
    tiny_tokenizer,
)
from PIL import Image
from torch import Tensor, nn

import visattn
from visattn.models.backbones.text_models import TextPromptClassifier, text_classifier
from visattn.models.loaded import loaded_with
from visattn.pipelines.explainer import Explainer

TEXTS = ["a red ball", "the sky"]
PHOTO = np.random.default_rng(5).integers(0, 256, (59, 97, 3), dtype=np.uint8)
FAMILIES = {"clip": (tiny_clip, clip_processor), "siglip": (tiny_siglip, siglip_processor)}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_directory_are_those_of_the_library(tmp_path: Path, family: str) -> None:
    build, processor = FAMILIES[family]
    for part in (build(), processor(), tiny_tokenizer()):
        part.save_pretrained(tmp_path)
    explainer = Explainer(visattn.load(f"hf:{tmp_path}"), text=TEXTS)
    batch, scorer = explainer.prepare(PHOTO), explainer.model
    theirs = processor()(images=Image.fromarray(PHOTO), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(batch.inputs, theirs, rtol=0, atol=2e-2)  # one gray level of 255
    padding = {"padding": "max_length", "max_length": CONTEXT} if family == "siglip" else {}
    expected = []
    for text in TEXTS:  # one by one, so that CLIP needs no padding
        tokens = tiny_tokenizer()([text], return_tensors="pt", **padding)
        output = build()(pixel_values=batch.inputs, input_ids=tokens["input_ids"])
        expected.append(output.logits_per_image)
    computed = scorer(batch.inputs)
    torch.testing.assert_close(computed, torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    assert isinstance(scorer, TextPromptClassifier)
    cosine = scorer.cosine_of(computed)
    assert bool((cosine.abs() <= 1).all())
    assert scorer.class_names == tuple(TEXTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_marked_block_of_the_photo_lies_under_the_cell_that_changes(family: str) -> None:
    build, processor = FAMILIES[family]
    model = build()
    whole = SimpleNamespace(tokenizer=tiny_tokenizer(), image_processor=processor())
    left, top, side = (56, 25, 9) if family == "clip" else (80, 36, 10)
    marked = PHOTO.copy()
    marked[top : top + side, left : left + side] = (
        255 - marked[top : top + side, left : left + side]
    )
    layers = model.vision_model.encoder.layers
    for layer in layers:  # no mixing of patches, so that a patch holds its own pixels only
        layer.self_attn.out_proj.weight.data.zero_()
    before, after = visattn.explain(
        model, [PHOTO, marked], "attention", text=TEXTS, processor=whole
    )
    # The softmax of a head scales all other patches alike, heavy ones by more in absolute terms.
    shown = [each.resize_to_image(smooth=False) for each in (before, after)]
    change = (shown[0].log() - shown[1].log()).abs()
    for of_text in change.nan_to_num(0.0):
        rows, columns = torch.nonzero(of_text == of_text.max(), as_tuple=True)
        y, x = float(rows.float().mean()), float(columns.float().mean())
        reach = 6 if family == "clip" else 12
        assert abs(y - (top + side / 2)) <= reach
        assert abs(x - (left + side / 2)) <= reach
    # a centered crop does not see the left and right of a wide photo
    unseen = torch.isnan(change[0])
    assert bool(unseen[:, :15].all()) == bool(unseen[:, -15:].all()) == (family == "clip")


def test_texts_share_a_map_and_a_single_text_gives_a_plain_one() -> None:
    model, tokenizer = tiny_clip(), tiny_tokenizer()
    [both] = visattn.explain(model, PHOTO, "legrad", text=TEXTS, processor=tokenizer)
    [sky] = visattn.explain(model, PHOTO, "legrad", text="the sky", processor=tokenizer)
    assert both.labels == tuple(TEXTS)
    assert sky.values.shape == both.values.shape[1:]
    # CLIP's texts do not see their padding
    torch.testing.assert_close(both[1].values, sky.values, rtol=1e-3, atol=1e-6)
    assert sky.info.class_name == "the sky"
    assert sky.info.cosine == pytest.approx(both.info.cosine[1], abs=1e-5)


def refused(match: str, model: nn.Module, **arguments: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        visattn.explain(model, PHOTO, "legrad", **arguments)


def test_what_cannot_be_compared_is_refused_with_what_to_do() -> None:
    clip, tokenizer = tiny_clip(), tiny_tokenizer()
    long = " ".join(["ball"] * 10)
    refused(f"at most {CONTEXT} tokens.*got 12", clip, text=long, processor=tokenizer)
    refused("need the tokenizer of CLIPModel: pass processor=", clip, text="a ball")
    for texts in ([" "], ["a", "a"], []):
        refused("distinct non-empty texts", clip, text=texts, processor=tokenizer)
    refused("takes no target", clip, text="a", processor=tokenizer, target=0)
    refused("use its vision tower.*or compare images with texts", clip)
    tower = timm.create_model("vit_tiny_patch16_224", depth=1)
    refused("VisionTransformer has none", tower, text="a", processor=tokenizer)


def test_a_directory_without_tokenizer_or_image_processor(tmp_path: Path) -> None:
    tiny_clip().save_pretrained(tmp_path)
    model = visattn.load(f"hf:{tmp_path}")
    refused("need the tokenizer of CLIPModel: pass processor=", model, text="a ball")
    assert visattn.explain(model, PHOTO, "rollout")[0].info.more["preprocessing"]["mean"][0] > 0.48
    tiny_tokenizer().save_pretrained(tmp_path)
    model = visattn.load(f"hf:{tmp_path}")
    [note] = loaded_with(model).notes
    assert "processor" in note
    classifier = text_classifier(model, TEXTS, tiny_tokenizer())
    assert loaded_with(classifier).transform is None  # the defaults of its kind
    assert classifier.img_size == (SIZE, SIZE)


class EncodesBoth(nn.Module):
    """A model of the kind of open_clip: `encode_image`, `encode_text`, a tokenizer that cuts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.visual: Any = timm.create_model(
            "vit_tiny_patch16_224", img_size=48, embed_dim=24, depth=2, num_heads=2, num_classes=13
        )
        self.visual.image_size, self.visual.image_mean = 48, (0.4, 0.5, 0.6)
        self.embedding = nn.Embedding(300, 13)
        self.logit_scale = nn.Parameter(torch.tensor(1.5))

    def encode_image(self, images: Tensor) -> Tensor:
        return self.visual(images)

    def encode_text(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens).sum(1)

    @staticmethod
    def tokenizer(texts: list[str], context_length: int = 20) -> Tensor:
        rows = [[ord(letter) for letter in text][:context_length] for text in texts]
        return torch.tensor([row + [0] * (context_length - len(row)) for row in rows])


def test_models_like_those_of_open_clip_are_wrapped_by_their_functions() -> None:
    model = EncodesBoth().eval()
    scorer = text_classifier(model, TEXTS)
    assert (scorer.img_size, scorer.mean) == ((48, 48), (0.4, 0.5, 0.6))
    images = torch.randn(2, 3, 48, 48)
    texts = model.encode_text(model.tokenizer(TEXTS))
    expected = torch.cosine_similarity(model.encode_image(images)[:, None], texts, dim=-1)
    computed = scorer(images)
    torch.testing.assert_close(computed, expected * model.logit_scale.exp(), rtol=1e-4, atol=1e-5)
    fitting = visattn.methods_for(scorer)
    assert {"attention", "rollout", "relevance", "legrad", "gradcam"} <= {*fitting}
    [attention] = visattn.explain(model, PHOTO, "attention", text="the sky")
    assert attention.values.shape == (3, 3)
    refused("at most 20 tokens.*got 27", model, text="twenty-six letters and more")


@pytest.mark.peers
def test_open_clip_itself_gives_its_logits_and_preprocessing() -> None:
    library: Any = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    network, _, theirs = library.create_model_and_transforms("ViT-S-32", pretrained_text=False)
    tokenizer: Any = library.get_tokenizer("ViT-S-32")
    explainer = Explainer(network.eval(), text=TEXTS, processor=tokenizer)
    batch = explainer.prepare(PHOTO)
    torch.testing.assert_close(batch.inputs[0], theirs(Image.fromarray(PHOTO)), rtol=0, atol=1e-5)
    with torch.no_grad():
        tokens = tokenizer(TEXTS)
        images, texts, scale = network(batch.inputs, tokens)[:3]
        torch.testing.assert_close(
            explainer.model(batch.inputs), scale * images @ texts.T, rtol=1e-4, atol=1e-4
        )
    with pytest.raises(ValueError, match="at most 77 tokens"):
        Explainer(network, text=["word " * 100], processor=tokenizer)


def test_the_logits_of_texts_by_hand() -> None:
    model = TextPromptClassifier(
        nn.Flatten(), lambda network, images: network(images), TEXTS, torch.eye(2, 3) * 7,
        img_size=(1, 1), mean=(0.5,) * 3, std=(0.5,) * 3, logit_scale=2.0, logit_bias=-1.0,
    )  # fmt: skip
    logits = model(torch.tensor([3.0, 4.0, 0.0]).view(1, 3, 1, 1))
    torch.testing.assert_close(logits, torch.tensor([[0.2, 0.6]]))
    torch.testing.assert_close(model.cosine_of(logits), torch.tensor([[0.6, 0.8]]))
