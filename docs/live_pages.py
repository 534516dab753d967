"""Live pages of the documentation, made by the commands of visattn when the site is built.

    ```{live} caption
    A caption of a drawn scene: point at its words.
    ```

The caption page is of the captioner that comes with visattn, the explorer of the small Vision
Transformer of the gallery. The question page shows what a model answered once
(`gallery_figures.recorded_answers`).
"""

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).resolve().parent
SCENE, SCENE_SIDE = 5, 480
TITLES = {
    "caption": "Caption page: the attention of each word",
    "explorer": "Explorer: attention of all layers and heads, and maps of methods",
    "question": "Question page: where each layer looked",
}


def write(folder: Path) -> None:
    """Write the pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for page in (caption_page, explorer_page, question_page):
            page(work, folder)


def run(*words: str) -> None:
    """Run a command of visattn in this process.

    Raises:
        RuntimeError: If it fails.
    """
    from visattn.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main([*words])
    if code:
        raise RuntimeError(f"visattn {' '.join(words)} ended with {code}: {printed.getvalue()}")


def keep(page: Path, target: Path) -> None:
    """Copy a page without its links to the index and the figure, which stay behind."""
    text = page.read_text()
    for link in (r'<a class="back".*?</a>', r"<noscript>.*?</noscript>"):
        text, count = re.subn(link, "", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page} has {count} links like {link}, not one")
    target.write_text(text)


def caption_page(work: Path, folder: Path) -> None:
    """Write the page of a drawn scene captioned by the bundled captioner."""
    from PIL import Image

    from visattn.data import Scenes

    pixels = Scenes(SCENE + 1, size=SCENE_SIDE, split="test").image(SCENE)
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(work / "scene.png")
    run("caption", str(work / "scene.png"), "--model", "scenes-captioner", "--out", str(work / "c"))
    keep(work / "c" / "scene.html", folder / "caption.html")


def explorer_page(work: Path, folder: Path) -> None:
    """Write the explorer of the Vision Transformer of the gallery."""
    import gallery_figures
    from PIL import Image

    import visattn as va

    scene = gallery_figures.chosen_scenes()[2]
    Image.fromarray(scene.image).save(work / "shape.png")
    va.save(gallery_figures.trained("vit"), work / "vit.safetensors")
    methods = ["rollout", "relevance", "gradient_attention", "legrad", "gradcam", "occlusion"]
    run(
        "overlay", str(work / "shape.png"), "--model", str(work / "vit.safetensors"), "--explorer",
        "--method", *methods, "--target", scene.shape, "--out", str(work / "e"),
    )  # fmt: skip
    keep(work / "e" / "shape.html", folder / "explorer.html")


def question_page(work: Path, folder: Path) -> None:
    """Write the page of recorded answers to questions about an image of Sort-of-CLEVR."""
    from gallery_figures import recorded_answers

    from visattn.viz.html.question_page import answer_html

    image, answers = recorded_answers()
    (folder / "question.html").write_text(answer_html(image, answers, name="six objects"))


class LivePage(SphinxDirective):
    """Directive `live NAME`: a page in a frame, with a link to it; the content is its legend."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the frame and what stands below it."""
        name = self.arguments[0]
        address = "../" * self.env.docname.count("/") + f"_static/live/{name}.html"
        frame = (
            f'<iframe class="live" src="{address}" title="{TITLES[name]}" loading="lazy"></iframe>'
            f'<p class="live"><a href="{address}" target="_blank">Open in a full window</a></p>'
        )
        legend = nodes.container(classes=["live-legend"])
        self.state.nested_parse(self.content, self.content_offset, legend)
        return [nodes.raw("", frame, format="html"), legend]


def setup(app: Any) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("live", LivePage)
    return {"parallel_read_safe": True}
