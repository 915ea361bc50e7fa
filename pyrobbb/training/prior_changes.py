"""A prior that changes while the steps keep it as it was at first."""

from torch import Tensor

from pyrobbb._support.distribution_parts import own_tensors, univariate
from pyrobbb._support.flat import identical, without_expansion
from pyrobbb.bnn import BayesianNetwork


class KeptPrior:
    """The prior as it was when the steps were made, if they do not ask it again.

    Args:
        model: The Pyro model.
        live: Whether a parameter that is a buffer of the prior's own is read at each step, and so may change.
    """

    def __init__(self, model: BayesianNetwork, *, live: bool) -> None:
        self.model, self.live = model, live
        self.constants = self._now()

    def check(self) -> None:
        """Raise ValueError if the prior has changed."""
        for name, value in self._now().items():
            if name in self.constants and not identical(self.constants[name], value):
                instead = "this method keeps the prior that it starts with"
                if self.live:
                    instead = (
                        "train with fast='off', or pass a buffer of the prior directly to its distribution"
                    )
                raise ValueError(
                    f"the prior's {name} changed in training, and the steps did not see it: {instead}"
                )

    def _now(self) -> dict[str, Tensor]:
        """The parameters of each weight's prior that the steps keep; none where some are drawn or trained."""
        model = self.model
        if model.other_latents or model.prior_parameters:
            return {}
        live = [buffer for buffer in model.prior_buffers if self.live and buffer.numel()]
        read = {buffer.untyped_storage().data_ptr() for buffer in live}
        found = {}
        for name in model.sites:
            base = univariate(prior := model.prior_of(name))
            own = {key: getattr(base, key, None) for key in getattr(base, "arg_constraints", {})}
            parts = own or dict(enumerate(own_tensors(prior)))  # of a mixture or a transformed one
            for key, value in parts.items():
                if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in read:
                    found[f"{name}.{key}"] = without_expansion(value.detach()).clone()
        return found
