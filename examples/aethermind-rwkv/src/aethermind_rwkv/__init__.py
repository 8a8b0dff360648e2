"""RWKV-4: layers with a state and operators of their own."""
