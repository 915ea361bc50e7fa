"""Do model and guide speak of the same weights?"""

from __future__ import annotations

import torch
from pyro import poutine
from torch import nn

from pyrobbb.data.dataset import Split


def check_sites(model: nn.Module, guide: nn.Module, first: Split) -> None:
    """Raise ValueError unless the guide samples exactly the model's latent sites, in their shapes.

    Its parameters must be known to Pyro, too: without any, Pyro's ELBO takes no gradient and says nothing.
    """
    with torch.no_grad():
        guide_trace = poutine.trace(guide).get_trace(first.x, first.y)
        model_trace = poutine.trace(model).get_trace(first.x, first.y)
    wanted = {k: model_trace.nodes[k]["value"].shape for k in model_trace.stochastic_nodes if k != "data"}
    auxiliary = {k for k in guide_trace.stochastic_nodes if guide_trace.nodes[k]["infer"].get("is_auxiliary")}
    given = {
        k: guide_trace.nodes[k]["value"].shape for k in guide_trace.stochastic_nodes if k not in auxiliary
    }
    wrong = [f"no site {k!r}" for k in wanted if k not in given]
    wrong += [f"site {k!r}, which the model lacks" for k in given if k not in wanted]
    wrong += [
        f"site {k!r} of shape {tuple(given[k])} instead of {tuple(wanted[k])}"
        for k in wanted
        if k in given and given[k] != wanted[k]
    ]
    if wrong:
        raise ValueError(f"the guide's sites do not match the model's; the guide has {'; '.join(wrong)}")
    known = any(site["type"] == "param" for site in guide_trace.nodes.values())
    hidden = [name for name, parameter in guide.named_parameters() if parameter.requires_grad]
    if hidden and not known:
        raise ValueError(
            f"Pyro does not see the guide's parameters {', '.join(hidden)}, so it would not train them; "
            f"derive {type(guide).__name__} from pyro.nn.PyroModule"
        )
