"""The page of vision-language families says what tiny models of them give."""

from pathlib import Path

import pytest
import transformers
from real_grids import MODELS, expected, grid_model, misplaced, tokens_of
from tiny_vlms import FAMILIES, build
from vlm_runs import photo, prompt_of, sharpened, words_only

from visattn.pipelines.words.captions import read_words

PAGE = Path(__file__).parents[3] / "docs/reference/word_maps.md"
TITLES = {
    "ved": "ViT and GPT-2 (vision-encoder-decoder)", "trocr": "TrOCR", "donut": "Donut",
    "got_ocr2": "GOT-OCR 2", "nougat": "Nougat (without its crop of margins)", "pixtral": "Pixtral",
}  # fmt: skip
QUICK = ("qwen3_5", "kimi_k25", "janus", "aria", "chameleon", "step3p7", "nougat")
TILED = {"deepseek_ocr2": (900, 1500), "step3p7": (900, 1500)}
"""Photos that have tiles."""
SIZES = ((375, 500), (97, 613), (180, 300))
HEAD = """# Vision-language models: which have maps of words

One tiny model with random weights of each family in transformers {version}, captioned as
`visattn caption --model hf:DIRECTORY` does. This page is written from what ran by
`pytest tests/pipelines/words/test_family_page.py -m "slow or not slow" --write-golden`. Pretrained
weights were not run.

**Exactly**: each image token that words read has a position of its own, measured at the input of
the text decoder, or at the keys of cross-attention. **By keys**: words read learned queries, and
these are replaced by the tokens that they read, an approximation that the page of a caption names.
**Estimated**: more measurements still move the tokens, which may be off by up to a token; the page
of a caption says so.

"""


def outcome(name: str) -> tuple[str, str, str]:
    """Return the class of a family, how its tokens are placed, and why not."""
    model, processor = build(name)
    sharpened(model)  # of smaller weights Molmo 2's features are lost beside its embeddings
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    options = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False,
               "suppress_tokens": words_only(processor, vocabulary)}  # fmt: skip
    kind, image = type(model).__name__, photo(TILED.get(name, (180, 300)))
    try:
        [[replay]] = read_words(model, image, processor=processor, prompt=prompt_of(name),
                                **options)  # fmt: skip
    except (TypeError, ValueError) as error:
        return kind, "not supported", str(error)
    own = "estimated" if replay.tokens.notes else "exactly"
    return kind, "by keys" if replay.tokens.between else own, ""


def row(name: str) -> str:
    kind, how, reason = outcome(name)
    title = TITLES.get(name, kind.partition("For")[0])
    return f"| {title} | `{kind}` | {how}{': ' * bool(reason)}{reason} |"


def not_tried(rows: list[str]) -> list[str]:
    """Return the classes of transformers that write about images, and are in no row."""
    names = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    classes = {each for value in names.values()
               for each in ([value] if isinstance(value, str) else value)}  # fmt: skip
    return sorted(each for each in classes if not any(f"`{each}`" in row for row in rows))


def largest_error(name: str) -> float:
    """Return by how many tokens edges are off on photos of some sizes."""
    model = grid_model(name)
    return max(
        misplaced(tokens_of(*model, size).placement.boxes, expected(name, size)) for size in SIZES
    )


@pytest.mark.parametrize("name", QUICK)
def test_the_page_says_what_a_family_gives(name: str) -> None:
    assert row(name) in PAGE.read_text().splitlines()


@pytest.mark.slow
def test_the_page_lists_all_families(request: pytest.FixtureRequest) -> None:
    rows = sorted(map(row, FAMILIES), key=str.casefold)
    sizes = ", ".join(f"{width} x {height}" for height, width in SIZES)
    errors = [f"| {name} | {largest_error(name):.2f} |" for name in MODELS]
    page = HEAD.format(version=transformers.__version__) + "\n".join([
        "| Family | Class | Image tokens are placed |", "|---|---|---|", *rows, "",
        "## Largest error", "",
        f"Edges of tokens of published grids, in tokens, on photos of {sizes} pixels:", "",
        "| Grid | Tokens |", "|---|---|", *errors, "",
        "## Not tried", "",
        "Further classes of this release of transformers that write about images: "
        + ", ".join(f"`{each}`" for each in not_tried(rows)) + ".", "",
    ])  # fmt: skip
    if request.config.getoption("--write-golden"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page
