"""Controls of word maps: captions of one word stay untouched, and say so."""

import torch
from vlm_runs import greedy, replays

from visattn.pipelines.words.controls import Controls


def test_captions_of_one_word_are_untouched() -> None:
    [replay] = replays("llava", max_new_tokens=1, min_new_tokens=1)
    assert len(replay.words) == 1
    plain, caption = replay.caption(), replay.caption(controls=Controls(relative=True))
    assert torch.equal(plain.maps.values, caption.maps.values)
    assert caption.maps.info.more["untouched"]
    assert "compares words: this row is untouched" in caption.notes
    assert "relative to the other words" not in caption.notes


def test_longer_captions_are_changed() -> None:
    replay = greedy("llava")
    caption = replay.caption(controls=Controls(relative=True))
    assert not torch.equal(replay.caption().maps.values, caption.maps.values)
    assert caption.notes.endswith("relative to the other words")
