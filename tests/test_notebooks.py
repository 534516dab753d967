"""Each notebook's cells run here with little data and few steps; -m slow runs them as they are."""

import json
from pathlib import Path

import pytest
import torch

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
LESS = {
    "block_in_a_resnet": {
        '"train", 800': '"train", 24', '"test", 200': '"test", 8',
        "steps=80": "steps=1", "steps=12": "steps=1",
    },
    "scenes_to_overlay": {"steps = 400": "steps = 2", "range(200)": "range(60)"},
    "ten_methods": {
        "Scenes(360": "Scenes(24", "steps = 100": "steps = 2", '"num_masks": 300': '"num_masks": 7',
        '"n_steps": 16': '"n_steps": 2', '"num_samples": 8': '"num_samples": 2',
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
