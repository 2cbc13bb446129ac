"""The learning pipeline: one module a DVC stage (label, train, evaluate, bundle)."""

import logging

# Importing Lightning makes PyTorch tell of an optional package for GPUs; nothing here runs on one.
logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
