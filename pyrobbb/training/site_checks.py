"""Check that the sites of guide and model match."""

from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn

from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.draws import check_own, lacking, refuse_sites, stored_leaf
from pyrobbb.kl_weights import of_rows
from pyrobbb.priors import Learned


def check_made_for(model: BayesianNetwork, guide: nn.Module) -> None:
    """Raise ValueError if the guide was made for another network, or for a model that has no data yet."""
    (other,) = getattr(guide, "_model", None) or (None,)  # as Pyro's autoguides and ours keep it
    other = other.args[-1] if isinstance(other, partial) else other  # the autoguides' is wrapped
    if not isinstance(other, BayesianNetwork) or other is model:
        return
    if other.N is None or _shapes(other) != _shapes(model):
        raise ValueError(
            f"the guide was made for another model than the one that is fitted: pass "
            f"{type(guide).__name__}(model), or {type(guide).__name__} itself"
        )


def _shapes(model: BayesianNetwork) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.initial().items()}


def check_sites(model: nn.Module, guide: nn.Module, first: Split) -> None:
    """Raise ValueError unless the guide samples exactly the model's latent sites, in their shapes.

    Its parameters must be known to Pyro, too: without any, its ELBO silently takes no gradient.
    And it must give weights without data, as predictions ask for them.
    """
    with torch.no_grad():
        guide_trace = prune_subsample_sites(poutine.trace(guide).get_trace(first.x, first.y))
    model_trace = prune_subsample_sites(poutine.trace(model).get_trace(first.x, first.y))
    wanted = {k: model_trace.nodes[k]["value"].shape for k in model_trace.stochastic_nodes}
    drawn = {k: guide_trace.nodes[k] for k in guide_trace.stochastic_nodes}
    given = {k: site["value"].shape for k, site in drawn.items() if not site["infer"].get("is_auxiliary")}
    wrong = lacking(wanted, given)
    wrong += [f"site {k!r}, which the model lacks" for k in given if k not in wanted]
    wrong += [
        f"site {k!r} of shape {tuple(given[k])} instead of {tuple(wanted[k])}"
        for k in wanted
        if k in given and given[k] != wanted[k]
    ]
    refuse_sites(wrong)
    _check_parameters(guide, guide_trace)
    _check_leaves(model, model_trace, poutine.trace(model).get_trace(first.x, first.y))
    _check_draws(guide, first, wanted)


def check_latents(model: BayesianNetwork, first: Split) -> None:
    """Raise ValueError unless the model samples the latents that predictions give it, on its own device."""
    with isolated(device=model.device):
        for name in model.sites:
            with poutine.block():  # a prior may have sites of its own
                device = model.prior_of(name).sample().device
            if device != model.device:
                raise ValueError(
                    f"the prior of {name!r} draws weights on {device}, but the model lies on {model.device}: "
                    f"move the prior's constants to the parameter's device, as by scale.to(parameter)"
                )
        trace = poutine.trace(model).get_trace(first.x, first.y)
    sites, latents = trace.nodes, model.latents
    sampled = prune_subsample_sites(trace).stochastic_nodes
    if hidden := [name for name in sampled if name not in latents]:
        *path, attribute = hidden[0].split(".")
        if any(frame.name == "data" for frame in sites[hidden[0]]["cond_indep_stack"]):
            why = "a latent variable of each row is not supported: new rows have none"
        elif any(part == "likelihood" or part.startswith("prior") for part in path):
            why = f"define the attribute {attribute!r} before those that depend on it"
        else:
            why = (
                "sampled in forward it gets no posterior value in predictions: make it an attribute of the "
                "likelihood or prior, self.NAME = PyroSample(...)"
            )
        raise ValueError(f"the model samples {hidden[0]!r}, which is not one of its latent sites: {why}")
    if gone := [name for name in latents if name not in sampled]:
        raise ValueError(
            f"the model does not sample its site {gone[0]!r}: a handler in forward, such as condition or "
            f"block, hides it; to fix a weight, set its requires_grad = False before BayesianNetwork(...)"
        )
    if not any(of_rows(sites[name]) for name in trace.observation_nodes):
        raise ValueError('the model must observe y in the plate "data", which counts its rows N/B times')


def check_trainable(model: nn.Module, guide: nn.Module) -> None:
    """Raise ValueError if a parameter is frozen, which Pyro would train, or a prior cannot be learned."""
    for what, module, instead in (
        ("guide", guide, "rates={'NAME': 1e-6} all but stops one"),
        ("model", model, "freeze it in the network, before BayesianNetwork(network, ...)"),
    ):
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                raise ValueError(f"parameter {name!r} of the {what} is frozen; {instead}")
    if isinstance(guide, AutoDelta) and any(isinstance(module, Learned) for module in model.modules()):
        raise ValueError(
            "a learned prior and a point estimate (AutoDelta) have no optimum: the prior's scale and the "
            "weights would shrink together; use a guide that learns widths, such as MeanFieldNormal"
        )


def _check_parameters(guide: nn.Module, trace: Any) -> None:
    """Raise ValueError unless Pyro and the guide have the same parameters: the optimiser has the guide's."""
    check_own(guide, trace, "guide")
    hidden = [name for name, parameter in guide.named_parameters() if parameter.requires_grad]
    if hidden and not any(site["type"] == "param" for site in trace.nodes.values()):
        raise ValueError(
            f"Pyro does not see the guide's parameters {', '.join(hidden)}, so it would not train them; "
            f"derive {type(guide).__name__} from pyro.nn.PyroModule"
        )


def _check_leaves(model: nn.Module, trace: Any, again: Any) -> None:
    """Raise ValueError if a density depends on a parameter that is not the model's: nothing trains it.

    A leaf that each of two traces makes anew, as a network does that differentiates by its input, is none.
    """
    own = {id(parameter) for parameter in model.parameters()}
    names = {id(stored_leaf(s["value"])): name for name, s in trace.nodes.items() if s["type"] == "param"}
    there, kept = _leaves(trace), {id(leaf) for leaf in _leaves(again)}
    for leaf in there:
        if id(leaf) in kept - own:
            what = names.get(id(leaf), f"a tensor of shape {tuple(leaf.shape)}")
            raise ValueError(
                f"the model depends on {what}, which is not a parameter of its modules and would not be "
                f"trained: in a prior or likelihood make it an attribute, nn.Parameter or PyroParam; in a "
                f"network call the layer instead of keeping a reference to its weight"
            )


def _leaves(trace: Any) -> list[Tensor]:
    """The leaves of the graph that a trace's densities depend on."""
    trace.compute_log_prob()
    waiting = [site["log_prob"].grad_fn for site in trace.nodes.values() if site["type"] == "sample"]
    seen, found = {None}, []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += [follows for follows, _ in node.next_functions]
        leaf = getattr(node, "variable", None)
        found += [] if leaf is None else [leaf]
    return found


def _check_draws(guide: nn.Module, first: Split, wanted: Any) -> None:
    """Once trained, the guide must give weights without any data: the same ones."""
    device = first.x.device
    try:
        with torch.no_grad(), isolated(0, device=device):  # without advancing the training's own noise
            nodes = poutine.trace(guide).get_trace().nodes
    except TypeError as error:
        raise ValueError(
            f"the guide must give weights when called without data, for predictions; "
            f"write {type(guide).__name__}.forward(self, x=None, y=None) ({error})"
        ) from error
    with torch.no_grad(), isolated(0, device=device):
        beside = poutine.trace(guide).get_trace(first.x, first.y).nodes
    for name in wanted:
        if not bool(nodes[name]["value"].isfinite().all()):
            raise ValueError(
                f"the guide draws NaN or an infinite value for {name!r}: start it within the support of its "
                f"prior, as the initialisers of pyrobbb.initializers do"
            )
        if not torch.equal(nodes[name]["value"], beside[name]["value"]):
            raise ValueError(
                f"the guide draws a different {name!r} when given data, but predictions call it without "
                f"data; one posterior serves all inputs, so the guide must not use x or y"
            )
