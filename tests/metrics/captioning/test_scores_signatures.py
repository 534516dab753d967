"""One line that says how scores were computed."""

from visattn.metrics.captioning.scores import score_signature


def test_all_images_alike_need_one_number() -> None:
    signature = score_signature(1000, [5] * 1000)
    assert signature.startswith(
        "tok:ptb-py|bleu:closest|rouge:1.2|cider:D|df:eval|refs:all(5)|n:1000|visattn:"
    )


def test_what_came_from_java_is_named() -> None:
    signature = score_signature(3, iter([2, 7, 5]), java=["meteor:1.5", "spice:1.0"])
    assert "|df:eval|meteor:1.5|spice:1.0|refs:all(2-7)|n:3|" in signature
