"""Model-B of OSML+: what would another allocation mean? (OSML+, Sec. 3.2 (2))

Asked: counters of one sample, what the neighbours hold, and an expected allocation (`expected_cores`, `expected_cache_mb`): the
one after the move, counted from 1 as the allocation itself is, never the change.
Answers: QoS there, target / p99, capped (`qos_cap`).
Network: 32-64-32 ReLU, dropout 0 % (the paper: 30 %). Loss: squared error (models/regression.py). Dropout and loss are what
params.yaml says.
Material: every sample asked about other allocations of its plane, a new one each pass (pipelines/fits/tensors.py,
`QosQuestions`).

The variant `relative` has the inputs of models/relative.py instead (params.yaml, `inputs`).

Differences from the paper: no dropout; half of the questions (`near_share`) are about allocations a few steps away; the label is
capped; p99 for latency.
"""

from __future__ import annotations

from models.features import MODEL_B_INPUTS, MODEL_B_OUTPUTS
from models.mlp import HIDDEN
from models.relative import MODEL_B_RELATIVE
from models.spec import Spec

SPEC = Spec("b", MODEL_B_INPUTS, MODEL_B_OUTPUTS, HIDDEN, dropout=0.3, relative=MODEL_B_RELATIVE)
