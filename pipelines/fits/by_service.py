"""Validation by service: what a network is stopped by is a service that it was not taught.

Planes of a service that is taught say little about one that is not: the epoch that fits them best has learnt the service by
heart. So some services are left out, the epoch is chosen on them, and then the network is trained with all services up to that
epoch. What comes out has seen every service, and was stopped by one that it had not. It takes two trainings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.fits.fitted import VAL_LOSS, Fitted
from pipelines.fits.tensors import Table

I64 = NDArray[np.int64]

LEAST_SERVICES = 3
"""Of fewer none can be left out: one would be taught, one asked about, and that says nothing of a third."""


def left_out(table: Table, rows: I64, share: float, seed: int) -> list[str]:
    """Services to validate on: a share of those that these rows are of, at least one; none where there are too few."""
    service = table.plane_labels["service"].to_numpy()
    names = sorted(set(service[np.unique(table.plane[rows])]))
    if len(names) < LEAST_SERVICES:
        return []
    names.sort(key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    return names[: max(1, round(share * len(names)))]


def split(table: Table, rows: tuple[I64, I64], share: float, seed: int) -> tuple[I64, I64] | None:
    """Rows to train and to validate on, whole services on either side; None where there are too few services.

    Args:
        rows: of planes to train and to validate on, by plane.
    """
    both = np.sort(np.concatenate(rows))
    names = left_out(table, both, share, seed)
    own = table.plane_labels["service"].is_in(names).to_numpy()[table.plane[both]]
    return (both[~own], both[own]) if names else None


def fit(once: Callable[..., Fitted], table: Table, rows: tuple[I64, I64], share: float | None, seed: int) -> Fitted:
    """Train twice: to find the epoch, and with all services up to it. By plane, once, where there are too few services.

    Args:
        share: of the services to validate on; None: by plane.
        once: trains with `rows` and, if `keep` is given, keeps the weights of that epoch.
        rows: of planes to train and to validate on, by plane.
    """
    apart = None if share is None else split(table, rows, share, seed)
    if apart is None:
        return once(rows=rows)
    first = once(rows=apart)
    losses = [epoch.get(VAL_LOSS, np.inf) for epoch in first.history]
    if first.stopped_early is not None:
        return first
    if not losses or not np.isfinite(losses).any():
        # the services left out say nothing of any epoch
        return once(rows=rows)
    both: tuple[I64, Any] = (np.sort(np.concatenate(rows)), np.empty(0, dtype=np.int64))
    again = once(rows=both, keep=int(np.nanargmin(losses)))
    # the losses that the epoch was chosen by
    return replace(again, history=first.history, steps=first.steps + again.steps, seconds=first.seconds + again.seconds)
