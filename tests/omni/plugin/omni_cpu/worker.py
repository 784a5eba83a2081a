"""Workers of a speech pipeline: vLLM's CPU worker with vLLM-Omni's model runners over vLLM's CPU runner."""

from __future__ import annotations

# First: it prepares the shared memory of the processes, before any other module of vLLM.
import vllm.v1.worker.cpu_worker as cpu_worker  # isort: skip
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm_omni.worker.gpu_ar_model_runner import GPUARModelRunner
from vllm_omni.worker.gpu_generation_model_runner import GPUGenerationModelRunner
from vllm_omni.worker.mixins import OmniWorkerMixin


class _Runner(CPUModelRunner):
    def load_model(self, *args: object, **options: object) -> None:
        # vLLM leaves the size of graphs unset where there are none; vLLM-Omni takes a maximum with it.
        if self.compilation_config.max_cudagraph_capture_size is None:
            self.compilation_config.max_cudagraph_capture_size = 0
        super().load_model(*args, **options)


# The order of the bases puts vLLM's CPU runner between vLLM-Omni's runner and vLLM's GPU runner.
class ArRunner(GPUARModelRunner, _Runner):
    """Runs a stage that generates token by token."""


class GenerationRunner(GPUGenerationModelRunner, _Runner):
    """Runs a stage that generates its output at once."""


class _Worker(OmniWorkerMixin, cpu_worker.CPUWorker):
    model_runner_cls: type[CPUModelRunner]
    """vLLM-Omni looks at this attribute before it starts the worker."""

    def init_device(self) -> None:
        # The second runner needs Triton.
        self.use_v2_model_runner = False
        # vLLM's CPU worker makes its runner of this name.
        cpu_worker.CPUModelRunner = self.model_runner_cls
        super().init_device()


class ArWorker(_Worker):
    """The worker of a stage that generates token by token."""

    model_runner_cls = ArRunner


class GenerationWorker(_Worker):
    """The worker of a stage that generates its output at once."""

    model_runner_cls = GenerationRunner
