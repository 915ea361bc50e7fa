"""Pictures of 28 x 28 pixels in [0, 1] that are not digits, drawn by code: a letter, a cat's outline."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

SIDE = 28
Stroke = Sequence[tuple[float, float]]  # corners (x, y) in pixels, y downwards


def strokes(lines: Sequence[Stroke], width: float = 2.2) -> np.ndarray:
    """Polylines as white ink on black with soft edges, as in MNIST: `(28, 28)` in [0, 1]."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(float)
    nearest = np.full((SIDE, SIDE), np.inf)
    for line in lines:
        for (ax, ay), (bx, by) in pairwise(line):
            length = (bx - ax) ** 2 + (by - ay) ** 2
            along = np.clip(((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / max(length, 1e-9), 0, 1)
            distance = np.hypot(x - ax - along * (bx - ax), y - ay - along * (by - ay))
            nearest = np.minimum(nearest, distance)
    return np.clip(width / 2 + 0.5 - nearest, 0, 1)


def letter() -> np.ndarray:
    """A capital A."""
    return strokes([[(6, 23), (14, 4), (22, 23)], [(9, 16.5), (19, 16.5)]])


def cat() -> np.ndarray:
    """The outline of a cat's face, with eyes, nose and whiskers."""
    angle = np.linspace(0, 2 * np.pi, 25)
    head = [(14 + 8 * np.cos(a), 16 + 7 * np.sin(a)) for a in angle]
    ears = [[(7, 12), (7.5, 4), (12, 9)], [(21, 12), (20.5, 4), (16, 9)]]
    face: list[Stroke] = [
        [(11, 14), (11, 14.6)],
        [(17, 14), (17, 14.6)],
        [(13.3, 18), (14.7, 18), (14, 18.8), (13.3, 18)],
    ]
    whiskers = [[(2, 16), (9, 18)], [(2, 20), (9, 19)], [(26, 16), (19, 18)], [(26, 20), (19, 19)]]
    return np.maximum(strokes([head, *ears], 1.6), strokes([*face, *whiskers], 1.0))


def pictures(digit: np.ndarray) -> dict[str, np.ndarray]:
    """Pictures that are not upright digits, and the digit that one of them was made of."""
    turned = {"a digit": digit, "turned by 90 degrees": np.rot90(digit).copy(), "its negative": 1 - digit}
    return {"a letter": letter(), "a cat": cat(), **turned}
