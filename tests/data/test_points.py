"""The tutorial's six points as data."""

import torch

from pyrobbb.data import ToyPoints


def test_toy_points_are_the_tutorial_s():
    data = ToyPoints().load()
    expected = torch.tensor([-3.0, 0.2224, 3.0, 3.0, 0.2224, -3.0])
    torch.testing.assert_close(data.train.y[:, 0], expected, atol=1e-4, rtol=0)
    assert data.validation is None
    assert len(data.test) == 101
