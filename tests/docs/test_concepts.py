"""Law: on the page "From the texts to the code" each line runs, and each path and source exists."""

import re
from pathlib import Path

import pytest
import torch
from concept_pictures import PAGE, Concept, concepts, picture, results

import visattn as va
from visattn.data import SortOfClevrImages, Vocabulary
from visattn.models import DETR, AttentionResNet, CrossAttentionVQA, SmallEncoder, UNet

CONCEPTS = concepts()[1]
SOURCES = (PAGE.parent / "bibliography.md").read_text()


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untrained models stand in the working folder for those that the page loads."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    source = SortOfClevrImages()
    words = Vocabulary.from_captions(source.texts).words
    encoders = [SmallEncoder((size, size), channels=8) for size in (80, 64, 64)]
    nets = {
        "scenes_resnet_cbam": AttentionResNet(("a", "b"), depth=8, stem_width=4, block="cbam"),
        "sort_of_clevr_cross": CrossAttentionVQA(words, source.answers, encoders[0], dim=8),
        "scenes_detr": DETR(("circle",), encoders[1], dim=8, num_queries=3),
        "scenes_unet": UNet(("background", "circle"), encoders[2], block="gate"),
    }
    for name, net in nets.items():
        va.save(net.eval(), f"{name}.safetensors")


def test_every_line_gives_a_picture(models: None) -> None:
    drawn = {concept.name: picture(result) for concept, result in results()}
    assert [*drawn] == [concept.name for concept in CONCEPTS]
    plain = [name for name, image in drawn.items() if image.getextrema() == ((255, 255),) * 3]
    assert plain == []


@pytest.mark.parametrize("concept", CONCEPTS, ids=lambda concept: concept.name)
def test_a_concept_has_its_picture_its_code_and_its_sources(concept: Concept) -> None:
    assert f"]({concept.picture})" in concept.text
    assert (PAGE.parent / concept.picture).is_file()
    assert len(concept.code.splitlines()) <= 4
    [line] = re.findall(r"^\*(\w.*?)\*$", concept.text, re.MULTILINE | re.DOTALL)
    papers = re.findall(r"([A-Z]\w+)(?: et al\.| and \w+|, \w+ and \w+)? (\d{4})", line)
    assert papers
    for author, year in papers:
        assert re.search(rf"^- {author}.*{year}", SOURCES, re.MULTILINE), f"{author} {year}"
    for path in re.findall(r"(?<!{doc})`(\w+/[\w/]*(?:\.py)?)`", line):
        assert (PAGE.parent.parent / "visattn" / path).exists(), path
