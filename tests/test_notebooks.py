"""Each notebook's cells run here with few steps; -m slow runs them as they are."""

import json
from pathlib import Path

import pytest
import torch

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
LESS = {
    "block_in_a_cnn": {"range(20)": "range(1)"},
    "captions": {"photos = va.sample_photos()": "photos = va.sample_photos()[3:4] * 4"},
    "maps_of_any_model": {
        ', "occlusion"]': "]", "n_steps=16": "n_steps=2", '"occlusion", ': '"gradcam", ',
    },
}  # fmt: skip


def test_each_notebook_is_run() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(LESS)


@pytest.mark.parametrize("name", LESS)
def test_cells_of_a_notebook_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for much, little in LESS[name].items():
        assert much in code
        code = code.replace(much, little)
    with torch.random.fork_rng():
        exec(compile(code, f"{name}.ipynb", "exec"), {"__name__": name})
    assert capsys.readouterr().out
