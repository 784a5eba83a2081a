"""Do the compiled files of the installed vLLM run on this device? Compares three kernels with torch.

Run by the interpreter that has vLLM: ``python smoke.py [--import]``; with ``--import`` the files are only
imported, which needs no device. Exits with 0 if all holds; a kernel that differs ends in a traceback.
"""

from __future__ import annotations

import importlib
import sys
import time

COMPILED = (
    "vllm._C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.cumem_allocator",
    "vllm.spinloop",
    "vllm.fs_io_C",
    "vllm._rust_tool_parser",
)


def compare_kernels() -> None:
    """RMS norm, SiLU and multiply, and flash attention 3, each with what torch computes."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention, silu
    from vllm import _custom_ops
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def check(name: str, ours: torch.Tensor, reference: torch.Tensor, atol: float) -> None:
        torch.testing.assert_close(ours.float(), reference.float(), atol=atol, rtol=0.05)
        print(f"{name} agrees with torch", flush=True)

    x, weight = draw(64, 4096), draw(4096)
    normed = torch.empty_like(x)
    _custom_ops.rms_norm(normed, x, weight, 1e-5)
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    check("rms_norm", normed, scaled.to(x.dtype) * weight, 0.1)

    gated = torch.empty(64, 2048, device="cuda", dtype=torch.bfloat16)
    torch.ops._C.silu_and_mul(gated, x)
    check("silu_and_mul", gated, silu(x[:, :2048].float()) * x[:, 2048:].float(), 0.1)

    query, key = draw(128, 32, 128), draw(128, 8, 128)
    ends = torch.tensor([0, 128], device="cuda", dtype=torch.int32)
    attended = flash_attn_varlen_func(
        query, key, key, max_seqlen_q=128, cu_seqlens_q=ends, max_seqlen_k=128, cu_seqlens_k=ends,
        causal=True, fa_version=3,
    )  # fmt: skip
    keys = key.repeat_interleave(4, 1).transpose(0, 1)
    reference = scaled_dot_product_attention(query.transpose(0, 1), keys, keys, is_causal=True)
    check("flash attention 3", attended, reference.transpose(0, 1), 0.05)
    torch.cuda.synchronize()


def main() -> int:
    """Import, and compare unless told otherwise."""
    began = time.monotonic()
    import torch

    for name in COMPILED:
        importlib.import_module(name)
    seconds = time.monotonic() - began
    print(f"torch {torch.__version__}, {len(COMPILED)} compiled files imported in {seconds:.1f} s")
    if "--import" not in sys.argv[1:]:
        print(f"{torch.cuda.get_device_name()}, capability {torch.cuda.get_device_capability()}", flush=True)
        compare_kernels()
    print(f"done after {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
