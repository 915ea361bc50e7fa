"""Launches and bytes of a step on CUDA, from the code that inductor generates without a device.

`python -m benchmarks.generated [--json FILE]` prints and keeps them. Nothing is executed, so neither CUDA
nor Triton is needed: the tensors are fake, and the properties of a device are given. A byte counts once for
each kernel that reads or writes it. Tensors of less than `SMALL` bytes, such as the activations, are counted
apart: they stay in the second-level cache.
"""

import argparse
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from benchmarks.steps import network, rows
from pyrobbb._support.files import make_folder, write_json
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import fast_math
from pyrobbb.accelerated.cuda_rewrites import rewritten
from pyrobbb.accelerated.dispatch import element_wise
from pyrobbb.accelerated.record import lift, record
from pyrobbb.accelerated.updates import Update
from pyrobbb.accelerated.whole_step import whole_program
from pyrobbb.data.dataset import Split
from pyrobbb.mean_field import MeanFieldNormal

SMALL = 1_000_000
ADAM = partial(torch.optim.Adam, lr=1e-3)
CASES = {  # the optimiser, and whether products are in TF32
    "Adam": (ADAM, False),
    "Adam, TF32": (ADAM, True),
    "SGD": (partial(torch.optim.SGD, lr=1e-3), False),
    "SGD with momentum": (partial(torch.optim.SGD, lr=1e-3, momentum=0.9), False),
}
HOPPER = SimpleNamespace(
    name="a mocked device", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32, total_memory=140 << 30,
    shared_memory_per_block=49152, L2_cache_size=50 << 20, gcnArchName="",
)  # fmt: skip


class Kernel(NamedTuple):
    """A launch, and the bytes that it reads and writes."""

    name: str
    large: int
    small: int


class _Generated(BaseException):
    """Ends a compilation once its code is there."""


def step_kernels(case: str = "Adam") -> list[Kernel]:
    """The launches of one step of this library, at 2x1200, batch 128 and one sample, the noise first."""
    optimizer, tf32 = CASES[case]
    with isolated(0):
        model = network(1200)
        guide = MeanFieldNormal(model)
        batch = rows()
        guide(*batch)
        update = Update(optimizer(guide.parameters()))
        program = whole_program(model, guide, element_wise(model, guide, Split(*batch)), update, 1)
        noise = torch.zeros(1, guide.loc.numel())
        state = update.state()
        inputs = [noise, torch.ones(()), update.rates(1)[0], *batch, torch.ones(len(batch[0])), *state]
        with mock.patch.object(fast_math, "written_out", return_value=False):
            graph, held = lift(record(program, inputs), len(inputs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's deprecations of its own functions
            return [Kernel("normal_", noise.nbytes, 0), *kernels(graph, [*inputs, *held], tf32)]


def kernels(graph: GraphModule, inputs: Sequence[Tensor], tf32: bool = False) -> list[Kernel]:
    """The launches of a recorded program, as if its inputs were on CUDA."""
    code, scheduled = generated(_on_cuda(graph, inputs, tf32))
    names = re.findall(r"^\s+(?:\w+ = )?(\w+(?:\.\w+)*)(?:\.run|)\(.*$", code, re.MULTILINE)
    names = [n for n in names if n.startswith(("triton_", "extern_kernels.", "torch.ops."))]
    assert len(names) == len(scheduled), (names, scheduled)
    return [Kernel(name, *counted) for name, counted in zip(names, scheduled, strict=True)]


def generated(graph: GraphModule) -> tuple[str, list[tuple[int, int]]]:
    """Inductor's code for a program on CUDA; bytes in large and in small tensors of each of its launches."""
    from torch._inductor import config, standalone_compile
    from torch._inductor.graph import GraphLowering

    code: list[str] = []
    counts: list[tuple[int, int]] = []

    def stop(lowering: Any) -> None:
        code.append(lowering.codegen()[0].value)
        counts.extend(_bytes(lowering, node) for node in lowering.scheduler.nodes if _launches(node))
        raise _Generated

    options = {
        "fallback_random": True,
        "shape_padding": False,
        "joint_graph_constant_folding": False,
        "force_disable_caches": True,
    }
    example = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    stopped = mock.patch.object(GraphLowering, "compile_to_module", stop)
    with _mocked_device(), stopped, config.patch(options), suppress(_Generated):
        standalone_compile(graph, example, dynamic_shapes="from_graph")
    return code[0][code[0].index("def call(") :], counts


def _on_cuda(graph: GraphModule, inputs: Sequence[Tensor], tf32: bool) -> GraphModule:
    """The program as it would have been recorded on CUDA."""
    device = torch.device("cuda", 0)
    with FakeTensorMode():
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in inputs]
    left = iter(fakes)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            node.meta["val"] = next(left)
    for node in rewritten(graph, tf32=tf32).graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", device)
    graph.recompile()
    return graph


@contextmanager
def _mocked_device() -> Iterator[None]:
    """What inductor asks of a CUDA device, answered without one."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.fx_passes import joint_graph

    def properties(*args: Any) -> Any:
        return HOPPER

    with ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "get_device_properties", properties),
            (torch.cuda, "get_device_capability", lambda *args: (9, 0)),
            (torch.cuda, "get_rng_state", lambda *args: torch.get_rng_state()),
            (torch.cuda, "set_rng_state", lambda *args: None),
            (torch.cuda, "synchronize", lambda *args: None),
            (CudaInterface, "get_device_properties", staticmethod(properties)),
            (CudaInterface, "current_device", staticmethod(lambda: 0)),
            (scheduler, "has_triton", lambda: True),
            (torch.utils._triton, "triton_hash_with_backend", lambda: ""),
            (PythonWrapperCodegen, "generate_and_run_autotune_block", lambda self: None),
            (joint_graph, "lazy_init", lambda *args: None),  # patterns of attention, traced on the device
            (torch.Tensor, "copy_", _copy),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def _copy(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """`Tensor.copy_` looks for the device before it finds that the tensor is fake."""
    result: Tensor = torch.ops.aten.copy_.default(self, source, non_blocking)
    return result


def _launches(node: Any) -> bool:
    from torch._inductor.ir import MultiOutput
    from torch._inductor.scheduler import NopKernelSchedulerNode

    return not isinstance(node, NopKernelSchedulerNode) and not isinstance(node.node, MultiOutput)


def _bytes(lowering: Any, node: Any) -> tuple[int, int]:
    """Bytes in large and in small tensors that one launch reads and writes."""
    if node.is_extern():
        results = getattr(node.node, "outputs", None) or [node.node]  # a call of torch's own has its apart
        parts = [*node.node.inputs, *results]
        sizes = [_size(part.get_numel(), part.get_dtype()) for part in parts]
    else:
        # how often the body runs: a load at an index that is looked up counts as all of its tensor otherwise
        elements = max(math.prod(map(int, chain(*part.get_ranges()))) for part in node.get_nodes())
        written = {dep.name for dep in node.read_writes.writes}
        touched: dict[str, int] = {}
        for dep in [*node.read_writes.reads, *node.read_writes.writes]:
            inner = dep in node.read_writes.reads and dep.name in written
            if inner or dep.name in lowering.removed_buffers:
                continue
            buffer = lowering.get_buffer(dep.name)
            most = _size(buffer.get_numel(), buffer.get_dtype())
            accessed = _size(min(dep.get_numel(), elements), buffer.get_dtype())
            touched[dep.name] = max(touched.get(dep.name, 0), min(most, accessed))
        sizes = list(touched.values())
    return sum(s for s in sizes if s >= SMALL), sum(s for s in sizes if s < SMALL)


def _size(count: Any, dtype: torch.dtype) -> int:
    return int(count) * dtype.itemsize


PARTS = {
    "noise": ("normal_",),
    "weights and KL": ("triton_per_fused_abs",),
    "products": ("extern_kernels", "torch.ops"),
    "loss, activations, biases": ("triton_per_fused_add", "triton_red", "triton_poi_fused_add"),
    "KL gradient, chain rule, optimiser": ("triton_poi_fused_abs",),
}


def table(found: dict[str, Any]) -> str:
    """The counts of a record as Markdown, by parts of a step."""
    lines = ["| part | " + " | ".join(f"{name}: launches | MB" for name in CASES) + " |"]
    lines.append("|---" * (1 + 2 * len(CASES)) + "|")
    for part, prefix in PARTS.items():
        each = [[k for k in found[name]["kernels"] if k[0].startswith(prefix)] for name in CASES]
        cells = [f"{len(kernels)} | {sum(k[1] for k in kernels) / 1e6:.0f}" for kernels in each]
        lines.append(f"| {part} | " + " | ".join(cells) + " |")
    cells = [f"{found[name]['launches']} | {found[name]['MB']:.0f}" for name in CASES]
    return "\n".join([*lines, "| all | " + " | ".join(cells) + " |"])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generated", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the counts there too")
    options = parser.parse_args()
    version = torch.__version__.partition("+")[0]
    found: dict[str, Any] = {"torch": version, "network": "784-1200-1200-10", "batch": 128}
    for name in CASES:
        each = step_kernels(name)
        large, small = (sum(getattr(k, size) for k in each) / 1e6 for size in ("large", "small"))
        print(f"{name}: {len(each)} launches, {large:.0f} MB, and {small:.0f} MB in small tensors")
        found[name] = {
            "launches": len(each),
            "MB": round(large, 1),
            "MB_of_small_tensors": round(small, 1),
            "kernels": [[k.name[:60], k.large, k.small] for k in each],
        }
    print(table(found))
    if options.json:
        make_folder(options.json.parent)
        write_json(options.json, found)


if __name__ == "__main__":
    main()
