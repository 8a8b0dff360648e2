"""Phi-3.5-MoE: a mixture of experts with a router of its own."""
