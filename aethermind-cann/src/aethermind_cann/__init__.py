"""The Ascend NPU backend of AetherMind."""
