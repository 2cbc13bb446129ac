"""The learning pipeline: one module a DVC stage (label, train, evaluate, bundle)."""
