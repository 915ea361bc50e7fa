"""The fast path: Pyro's `Trace_ELBO`, computed in far fewer passes over the weights.

`dispatch` chooses the step of a training, once its `agreement` with Pyro's is seen, and `compilation_cost`
whether it is compiled. `mean_field_step` is the step for many independent normals, made of `rng` (normals at
vector speed), `fused_kl` (the gradient; draw, score and differentiate in one pass, under the prior's
`prior_segments`) and the network. `program_step` runs one of the `programs` instead: all of a small network's
step, or what Pyro runs for any guide; `local_program` has its noise on the layers' outputs (`local_noise`),
and `whole_step`, on CUDA, the optimiser (`updates`) in its program. `batched_step` and `batched_update` take
the steps of several chains at once, the second with Adam in the program. `record` and `compile` work on
tensor programs, `fast_math` defines soft-plus in them, `cuda_rewrites` saves launches, `cuda_graph` turns
steps into one CUDA graph, and runs the graphs of several chains side by side. `replay_noise` gives Pyro the
noise that the fast path drew, so that both can be compared.
"""

from pyrobbb.accelerated.compilation_cost import FAST
from pyrobbb.accelerated.cuda_graph import GraphStep
from pyrobbb.accelerated.dispatch import ESTIMATORS, make_step

__all__ = ["ESTIMATORS", "FAST", "GraphStep", "make_step"]
