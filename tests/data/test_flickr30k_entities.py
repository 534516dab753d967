"""Reading of Flickr30k Entities, on a folder of its format."""

from pathlib import Path

import pytest

from visattn.data.phrases import parse_entity_sentence, read_flickr30k_entities

SENTENCES = """\
[/EN#11/people Two dogs] chase [/EN#12/other a red ball] across [/EN#13/scene the wide lawn] .
[/EN#0/notvisual It] 's [/EN#12/other/sports the ball] that [/EN#11/animals/people dogs] like .
"""
ANNOTATION = """\
<annotation>
  <filename>36.jpg</filename>
  <size><width>200</width><height>100</height><depth>3</depth></size>
  <object><name>11</name>
    <bndbox><xmin>20</xmin><ymin>10</ymin><xmax>60</xmax><ymax>90</ymax></bndbox></object>
  <object><name>11</name>
    <bndbox><xmin>100</xmin><ymin>0</ymin><xmax>200</xmax><ymax>50</ymax></bndbox></object>
  <object><name>12</name><name>14</name>
    <bndbox><xmin>50</xmin><ymin>50</ymin><xmax>70</xmax><ymax>75</ymax></bndbox></object>
  <object><name>13</name><nobndbox>1</nobndbox><scene>1</scene></object>
</annotation>
"""


@pytest.fixture
def entities(tmp_path: Path) -> Path:
    for folder, name, text in (
        ("Sentences", "36.txt", SENTENCES),
        ("Annotations", "36.xml", ANNOTATION),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    return tmp_path


def test_phrases_have_the_boxes_of_their_chain(entities: Path) -> None:
    photos = read_flickr30k_entities(entities)
    assert list(photos) == ["36.jpg"]
    (first, phrases), (second, others) = photos["36.jpg"].items()
    assert " ".join(first) == "two dogs chase a red ball across the wide lawn"
    dogs = ((0.1, 0.1, 0.3, 0.9), (0.5, 0.0, 1.0, 0.5))
    ball = ((0.25, 0.5, 0.35, 0.75),)
    assert [(p.start, p.num_words, p.text, p.boxes) for p in phrases] == [
        (0, 2, "two dogs", dogs),
        (3, 3, "a red ball", ball),
    ]
    assert [(" ".join(second[p.start : p.start + p.num_words]), p.types) for p in others] == [
        ("the ball", ("other", "sports")),
        ("dogs", ("animals", "people")),
    ]


def test_sentence_without_phrases_has_words_only() -> None:
    assert parse_entity_sentence("A dog .", {}) == (("a", "dog"), ())


def test_files_that_are_none_are_refused(entities: Path) -> None:
    annotation = entities / "Annotations" / "36.xml"
    for content, message in (
        ("<annotation>", "36.xml is no annotation of Flickr30k Entities"),
        ("<annotation/>", "no size/width"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><annotation/>", "defines entities"),
    ):
        annotation.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_flickr30k_entities(entities)
    annotation.unlink()
    with pytest.raises(FileNotFoundError, match="no annotation"):
        read_flickr30k_entities(entities)
    with pytest.raises(FileNotFoundError, match="Sentences and Annotations"):
        read_flickr30k_entities(entities / "Sentences")
