"""Adapters: one module per way of reaching a model."""
