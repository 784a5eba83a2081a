"""Attention of diffusion: vLLM-Omni's own in plain torch, which asks which of its known platforms this is."""

from __future__ import annotations

from vllm_omni.diffusion.attention.backends.sdpa import SDPABackend, SDPAImpl


class AttentionImpl(SDPAImpl):
    """The form for CUDA, which calls torch alone."""

    forward = SDPAImpl.forward_cuda


class Attention(SDPABackend):
    """Chosen by the platform."""

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        return AttentionImpl
