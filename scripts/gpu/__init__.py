"""The first runs on a GPU: a kit for machines without a network, and a proof (docs/gpu.md)."""
