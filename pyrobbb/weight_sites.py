"""A network's parameters make room for sample sites."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from pyro import poutine
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn

from pyrobbb._support.network_checks import check_rows_stay_apart, check_values
from pyrobbb._support.prior_checks import check_prior
from pyrobbb._support.random_state import isolated
from pyrobbb.priors import Prior


def make_room(
    network: nn.Module, prior: Prior, prior_modules: Sequence[nn.Module]
) -> tuple[tuple[str, ...], list[str], tuple[str, ...]]:
    """Replace each Bayesian or frozen parameter of `network` by a buffer holding its initial value.

    Args:
        network: Changed in place.
        prior: Which distribution each parameter has; those without one stay parameters.
        prior_modules: The prior's modules, whose parameters are trained; some create them when first called.

    Returns:
        The names of the Bayesian parameters; those of the sites that the prior samples in `distribution`; and
        the paths of all that are buffers now.

    Raises:
        ValueError: As `BayesianNetwork` says.
    """
    for name, parameter in network.named_parameters():
        check_values(name, parameter)
    names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    taken = {"y", "data"} & set(names)
    if taken:
        raise ValueError(f"a parameter may not be named {taken.pop()!r}: the model has a site of that name")
    if not names:
        frozen = any(True for _ in network.parameters())
        why = "every parameter of the network is frozen (requires_grad=False)"
        raise ValueError(why if frozen else f"the network has no parameters: {type(network).__name__}")
    check_rows_stay_apart(network)
    every = weight_names(network)
    prior.check({name: every[name] for name in names})
    sites, hyper = _sites(network, prior, names, prior_modules)
    return tuple(sites), hyper, _replace_by_buffers(network, sites)


def _replace_by_buffers(network: nn.Module, sites: Sequence[str]) -> tuple[str, ...]:
    """Replace the parameters of these names, and the frozen ones, by buffers; the paths of all these."""
    shared: dict[int, Tensor] = {id(p): p.detach() for p in network.parameters()}
    bayesian = {id(network.get_parameter(name)) for name in sites}
    buffered = []
    for path, parameter in list(network.named_parameters(remove_duplicate=False)):
        frozen = not parameter.requires_grad
        if id(parameter) in bayesian or frozen:
            module, attribute = owner_of(network, path)
            if attribute.removesuffix("_unconstrained") in getattr(module, "_pyro_params", ()):
                raise ValueError(
                    f"{path!r} holds the unconstrained values of a PyroParam: make it an nn.Parameter and "
                    f"map it in forward, or leave it a point estimate, "
                    f"PerParameter(where={{{path!r}: Deterministic()}})"
                )
            delattr(module, attribute)  # tied weights share one buffer, as they shared one parameter
            # frozen ones belong to the model's state, initial values do not
            module.register_buffer(attribute, shared[id(parameter)], persistent=frozen)
            buffered.append(path)
    return tuple(buffered)


def places(network: nn.Module, sites: Sequence[str]) -> dict[str, str]:
    """Each place of the network that holds a site's weights, by one of its paths: the site.

    Tied weights lie at several; a module that is used at several paths has one place.
    """
    owners = {id(network.get_buffer(name)): name for name in sites}
    return {
        f"{path}.{attribute}" if path else attribute: owners[id(buffer)]
        for path, module in network.named_modules()
        for attribute, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
        if id(buffer) in owners
    }


def weights_in_order(network: nn.Module, buffered: Container[str]) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a network, by its path: Bayesian, frozen or a point estimate.

    `buffered` are the paths of those that `make_room` made buffers; buffers of the network's own, such as
    positional encodings, are not weights.
    """
    for path, module in network.named_modules():
        for key, value in {**module._parameters, **module._buffers}.items():
            name = f"{path}.{key}" if path else key
            if value is not None and (key in module._parameters or name in buffered):
                yield name, value


def owner_of(network: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that holds what is at `path`, and its name there."""
    owner, _, attribute = path.rpartition(".")
    return network.get_submodule(owner), attribute


def _sites(
    network: nn.Module, prior: Prior, names: Sequence[str], prior_modules: Sequence[nn.Module]
) -> tuple[list[str], list[str]]:
    """The parameters with a prior, and the sites that the prior samples itself."""
    sites = []
    device = network.get_parameter(names[0]).device
    with isolated(device=device), poutine.block(), poutine.trace() as seen:
        for name in names:
            parameter = network.get_parameter(name).detach()
            try:
                distribution = prior.for_module(name, parameter, owner_of(network, name)[0])
                if distribution is not None:
                    trained = any(True for module in prior_modules for _ in module.parameters())
                    check_prior(name, distribution, parameter, trained=trained)
                    sites.append(name)
            except NotImplementedError as error:
                if "not implemented for" not in str(error):  # by torch in this precision
                    raise
                raise ValueError(
                    f"the prior of {name!r} cannot be drawn in {parameter.dtype} ({error}): fit in "
                    f"float32, and convert the posterior's model and guide afterwards"
                ) from error
    trace = prune_subsample_sites(seen.trace)
    hyper = [name for name in trace.stochastic_nodes if name not in sites]
    for name in hyper:
        if trace.nodes[name]["cond_indep_stack"]:
            shape = tuple(trace.nodes[name]["fn"].batch_shape)
            raise ValueError(
                f"the prior samples {name!r} in a plate, of shape {shape}; sample it without, and end its "
                f"distribution with .expand({shape}).to_event({len(shape)})"
            )
    return sites, hyper


def weight_names(network: nn.Module) -> dict[str, list[str]]:
    """Every name of each parameter, by the first of them: tied weights have several."""
    names: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {each[0]: each for each in names.values()}


def tied_buffers(network: nn.Module) -> dict[str, str]:
    """The path of each buffer that was met before, and the path where it was."""
    first: dict[int, str] = {}
    every = network.named_buffers(remove_duplicate=False)
    found = {path: first.setdefault(id(buffer), path) for path, buffer in every}
    return {path: name for path, name in found.items() if path != name}


def tie(network: nn.Module, tied: Mapping[str, str]) -> None:
    """Make the buffers at these paths one again, as `tied_buffers` found them."""
    for path, name in tied.items():
        module, attribute = owner_of(network, path)
        setattr(module, attribute, network.get_buffer(name))
