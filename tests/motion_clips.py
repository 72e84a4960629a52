"""Textured images that move by a known displacement."""

import cv2
import numpy as np


def texture(height: int, width: int, sigma: float = 3.0, seed: int = 3) -> np.ndarray:
    soft = cv2.GaussianBlur(
        np.random.default_rng(seed).standard_normal((height, width, 3)).astype(np.float32), (0, 0), sigma
    )
    return np.clip(128 + 45 * soft / soft.std(), 0, 255)


def view(scene: np.ndarray, x: float, y: float, size: tuple[int, int]) -> np.ndarray:
    """The scene moved right and down by x and y, seen through a window of `size` that lies 40 pixels inside it."""
    shift = np.array([[1, 0, x - 40], [0, 1, y - 40]], np.float32)
    return np.rint(cv2.warpAffine(scene, shift, size[::-1], flags=cv2.INTER_CUBIC).clip(0, 255)).astype(
        np.uint8
    )
