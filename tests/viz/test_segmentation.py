"""Figures of segmentations: colors, outlines, errors, panels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.values import Segmentation
from visattn.viz.segmentation import (
    class_color,
    draw_errors,
    draw_gate,
    draw_labels,
    outlines,
    segmentation_figure,
)

IMAGE = np.full((20, 30, 3), 100, np.uint8)


def test_colors_of_the_first_classes_differ() -> None:
    colors = np.array([class_color(number) for number in range(24)]).astype(int)
    distances = np.abs(colors[:, None] - colors[None]).sum(-1) + 999 * np.eye(24, dtype=int)
    assert distances.min() > 30
    assert np.array_equal(colors[3], class_color(3))


def test_labels_are_drawn_where_they_are() -> None:
    labels = np.zeros((20, 30), np.uint8)
    labels[5:15, 20:28] = 2
    labels[0, :] = 255
    drawn = draw_labels(IMAGE, labels, opacity=0.5)
    middle = np.rint(0.5 * 100 + 0.5 * np.array(class_color(2)))
    assert (np.abs(drawn[6:14, 21:27] - middle) <= 1).all()
    assert (drawn[5, 20:28] == class_color(2)).all()  # the outline
    assert (drawn[1:4, 1:19] == 75).all()  # dimmed background
    assert (drawn[0] == 125).all()  # halfway to gray
    without = draw_labels(IMAGE, labels * 0, opacity=1.0, background=False)
    assert (without == class_color(1)).all()


def test_outlines_are_one_pixel_wide_and_inside() -> None:
    labels = np.zeros((9, 9), int)
    labels[2:7, 2:7] = 1
    edge = outlines(labels)
    assert edge.sum() == 16
    assert not edge[3:6, 3:6].any()
    assert not outlines(np.full((4, 4), 255)).any()


def test_errors_are_red_where_prediction_and_truth_differ() -> None:
    truth, labels = np.zeros((20, 30), int), np.zeros((20, 30), int)
    truth[3:5], labels[4:6] = 1, 1
    truth[10] = 255
    drawn = draw_errors(IMAGE, truth, labels)
    red = (drawn == (214, 40, 40)).all(-1)
    assert red[3].all()
    assert red[5].all()
    assert red.sum() == 60
    assert (drawn[10] == 150).all()
    assert (drawn[15] == 35).all()


def test_gates_are_drawn_on_the_scale_from_0_to_1() -> None:
    """A gate of 0.999 to 1 is drawn evenly, not stretched to a pattern."""
    nearly = np.linspace(0.999, 1.0, 600).reshape(20, 30)
    drawn = draw_gate(IMAGE, nearly).astype(int)
    assert np.ptp(drawn.reshape(-1, 3), axis=0).max() <= 2
    halves = np.zeros((20, 30))
    halves[:, 15:] = 1
    contrast = draw_gate(IMAGE, halves).astype(int)
    assert np.abs(contrast[:, 0] - contrast[:, -1]).max() > 50


def test_a_figure_shows_its_tiles_and_the_legend() -> None:
    names = ("background", *(f"class number {number}" for number in range(1, 40)))
    labels = np.arange(600).reshape(20, 30).astype(np.uint8) % 40
    geometry = Geometry.identity((20, 30))
    result = Segmentation(labels, names, (), geometry)
    page = np.asarray(segmentation_figure(IMAGE, result, title="scene", width=600).image)
    assert page.shape[1] == 600
    for number in (1, 20, 39):
        assert (page == class_color(number)).all(-1).sum() > 100
    gate = AttentionMap(torch.ones(2, 3), "gate", "gate", geometry)
    taller = np.asarray(
        segmentation_figure(IMAGE, replace(result, gates=(gate,)), title="scene", width=600).image
    )
    assert taller.shape[0] >= page.shape[0] + 64


def test_a_narrow_figure_is_refused() -> None:
    result = Segmentation(np.zeros((20, 30), np.uint8), ("cat",), (), Geometry.identity((20, 30)))
    with pytest.raises(ValueError, match="at least one tile and a width of 300"):
        segmentation_figure(IMAGE, result, width=299)


def test_wrong_label_maps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"one per pixel of the image, \(20, 30\)"):
        draw_labels(IMAGE, np.zeros((30, 20), int))
    with pytest.raises(ValueError, match="opacity 0 to 1"):
        draw_labels(IMAGE, np.zeros((20, 30), int), opacity=1.5)
