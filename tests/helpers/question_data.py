"""Small question files in the format of VQA v2, with photos."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

VQA_ANSWERS = {
    9001: ["yes"] * 9 + ["no"],
    25000: ["2"] * 4 + ["two"] * 4 + ["Three."] * 2,
    9002: ["a ball"] * 10,
}


def write_vqa(folder: Path, split: str) -> None:
    """Write two questions about photo 9 and one about photo 25, as on visualqa.org."""
    entries = [(9, "Is it red?", 9001), (25, "How many dogs?", 25000), (9, "What is it?", 9002)]
    questions = [{"image_id": i, "question": q, "question_id": n} for i, q, n in entries]
    annotations = [
        {
            "image_id": image,
            "question_id": number,
            "question_type": "is it",
            "answer_type": {9001: "yes/no", 25000: "number", 9002: "other"}[number],
            "multiple_choice_answer": VQA_ANSWERS[number][0],
            "answers": [
                {"answer": answer, "answer_confidence": "yes", "answer_id": index}
                for index, answer in enumerate(VQA_ANSWERS[number], 1)
            ],
        }
        for image, _, number in entries
    ]
    photos = folder / f"{split}2014"
    photos.mkdir(parents=True, exist_ok=True)
    for level, image in enumerate((9, 25)):
        pixels = np.full((31, 47, 3), 100 * level, np.uint8)
        Image.fromarray(pixels).save(photos / f"COCO_{split}2014_{image:012}.jpg")
    for name, content in (
        (f"v2_OpenEnded_mscoco_{split}2014_questions.json", {"questions": questions}),
        (f"v2_mscoco_{split}2014_annotations.json", {"annotations": annotations}),
    ):
        (folder / name).write_text(json.dumps(content))
