"""The networks: Model-A and Model-B (MLP), Model-C (DDPG), their features and their export."""
