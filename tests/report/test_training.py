"""The sections on the training: what the curves end at."""

from dataclasses import replace

import pytest

from pyrobbb.report.training import learning
from pyrobbb.training.history import Epoch

ROW = Epoch(0, 9, 31.0, 1.0, 30.0, 2.0, 0.5, 0.01, 3.0)
ROWS = [ROW, replace(ROW, chain=1, free_energy=2.0, kl=0.5, nll=1.5)]


@pytest.mark.parametrize(
    ("rows", "weights", "energy", "kl", "nll"),
    [
        (ROWS, None, "16.5", "0.75", "15.75"),
        (ROWS, (0.5, 0.5), "16.5", "0.75", "15.75"),
        (ROWS, (0.0, 1.0), "2", "0.5", "1.5"),
        (ROWS[:1], (0.0, 1.0), "31", "1", "30"),  # a history that was cut off
    ],
)
def test_chains_count_by_their_weights_at_the_end(rows, weights, energy, kl, nll):
    section = learning(rows, None, "error (%)", bound=True, chain_weights=weights)
    said = " ".join(chart.words for chart in section.parts[0].charts)
    assert f"It ends at {energy} nats per example." in said
    assert f"; {kl} nats per example at the end." in said
    assert f"still are; {nll} nats per example at the end." in said
