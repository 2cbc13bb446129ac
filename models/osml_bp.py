"""OSML's Model-B', the shadow of Model-B: what QoS is lost if this is taken away? (OSML, Sec. 4.2)

Asked: the inputs of Model-A', and the allocation that is left (`expected_cores`, `expected_cache_mb`).
Answers: `qos_slowdown`, the QoS before minus the QoS after (target / p99, at most 1): 0.0787 is 7.87 %.
Network: 40-40-40 ReLU, dropout 0 % (the paper: 30 %). Loss: absolute error.
Material: from allocations within `reach_steps` steps of the sweep from OAA, to those with up to `take_steps` steps fewer of cores
and of ways.

Differences from the paper: no dropout; the absolute error (the authors' program: squared). params.yaml says both. QoS is capped
at 1. Memory utilisation and LLC occupancy are no inputs.
"""

from __future__ import annotations

from models.features import MODEL_B_INPUTS
from models.osml_a import HIDDEN
from models.spec import Spec

SPEC = Spec("osml-bp", MODEL_B_INPUTS, ("qos_slowdown",), HIDDEN, dropout=0.3)
