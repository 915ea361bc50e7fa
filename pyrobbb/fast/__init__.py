"""The fast path: Pyro's `Trace_ELBO`, computed in far fewer passes over the weights.

`choose` decides which way a training steps. `mean_field` is the step for independent normals, made of
`noise` (many normals at vector speed), `kl` (draw, score and differentiate in one pass) and the network.
`record` records and compiles tensor programs, `cheap` says how soft-plus is written in them, `inject`
hands Pyro the noise that the fast path drew, so that both can be compared.
"""

from pyrobbb.fast.choose import FAST, make_step

__all__ = ["FAST", "make_step"]
