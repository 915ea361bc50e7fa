"""A trained network, some of whose weights become Bayesian, with a prior around their trained values."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from pyrobbb._support import checks
from pyrobbb._support.network_state import copied
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.likelihoods import Likelihood
from pyrobbb.priors import Centred, Deterministic, PerParameter, Prior
from pyrobbb.weight_sites import weight_names


def partly_bayesian(
    network: nn.Module,
    where: str | Sequence[str],
    likelihood: Likelihood,
    *,
    sigma: float = 1.0,
    rest: str = "frozen",
    N: int | None = None,
) -> BayesianNetwork:
    r"""The model with prior :math:`N(w_0, \sigma^2)` for chosen weights whose present values are :math:`w_0`.

    >>> model = partly_bayesian(resnet, "fc.*", likelihoods.Categorical(), sigma=0.1)  # doctest: +SKIP
    >>> posterior = fit(model, MeanFieldNormal, data)  # doctest: +SKIP

    At the weights :math:`w_0` its output is that of `network`, bit for bit. `network` itself is left as it
    was; it is copied in evaluation mode: batch normalisation keeps its statistics and dropout is off.

    Args:
        network: A trained network.
        where: Shell patterns of the names of the parameters that become Bayesian.
        likelihood: What y is, given the output.
        sigma: How far from its trained value a weight may be expected.
        rest: `frozen`: the other parameters stay as they are; `trained`: they are trained further, as points,
            but for those that are frozen already.
        N: As for `BayesianNetwork`.

    Raises:
        ValueError: If `network` is not an `nn.Module` (a state_dict, say), a pattern matches no parameter or
            a tied weight by another name than its first, or an option lies outside its domain.
    """
    return with_prior(network, where, Centred(sigma=sigma), likelihood, rest=rest, N=N)


def with_prior(
    network: nn.Module,
    where: str | Sequence[str],
    prior: Prior,
    likelihood: Likelihood,
    *,
    rest: str,
    N: int | None,
) -> BayesianNetwork:
    """What `partly_bayesian` returns, with any prior of the chosen weights."""
    checks.check_kinds(network=(network, nn.Module), where=(where, (str, Sequence)))
    patterns = [where] if isinstance(where, str) else list(where)
    for i, pattern in enumerate(patterns):
        checks.check_kinds(**{f"where[{i}]": (pattern, str)})
    checks.one_of("rest", rest, ("frozen", "trained"))
    own = copied(network).eval()
    if not patterns:
        raise ValueError("where must name at least one pattern of parameters")
    chosen_alone = PerParameter(default=Deterministic(), where=dict.fromkeys(patterns, prior))
    chosen_alone.check(weight_names(own))
    for name, parameter in own.named_parameters():
        chosen = any(fnmatchcase(name, pattern) for pattern in patterns)
        parameter.requires_grad_(chosen or (rest == "trained" and parameter.requires_grad))
    return BayesianNetwork(own, chosen_alone, likelihood, N)
