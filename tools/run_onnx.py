"""Draw the attention of a Vision Transformer in ONNX, without torch and visattn.

    visattn export --run runs/NAME/1 --onnx
    python tools/run_onnx.py runs/NAME/1/model.onnx photo.jpg overlay.png

Needs onnxruntime, numpy and pillow. How the photo becomes the input, and where the map lies on the
photo, follow from the metadata in the file.
"""

import json
import sys

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingImports]
from PIL import Image, ImageOps

file, photo_file, out = sys.argv[1:]
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
metadata = json.loads(session.get_modelmeta().custom_metadata_map["visattn"])
(height, width), mode = metadata["input"]["size"], metadata["input"]["resize_mode"]
rows, columns = metadata["map"]["grid"]
photo = ImageOps.exif_transpose(Image.open(photo_file)).convert("RGB")

# The photo is resized to x by y pixels, then cropped or padded at its center.
x, y = photo.size
if mode == "squash":
    x, y = width, height
elif mode == "pad":
    x, y = (max(1, round(side * min(width / x, height / y))) for side in (x, y))
else:  # the shorter side is that of the input
    x, y = (int(min(height, width) * side / min(x, y)) for side in (x, y))
left, top = (round(d / 2) if d >= 0 else -(-d // 2) for d in (x - width, y - height))
pixels = photo.resize((x, y), Image.Resampling.BILINEAR)
pixels = np.asarray(pixels.crop((left, top, left + width, top + height)))
logits, attention = session.run(None, {"images": pixels.transpose(2, 0, 1)[None]})

# Cells of the map, which covers the input from edge to edge, as a function of pixels of the photo.
heat = Image.fromarray(attention[0, -1].mean(0))  # the last layer, mean over the heads
to_cells = (
    x / photo.width * columns / width, 0, -left * columns / width,
    0, y / photo.height * rows / height, -top * rows / height,
)  # fmt: skip
heat = heat.transform(photo.size, Image.Transform.AFFINE, to_cells, Image.Resampling.BILINEAR)
alpha = Image.fromarray(
    np.uint8(np.clip(np.asarray(heat) / attention[0, -1].mean(0).max(), 0, 1) * 190)
)
overlay = Image.composite(
    Image.new("RGB", photo.size, (255, 120, 0)), ImageOps.grayscale(photo).convert("RGB"), alpha
)
overlay.save(out)
print(metadata["class_names"][int(logits[0].argmax())])
