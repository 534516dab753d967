"""The page of vision-language families says what tiny models of them give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import more_vlms
import pytest
import tiny_vlms
import torch
import transformers
from vlm_runs import PROMPT, photo, words_only

from visattn.pipelines.words.replay import generate_and_replay

PAGE = Path(__file__).parents[3] / "docs/reference/word_maps.md"
FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    **tiny_vlms.FAMILIES, "nougat": tiny_vlms.nougat, **more_vlms.FAMILIES,
}  # fmt: skip
TITLES = {
    "ved": "ViT and GPT-2 (vision-encoder-decoder)", "trocr": "TrOCR", "donut": "Donut",
    "got_ocr2": "GOT-OCR 2", "nougat": "Nougat (without its crop of margins)", "pixtral": "Pixtral",
}  # fmt: skip
QUICK = ("glm4v", "qwen3_5", "lighton_ocr", "vipllava", "idefics", "aria", "molmo2", "chameleon",
         "deepseek_vl_hybrid", "step3p7", "nougat")  # fmt: skip
PLACED = {
    "share pixels": "tokens share pixels: mean and spread of their gradients",
    "learned queries": "through learned queries: an approximation, as the page of a caption says",
}
INSTEAD = {
    "passes attention before": "a family of the first table",
    "discrete codes": "a family of the first table",
    "one input": "a family of the first table, such as the plain DeepSeek-VL instead of the hybrid",
    "a processor of transformers for photos": "a family of the first table, on single frames",
    "by their content": "turn the crop off in the image processor, or crop the page yourself",
}
HEAD = """# Vision-language models: which have maps of words

One tiny model with random weights of each family in transformers {version}, captioned as
`visattn caption --model hf:DIRECTORY` does. **Works**: its words have maps, placed by probing the
model. This page is written by the tests, and compared with what the models give:
`pytest tests/pipelines/words/test_family_page.py -m "slow or not slow" --write-golden`.
Pretrained weights were not run.

"""


def outcome(name: str) -> tuple[str, bool, str]:
    """Return the class of a family, whether its words have maps, and how or why not."""
    torch.manual_seed(5)
    model, processor = FAMILIES[name]()
    model.eval().generation_config.forced_eos_token_id = None
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    prompt = more_vlms.PROMPTS.get(name, PROMPT if name not in tiny_vlms.FAMILIES else None)
    options = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False,
               "suppress_tokens": words_only(processor, vocabulary)}  # fmt: skip
    kind, size = type(model).__name__, more_vlms.SIZES.get(name, (180, 300))
    try:
        [[replay]] = generate_and_replay(
            model, photo(size), processor=processor, prompt=prompt, **options
        )
    except (TypeError, ValueError) as error:
        return kind, False, str(error).partition("; models whose words")[0]
    notes = " ".join(replay.notes)
    return kind, True, next((PLACED[key] for key in PLACED if key in notes), "on their own pixels")


def row(name: str) -> str:
    kind, works, text = outcome(name)
    title = TITLES.get(name, kind.partition("For")[0])
    if works:
        return f"| {title} | `{kind}` | {text} |"
    [instead] = [advice for key, advice in INSTEAD.items() if key in text]
    return f"| {title} | `{kind}` | {text} | {instead} |"


def tables(rows: list[str]) -> str:
    """Return the page of all families, those that work first."""
    works, refused = ([each for each in rows if each.count(" | ") == n] for n in (2, 3))
    return (
        HEAD.format(version=transformers.__version__)
        + "## Works\n\n| Family | Class | Image tokens are placed |\n|---|---|---|\n"
        + "\n".join(works)
        + "\n\n## Refused\n\nThe reason is the message of the error.\n\n"
        "| Family | Class | Reason | Instead |\n|---|---|---|---|\n" + "\n".join(refused) + "\n"
    )


@pytest.mark.parametrize("name", QUICK)
def test_the_page_says_what_a_family_gives(name: str) -> None:
    assert row(name) in PAGE.read_text().splitlines()


@pytest.mark.slow
def test_the_page_lists_all_families(request: pytest.FixtureRequest) -> None:
    page = tables(sorted(map(row, FAMILIES), key=str.casefold))
    if request.config.getoption("--write-golden"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page
