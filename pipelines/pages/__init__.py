"""Pages, charts and cards: what the pipelines show. No stage computes with them."""
