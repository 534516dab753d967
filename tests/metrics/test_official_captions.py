"""The golden values are those of the official code, which is run again.

`make peers` installs that code. With --write-golden its output is written to the golden file.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("golden_captions.json")
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
NAMES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D")
ASK = """
import json, sys
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

golden = json.load(sys.stdin)
lines = [*golden["tokens"]]
for entry in golden["sets"].values():
    lines += entry["captions"].values()
    lines += (line for said in entry["references"].values() for line in said)
# A line in lower case follows each, so that no caption depends on the next.
apart = [{"caption": line} for caption in lines for line in (caption, "end")]
tokens = dict(zip(lines, PTBTokenizer().tokenize({0: apart})[0][::2]))
for entry in golden["sets"].values():
    ours = {id: [tokens[caption]] for id, caption in entry["captions"].items()}
    theirs = {id: [tokens[line] for line in lines] for id, lines in entry["references"].items()}
    bleus, bleu_rows = Bleu(4).compute_score(theirs, ours, verbose=0)
    rouge, rouge_row = Rouge().compute_score(theirs, ours)
    cider, cider_row = Cider().compute_score(theirs, ours)
    entry["corpus"] = [float(score) for score in (*bleus, rouge, cider)]
    rows = [*bleu_rows, rouge_row, cider_row]
    entry["per_image"] = {id: [float(row[i]) for row in rows] for i, id in enumerate(ours)}
golden["tokens"] = {line: tokens[line] for line in golden["tokens"]}
json.dump(golden, sys.stdout)
"""


def official(golden: dict[str, Any]) -> dict[str, Any]:
    if not PYTHON.exists():
        pytest.fail("no .venv-peers; make peers installs it")
    completed = subprocess.run(
        [PYTHON, "-c", ASK], input=json.dumps(golden), capture_output=True, text=True, check=True
    )
    return json.loads(completed.stdout)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="the official tokenizer needs Java")
def test_official_code_reproduces_the_golden_values(request: pytest.FixtureRequest) -> None:
    golden = json.loads(GOLDEN.read_text())
    answered = official(golden)
    if request.config.getoption("--write-golden"):
        text = json.dumps(answered, indent=0, ensure_ascii=False)
        GOLDEN.write_text(text + "\n", encoding="utf-8")
    assert answered["tokens"] == golden["tokens"]
    for name, expected in golden["sets"].items():
        assert answered["sets"][name]["corpus"] == pytest.approx(expected["corpus"], abs=1e-12)
        for image, row in expected["per_image"].items():
            assert answered["sets"][name]["per_image"][image] == pytest.approx(row, abs=1e-12)
