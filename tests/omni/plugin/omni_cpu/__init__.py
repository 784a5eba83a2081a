"""A platform for vLLM-Omni on the CPU, found by the entry point ``vllm_omni.platform_plugins``; for tests."""


def platform() -> str:
    """The class of the platform."""
    return "omni_cpu.platform.OmniCpuPlatform"
