"""`fit_table` as a classifier and a regressor of scikit-learn's, for its pipelines, searches and scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from pyrobbb._support.checks import check_kinds
from pyrobbb.data.dataset import Task
from pyrobbb.data.frames import as_column, by_name, is_table, refuse_masked
from pyrobbb.data.tables import from_table
from pyrobbb.data.texts import as_text
from pyrobbb.predictive import ClassPrediction, ValuePrediction
from pyrobbb.priors import Prior
from pyrobbb.tabular import fit_table

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_X_y, validate_data
except ImportError as missing:
    raise ImportError(
        "pyrobbb.estimators needs scikit-learn 1.6 or later: pip install '.[sklearn]' in your clone"
    ) from missing

Array = npt.NDArray[Any]
Frame = dict[str, Any]

OWN = {  # options of fit_table that are the estimators' own
    "hidden": "hidden",
    "noise": "noise",
    "prior": "prior",
    "epochs": "epochs",
    "seed": "random_state",
}

__all__ = ["BayesianClassifier", "BayesianRegressor"]


@dataclass(kw_only=True, eq=False, repr=False)
class _TableEstimator(BaseEstimator):
    """What both share: a table in, a posterior kept, its predictions out."""

    hidden: Sequence[int] | Sequence[Sequence[int]] | None = None
    prior: Prior | None = None
    epochs: int | None = None
    draws: int = 100
    options: Mapping[str, Any] | None = None
    random_state: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def _checked(self, X: Any, y: Any = "no_validation", **how: Any) -> tuple[Frame, Any]:
        """The columns by name, those of a DataFrame with the kinds that an array would lose, and the targets.

        Without targets, the rows must be like those of `fit`.
        """
        fitting = not isinstance(y, str)
        how = {"dtype": None, "ensure_all_finite": "allow-nan"} | how
        refuse_masked("y", y)
        if is_table(X):  # its names are checked here, its values by `from_table`
            columns = by_name("X", X.items())
            validate_data(self, X, y, reset=fitting, skip_check_array=True)
            if fitting:
                _, y = check_X_y(np.zeros((len(X), 1)), y, **how)
        else:
            if not hasattr(X, "dtype") and np.asarray(X).dtype.kind in "US":
                X = np.array(X, dtype=object)  # rows in lists: numbers beside text stay numbers
            if np.ma.is_masked(X):  # of which validate_data would keep what lies beneath the mask
                X = np.ma.filled(X if X.dtype.kind == "f" else X.astype(object), np.nan)
            found = validate_data(self, X, y, reset=fitting, **how)
            array, y = found if fitting else (found, y)
            columns = {str(i): column for i, column in enumerate(array.T)}
        if fitting:
            self._names = [*columns]  # later columns are taken by place, as scikit-learn does
        return dict(zip(self._names, columns.values(), strict=True)), y

    def _fit(self, frame: Frame, y: Array, sample_weight: Any, task: Task, **options: Any) -> Self:
        refuse_masked("sample_weight", sample_weight)
        weights = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
        there = weights > 0  # a row of weight 0 is as good as absent
        frame, y = {key: column[there] for key, column in frame.items()}, y[there]
        if task == "classification":
            self.classes_, y = np.unique(y, return_inverse=True)
            if len(self.classes_) == 1:
                raise ValueError(
                    f"y has one class, {self.classes_.tolist()[0]!r}: there is nothing to tell apart"
                )
        check_kinds(options=(self.options, (Mapping, NoneType)))
        own = sorted(key for key in self.options or () if hasattr(self, OWN.get(key, "")))
        if own:
            raise ValueError(f"options holds {own[0]!r}: pass {OWN[own[0]]}= to the estimator itself")
        name = "y"
        while any(column.startswith(name) for column in frame):
            name += "_"
        columns = np.atleast_2d(y.T)
        targets = {f"{name}[{i}]" if len(columns) > 1 else name: column for i, column in enumerate(columns)}
        data = from_table(frame | targets, target=tuple(targets), task=task, dtype="float64")
        if sample_weight is not None:
            data = replace(data, train=replace(data.train, weights=torch.from_numpy(weights[there])))
        if task == "classification":  # labels by their own names, of which y holds the numbers
            whole = self.classes_.dtype.kind in "iu"  # exactly, also beyond 2^53
            classes = map(str, self.classes_) if whole else as_text("y", as_column("y", self.classes_))
            names = _told_apart(self.classes_.tolist(), tuple(classes))
            data = replace(data, columns=replace(data.columns, classes=names))
        options |= {} if self.epochs is None else {"epochs": self.epochs}
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        chosen = {"progress": None, **options, **(self.options or {})}
        self.posterior_ = fit_table(data, hidden=self.hidden, prior=self.prior, seed=seed, **chosen)
        self.columns_ = data.columns
        return self

    def _predict(self, X: Any) -> Any:
        check_is_fitted(self)
        return self.posterior_.predict(self._checked(X)[0], draws=self.draws)


def _told_apart(labels: list[Any], names: tuple[str | None, ...]) -> tuple[str, ...]:
    """The names of classes; ValueError if a label has none, or that of another."""
    found: dict[str, Any] = {}
    for label, name in zip(labels, names, strict=True):
        if name is None:
            raise ValueError(
                f"y has the label {label!r}, which is a missing value in a table: give it a name"
            )
        if name in found:
            raise ValueError(
                f"y has the labels {found[name]!r} and {label!r}, which are both {name!r} in a table"
            )
        found[name] = label
    return tuple(found)


@dataclass(kw_only=True, eq=False, repr=False)
class BayesianRegressor(RegressorMixin, _TableEstimator):
    """A Bayesian perceptron for values, `fit_table` behind scikit-learn's interface.

    >>> from sklearn.model_selection import cross_val_score  # doctest: +SKIP
    >>> cross_val_score(BayesianRegressor(), X, y)  # doctest: +SKIP

    After `fit`, `posterior_` is the `Posterior`, for intervals, log-likelihoods and export, as in
    `posterior_.predict(X).interval(0.9)`, where X has the names of the columns that `fit` was given, if any;
    `columns_` says how rows become its inputs.

    Args:
        hidden: As for `fit_table`: units of each hidden layer, or several such lists, of which the best is
            chosen.
        noise: As for `fit_table`: a name, such as "learned" for the same at all rows, or several, of which
            the best is kept. By default network and noise are chosen in the time of five fits.
        prior: By default `table_prior`.
        epochs: By default as many as make some 4000 steps.
        draws: Weight draws that a prediction averages over.
        options: Further options of `fit`, such as `{"batch_size": 100, "device": "cpu"}`.
        random_state: Decides everything random in `fit`; predictions are the same every time.
    """

    noise: str | Sequence[str] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to rows `X`, `(N, columns)`, and values `y`, `(N,)` or `(N, outputs)`.

        Numbers may be missing and columns may hold text, as in `Table`. `sample_weight`, `(N,)`, is how often
        a row's log-likelihood counts, as if it had been seen so often; it is not rescaled.

        Raises:
            ValueError: `X`, `y`, `sample_weight` or an option does not fit; the message says what would.
        """
        frame, y = self._checked(X, y, y_numeric=True, multi_output=True, ensure_min_samples=2)
        self._flat = y.ndim == 1
        return self._fit(frame, y, sample_weight, "regression", noise=self.noise)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y | x], of the shape that `y` had; with `return_std` also the standard deviation of y.

        The deviation is that of the posterior predictive: noise, and what is not known of the function.
        """
        prediction: ValuePrediction = self._predict(X)
        mean = self._like_y(prediction.mean)
        return (mean, self._like_y(prediction.std)) if return_std else mean

    def _like_y(self, values: torch.Tensor) -> Array:
        return values.cpu().numpy()[:, 0] if self._flat else values.cpu().numpy()


class BayesianClassifier(ClassifierMixin, _TableEstimator):
    """A Bayesian perceptron for classes, `fit_table` behind scikit-learn's interface.

    >>> from sklearn.pipeline import make_pipeline  # doctest: +SKIP
    >>> make_pipeline(selection, BayesianClassifier()).fit(X, y).predict_proba(X)  # doctest: +SKIP

    After `fit`, `posterior_` is the `Posterior` and `columns_` turns rows into its inputs, as for
    `BayesianRegressor`, which explains the arguments, all but `noise`; `classes_` are the classes in the
    order of `predict_proba`. Without a `prior` the better of two is chosen, in the time of three fits.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to rows `X`, `(N, columns)`, and labels `y`, `(N,)`, of any kind.

        Numbers may be missing and columns may hold text, as in `Table`. `sample_weight`, `(N,)`, is how often
        a row's log-likelihood counts, as if it had been seen so often; it is not rescaled.

        Raises:
            ValueError: `X`, `y`, `sample_weight` or an option does not fit; the message says what would.
        """
        frame, y = self._checked(X, y, ensure_min_samples=2)
        check_classification_targets(y)
        return self._fit(frame, y, sample_weight, "classification")

    def predict_proba(self, X: Any) -> Array:
        """P(c | x), averaged over weight draws, `(M, classes)`."""
        prediction: ClassPrediction = self._predict(X)
        return prediction.probs.cpu().numpy()

    def predict(self, X: Any) -> Array:
        """The class of highest probability for each row."""
        most = self.predict_proba(X).argmax(axis=1)
        return self.classes_[most]
