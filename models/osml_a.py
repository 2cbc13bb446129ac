"""OSML's Model-A: where is the optimum of a service that runs alone? (OSML, Sec. 4.1)

Asked: counters of one sample of a service without neighbours.
Answers: OAA (cores, ways, bandwidth) and RCliff (cores, ways).
Network: 40-40-40 ReLU, dropout 0 % (the paper: 30 %). Loss: absolute error, bounds as in models/model_a.py; Adam. Dropout and
loss are what params.yaml says.

Differences from the paper: no dropout; the absolute error (the authors' program: squared). Memory utilisation and LLC occupancy
are no inputs (OSML+ dropped them, and its Table 3 is what a sample holds). Cache is counted in MB as an input and in ways as an
output. Its program has no bandwidth among the outputs.
"""

from __future__ import annotations

from models.features import MODEL_A_INPUTS, MODEL_A_OUTPUTS
from models.spec import Spec

HIDDEN = (40, 40, 40)
ALONE_INPUTS = tuple(name for name in MODEL_A_INPUTS if not name.startswith("nb_"))

SPEC = Spec("osml-a", ALONE_INPUTS, MODEL_A_OUTPUTS, HIDDEN, dropout=0.3, alone=True)
