"""Ray Data: each photo has one row, although a worker is killed and a node is lost."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import visattn as va
from visattn.models import AttentionResNet

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # those of Ray are of every kind
]
ray = pytest.importorskip("ray")


def mortal_maps(folder: Path) -> type[va.MapImages]:
    """A class that Ray sends to its workers by value; the first worker kills itself."""

    class MortalMaps(va.MapImages):
        def __call__(self, batch: Any) -> Any:
            result = super().__call__(batch)
            if not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1)  # so that the node is lost in the middle
            (folder / f"batch-{os.getpid()}-{time.time_ns()}").touch()
            return result

    return MortalMaps


def remove_later(cluster: Any, node: Any, folder: Path) -> None:
    """Remove a node without grace once two batches are done."""
    while len([*folder.glob("batch-*")]) < 2:
        time.sleep(0.1)
    cluster.remove_node(node, allow_graceful=False)
    (folder / "removed").touch()


def test_a_killed_worker_and_a_lost_node_leave_a_row_per_photo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import dataset
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    torch.manual_seed(4)
    model = str(tmp_path / "cnn.safetensors")
    va.save(AttentionResNet(("cat", "dog"), depth=8, stem_width=4, img_size=(32, 40)), model)
    photos: list[str] = []
    for seed in range(24):
        photos.append(str(tmp_path / f"{seed:02}.png"))
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 53, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos[-1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level="ERROR")
    try:
        remover = threading.Thread(target=remove_later, args=(cluster, node, tmp_path), daemon=True)
        remover.start()
        rows = ray.data.from_items(
            [{"id": path, "image": path} for path in photos], override_num_blocks=12
        )
        rows.map_batches(
            mortal_maps(tmp_path),
            fn_constructor_kwargs={"model": model, "method": "gradcam", "batch_size": 1},
            batch_size=2,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=2),
            max_restarts=-1,
        ).write_parquet(str(tmp_path / "maps"))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "removed").exists()
    table = dataset.dataset(tmp_path / "maps").to_table()
    assert sorted(table["id"].to_pylist()) == photos
    expected = va.explain(va.load(model), photos, "gradcam", batch_size=1)
    for row in table.to_pylist():
        heatmap = expected[photos.index(row["id"])]
        assert json.loads(row["map"])["values"] == heatmap.values.tolist()
