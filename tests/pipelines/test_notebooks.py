"""Images and HTML of results in notebooks."""

import io
import re

from PIL import Image
from random_numbers import photo

import visattn as va
from visattn.models import RecurrentAttentionModel, ShowAttendTell, SmallEncoder
from visattn.models.captioning.captioner import SPECIAL_TOKENS
from visattn.pipelines import glimpses


def test_a_caption_shows_the_map_of_the_word_under_the_mouse() -> None:
    words = (*SPECIAL_TOKENS, "red", "<ring>")
    model = ShowAttendTell(words, SmallEncoder((32, 32), channels=8))
    [caption] = va.caption(model, photo(700, 900), max_length=3)
    assert caption.thumbnail is not None
    assert max(caption.thumbnail.shape) <= 640
    html = caption._repr_html_()
    assert html is not None
    count = len(caption.words)
    assert html.count("data:image/jpeg") == count + 2  # the photo and the color scale
    assert len(re.findall(r":has\(\.w\d:hover\) \.m\d", html)) == count
    assert "<script" not in html
    assert "<ring>" not in html
    assert len(html) < 1_000_000


def test_a_scan_path_shows_its_panel_for_color_and_gray_models() -> None:
    for mean in ((0.5,), (0.5, 0.5, 0.5)):
        model = RecurrentAttentionModel(
            ("cat", "dog"), (24, 24), mean, mean, glimpse_size=5, num_glimpses=3
        )
        [scan] = glimpses(model, photo(60, 90))
        panel = Image.open(io.BytesIO(scan._repr_png_() or b""))
        assert panel.size[0] > 200
