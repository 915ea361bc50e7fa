"""Images that are not digits."""

import numpy as np

from experiments.tutorial import odd_images


def test_odd_pictures_are_images_in_the_range_of_pixels():
    drawn = odd_images.pictures(odd_images.letter())
    for picture in drawn.values():
        assert picture.shape == (28, 28)
        assert picture.min() >= 0
        assert picture.max() == 1
    assert np.array_equal(np.rot90(drawn["a digit"]), drawn["turned by 90 degrees"])
    assert 0.05 < drawn["a cat"].mean() < 0.4  # strokes, not a filled square
