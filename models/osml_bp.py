"""OSML's Model-B', the shadow of Model-B: what QoS is lost if this is taken away? (OSML, Sec. 4.2)

Asked: the inputs of Model-A', and the allocation that is left (`expected_cores`, `expected_cache_mb`).
Answers: `qos_slowdown`, the QoS before minus the QoS after (target / p99, at most 1): 0.0787 is 7.87 %.
Network: 40-40-40 ReLU, dropout 30 %. Loss: mean squared error.
Material: from allocations near OAA, to those with no more cores and no more ways, a few of each less.

Differences from the paper: QoS is capped at 1. Memory utilisation and LLC occupancy are no inputs.
"""

from __future__ import annotations

from models.features import MODEL_B_INPUTS
from models.osml_a import HIDDEN
from models.spec import Spec

SPEC = Spec("osml-bp", MODEL_B_INPUTS, ("qos_slowdown",), HIDDEN, dropout=0.3)
