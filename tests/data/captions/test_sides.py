"""Photos whose captions say left or right are never mirrored, in any of twelve languages."""

import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from PIL import Image

from visattn.data.captions.dataset import CaptionDataset, CaptionedPhotos, says_side
from visattn.data.captions.files import CaptionEntry
from visattn.images.resize import ResizeSpec

SIDES = {
    "English": ("A dog on the left.", "(RIGHT) a cat", "a left-hand drive", "the far-right one"),
    "German": ("links ein Hund", "Der rechte Arm", "mit der linken Hand", "ganz Rechts"),
    "Dutch": ("een hond links", "aan de linkerkant", "de rechter hand", "rechtsachter een boom"),
    "French": ("un chien à gauche", "l'arbre de droite", "son bras droit", "à l'extrême-gauche"),
    "Spanish": ("a la izquierda", "un perro a la derecha", "el brazo izquierdo", "Derecha"),
    "Italian": ("un cane a sinistra", "sulla destra", "il braccio destro", "la mano sinistra"),
    "Portuguese": ("à esquerda", "o lado direito", "a mão direita", "o braço esquerdo"),
    "Russian": ("собака слева", "Справа дерево", "левая рука", "повернул направо", "правее дома"),
    "Arabic": ("كلب على اليسار", "إلى اليمين", "يده اليسرى", "الذراع الأيمن", "لليمين"),
    "Chinese": ("左边有一只狗", "狗在右边", "他的左手", "面向右侧"),
    "Japanese": ("左に犬がいる", "右側の木", "みぎの手", "ひだりに曲がる"),
    "Korean": ("왼쪽에 개가 있다", "오른쪽으로", "그의 왼손", "우측의 나무", "좌측에"),
}
NO_SIDES = {
    "English": ("a bright, upright copyright sign, cleft", "two linked arms, a destroyed bike"),
    "German": ("ein Hund auf der Wiese", "ein helles Licht"),
    "Dutch": ("een hond op het gras", "fel licht"),
    "French": ("un chien sur l'herbe", "un endroit clair"),
    "Spanish": ("un perro en la hierba", "un coche destruido"),
    "Italian": ("un cane sull'erba", "un palazzo distrutto"),
    "Portuguese": ("um cão na relva", "um carro vermelho"),
    "Russian": ("собака на траве", "лев направляется к воде"),
    "Arabic": ("كلب على العشب", "رجل يركض"),
    "Chinese": ("一只狗在草地上跑", "两个人"),
    "Japanese": ("犬が芝生を走る", "赤い車"),
    "Korean": ("개가 잔디 위를 달린다", "빨간 차"),
}


def mirrored(folder: Path, *captions: str) -> list[bool]:
    """Return in which of 40 epochs a photo with these captions is mirrored."""
    image = Image.new("RGB", (4, 4))
    image.putpixel((0, 0), (255, 255, 255))
    image.save(folder / "a.png")
    photos = CaptionedPhotos([CaptionEntry("a", "a.png", captions)], folder, ResizeSpec((4, 4)))
    content = CaptionDataset(photos, hflip=True)
    plain = photos[0].image
    assert plain is not None
    samples = [content[epoch].image for epoch in range(40)]
    assert all(each is not None and (each.equal(plain) or each.equal(plain.flip(-1)))
               for each in samples)  # fmt: skip
    return [not torch.equal(each, plain) for each in samples if each is not None]


@pytest.mark.parametrize("language", SIDES)
def test_photos_with_sides_are_never_mirrored(language: str, tmp_path: Path) -> None:
    for caption in SIDES[language]:
        for form in ("NFC", "NFD"):
            text = unicodedata.normalize(form, caption)
            assert not any(mirrored(tmp_path, NO_SIDES[language][0], text)), caption


@pytest.mark.parametrize("language", NO_SIDES)
def test_other_photos_are_mirrored_in_half_of_the_epochs(language: str, tmp_path: Path) -> None:
    assert 10 < sum(mirrored(tmp_path, *NO_SIDES[language])) < 30


@given(st.text(), st.text(), st.sampled_from(["left", "Right", "左", "右"]))
def test_a_side_is_found_anywhere(before: str, after: str, side: str) -> None:
    assert says_side(f"{before} {side} {after}")
