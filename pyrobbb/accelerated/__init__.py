"""The fast path: Pyro's `Trace_ELBO`, computed in far fewer passes over the weights.

`choose` decides which way a training steps. `mean_field` is the step for many independent normals, made of
`noise` (normals at vector speed), `kl` (draw, score and differentiate in one pass) and the network.
`program_step` runs one of the `programs` instead: all of a small network's step, or what Pyro runs for any
guide. `record` records and compiles tensor programs, `cheap` says how soft-plus is written in them,
`graph` turns a step into one CUDA graph. `inject` hands Pyro the noise that the fast path drew, so that
both can be compared.
"""

from pyrobbb.accelerated.cuda_graph import GraphStep
from pyrobbb.accelerated.dispatch import FAST, make_step

__all__ = ["FAST", "GraphStep", "make_step"]
