"""Left and right in captions of mirrored photos."""

from hypothesis import given, strategies as st

from visattn.data.captions.dataset import swap_sides

SWAPPED = {
    "A dog on the left.": "A dog on the right.",
    "to the left, a tree": "to the right, a tree",
    "a left-hand drive": "a right-hand drive",
    "(left) a cat": "(right) a cat",
    "Left ball .": "Right ball .",
    "LEFT: the leftmost, right-most one": "RIGHT: the rightmost, left-most one",
    "a man is left of the tree": "a man is right of the tree",
    "his right hand on the left in a red hat": "his left hand on the right in a red hat",
    "turning left onto the bottom right on a bike": "turning right onto the bottom left on a bike",
    "dog left, cat right": "dog right, cat left",
    "cars facing left/right": "cars facing right/left",
    "the left's arm, upper-left": "the right's arm, upper-right",
    "a dog jumps left on the grass": "a dog jumps right on the grass",
    "a dog looking leftward": "a dog looking rightward",
    "the man on the left over there": "the man on the right over there",
}
KEPT = (
    "no seats left .",
    "only two slices of pizza left on the plate",
    "a bike was left behind by the wall",
    "left over food",
    "the left over food, her left-overs and the left overs of my lunch",
    "the suitcase left on the street",
    "a dog sits right next to a child",
    "he is right in front of the door",
    "a dog walks right behind him",
    "a right angle at the right time, all right",
    "bright, upright, copyright and cleft",
    "",
)


def test_sides_change_with_case_and_punctuation() -> None:
    for text, expected in SWAPPED.items():
        assert swap_sides(text) == expected


def test_left_for_remaining_and_right_for_exactly_stay() -> None:
    for text in KEPT:
        assert swap_sides(text) == text


@given(st.text("abc leftrightLR.,-()'\n"), st.sampled_from(["left", "right"]))
def test_nothing_else_changes(text: str, side: str) -> None:
    other = {"left": "right", "right": "left"}[side]
    assert swap_sides(f"the {side}") == f"the {other}"
    words = text.lower().replace("left", "x").replace("right", "x")
    assert swap_sides(words) == words
