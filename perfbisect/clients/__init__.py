"""Load generators: a cell -> the client's command; its result -> measurements."""

from __future__ import annotations

from perfbisect.clients import (
    diffusion_bench,
    multi_turn_bench,
    offline_bench,
    omni_bench,
    sglang_bench,
    vllm_bench,
)
from perfbisect.clients.base import Client

CLIENTS: dict[str, Client] = {
    client.name: client
    for client in (
        vllm_bench.CLIENT,
        omni_bench.CLIENT,
        diffusion_bench.CLIENT,
        offline_bench.CLIENT,
        multi_turn_bench.CLIENT,
        sglang_bench.CLIENT,
    )
}

__all__ = ["CLIENTS", "Client"]
