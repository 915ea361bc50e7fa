"""Bayes by Backprop (Blundell et al. 2015) as probabilistic programs in Pyro.

The names below are loaded when first used, so that `pyrobbb.evaluation.arviz_io` works without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pyrobbb.bnn import BayesianNetwork as BayesianNetwork
    from pyrobbb.experiment import Run as Run
    from pyrobbb.from_trained import partly_bayesian as partly_bayesian
    from pyrobbb.mean_field import MeanFieldNormal as MeanFieldNormal
    from pyrobbb.posterior import Posterior as Posterior
    from pyrobbb.tabular import fit_table as fit_table
    from pyrobbb.tabular import load_table as load_table
    from pyrobbb.training.trainer import Training as Training
    from pyrobbb.training.trainer import fit as fit

_HOME = {
    "BayesianNetwork": "pyrobbb.bnn",
    "MeanFieldNormal": "pyrobbb.mean_field",
    "Posterior": "pyrobbb.posterior",
    "Run": "pyrobbb.experiment",
    "Training": "pyrobbb.training.trainer",
    "fit": "pyrobbb.training.trainer",
    "fit_table": "pyrobbb.tabular",
    "load_table": "pyrobbb.tabular",
    "partly_bayesian": "pyrobbb.from_trained",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'pyrobbb' has no attribute {name!r}")
