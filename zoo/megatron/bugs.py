"""The bugs of megatron-core; importing this registers them, and needs the package."""

from __future__ import annotations

from zoo.megatron.cpu import on_cpu

with on_cpu():
    from zoo.megatron import paper, special, step, upstream

__all__ = ["paper", "special", "step", "upstream"]
