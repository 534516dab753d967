"""Every file of configs/ says what it is, parses, and trains."""

from pathlib import Path

import pytest
import torch
import yaml

from visattn.cli import main
from visattn.tasks.checkpoints import read_model

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
SMALL = "--data.train=2 --data.validation=2 --data.test=2 --data.batch=3 --data.workers=0"
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
each = pytest.mark.parametrize("config", CONFIGS, ids=[path.stem for path in CONFIGS])


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.chdir(tmp_path)


def test_there_are_configs() -> None:
    assert {"scenes_demo", "scenes_soft"} <= {path.stem for path in CONFIGS}


@each
def test_a_config_says_what_it_is_and_how_it_is_run(config: Path) -> None:
    what, how, *_ = config.read_text().splitlines()
    assert what.startswith("# ")
    assert len(what) > 30
    assert how.startswith(f"# visattn fit --config configs/{config.name}")


@each
def test_a_config_runs_one_batch(config: Path, tmp_path: Path) -> None:
    words = ["fit", "--config", str(config), *SMALL.split(), *QUIET]
    assert main([*words, "--trainer.fast_dev_run", "1"]) == 0
    assert list(tmp_path.iterdir()) == []  # it leaves nothing


@each
def test_a_config_is_scored_with_the_words_that_trained_it(config: Path, tmp_path: Path) -> None:
    """Two steps, then test: averaged weights are what is kept, and what comes back."""
    words = ["--config", str(config), *SMALL.split(), *QUIET]
    steps = "--trainer.max_steps 2 --trainer.val_check_interval 1 --trainer.log_every_n_steps 1"
    assert main(["fit", *words, *steps.split(), "--run", str(tmp_path / "run")]) == 0
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    saved, model = torch.load(last), read_model(last)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    assert all(torch.equal(saved["state_dict"][name], tensor) for name, tensor in weights.items())
    averaged = "EMAWeightAveraging" in config.read_text()
    assert averaged == ("current_model_state" in saved)
    if averaged:
        moving = saved["current_model_state"]["model.tell.weight"]
        assert not torch.equal(moving, weights["model.tell.weight"])
    assert main(["test", *words, "--ckpt_path", str(last), "--model.beam", "1"]) == 0
    scores = yaml.safe_load((tmp_path / "run" / "test.json").read_text())
    assert {"test/truth", "novel/truth", "shuffled/truth", "untrained/truth"} <= set(scores)
