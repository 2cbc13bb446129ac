"""OSML's Model-B: what can a service give away at this QoS slowdown? (OSML, Sec. 4.2)

Asked: the inputs of Model-A', and `qos_slowdown`, the QoS that may be lost (0.05: 5 %).
Answers: B-points, the cores and ways that can be taken, along three angles: `default` (the most of the machine),
`cores_dominated` (the most cores, then ways) and `cache_dominated` (the most ways, then cores).
Network: 40-40-40 ReLU, dropout 0 % (the paper: 30 %). Loss: absolute error, with the factor y / (y + c) of the paper's modified
MSE taken at its limit: where no policy exists there is no label, and what has no label does not count.
Labels: pipelines/fits/trade.py, from each allocation within `reach_steps` steps of the sweep from OAA that meets its QoS.

Differences from the paper: no dropout, and the absolute error for the squared one (both are what params.yaml says). The paper's
loss leaves out every output whose label is 0; here a 0 beside something that can be given (3 cores and no way) is a label, and
only points where nothing can be given are left out. QoS is capped at 1. Taking goes step by step and stops at a gap; its program
takes the last match of a scan, beyond gaps too, and its other two angles leave one resource alone. Memory utilisation and LLC
occupancy are no inputs.
"""

from __future__ import annotations

from models.features import MODEL_A_INPUTS
from models.osml_a import HIDDEN
from models.spec import Spec

ANGLES = ("default", "cores_dominated", "cache_dominated")
OUTPUTS = tuple(f"{angle}_{unit}" for angle in ANGLES for unit in ("cores", "ways"))

SPEC = Spec("osml-b", (*MODEL_A_INPUTS, "qos_slowdown"), OUTPUTS, HIDDEN, dropout=0.3)
