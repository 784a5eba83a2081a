# ruff: noqa: ARG003 - arguments are the interface's
"""The platform: vLLM's own of the CPU, and what vLLM-Omni asks of a platform beside it."""

from __future__ import annotations

import psutil
import torch
from vllm.platforms.cpu import CpuPlatform
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum


class OmniCpuPlatform(OmniPlatform, CpuPlatform):
    """Stages on the CPU, without graphs."""

    _omni_enum = OmniPlatformEnum.OOT

    @classmethod
    def get_omni_ar_worker_cls(cls) -> str:
        return "omni_cpu.worker.ArWorker"

    @classmethod
    def get_omni_generation_worker_cls(cls) -> str:
        return "omni_cpu.worker.GenerationWorker"

    @classmethod
    def get_default_stage_config_path(cls) -> str:
        return "vllm_omni/model_executor/stage_configs"

    @classmethod
    def get_diffusion_attn_backend_cls(cls, selected_backend: str | None, head_size: int, **_: object) -> str:
        return "omni_cpu.attention.Attention"

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        # Compiling the code predictor takes longer than a test has.
        return False

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
        return torch.device("cpu")

    @classmethod
    def get_device_count(cls) -> int:
        return 1

    @classmethod
    def get_device_version(cls) -> str | None:
        return None

    @classmethod
    def synchronize(cls) -> None:
        return None

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:
        return psutil.virtual_memory().available

    @classmethod
    def get_device_memory(cls, device: torch.device | None = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return psutil.virtual_memory().total

    # Peaks are the device's: a process of the CPU has none of its own.

    @classmethod
    def reset_peak_memory_stats(cls) -> None:
        return None

    @classmethod
    def max_memory_reserved(cls) -> int:
        return 0

    @classmethod
    def max_memory_allocated(cls) -> int:
        return 0

    @classmethod
    def empty_cache(cls) -> None:
        return None
