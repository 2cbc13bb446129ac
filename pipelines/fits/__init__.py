"""How rows become tensors, and tensors weights: one file a kind of model, and what they share."""
