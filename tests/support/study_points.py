"""Points of a study on a few blobs, fitted without a measurement."""

from experiments._runner.compose import compose
from experiments._runner.fit_points import fit_point

BLOBS = ["data=blobs", "data.classes=10", "data.features=20", "+data.separation=0.5", "+data.noise=0.7"]


def fitted(folder, *overrides, experiment="training_choices"):
    """A point's history; nothing is measured."""
    config = compose(experiment, overrides, folder=folder / "point")
    return fit_point(config, lambda fit: {"nll": fit.history[-1].nll})
