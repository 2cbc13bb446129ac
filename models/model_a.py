"""Model-A of OSML+: where is the optimum? (OSML+, Sec. 3.2 (1))

Asked: counters of one sample of a service, at whatever allocation it holds, and what its neighbours hold.
Answers: OAA (cores, ways, bandwidth) and RCliff (cores, ways) of the service at its present load.
Network: 32-64-32 ReLU, dropout 5 % (the paper: 30 %). Loss: absolute error; a label that is bounded costs nothing within its
bounds, and one that is missing nothing at all (models/regression.py). Dropout and loss are what params.yaml says.

The variant `relative` has the inputs of models/relative.py instead (params.yaml, `inputs`).

Differences from the paper: its dropout is six times ours, and its authors' program never switches it on. The loss is the absolute
error, which is what the paper reports; the authors' program takes the square. The outputs are standardised for training. The
authors' program has no bandwidth among the outputs and counts cache in MB.
"""

from __future__ import annotations

from models.features import MODEL_A_INPUTS, MODEL_A_OUTPUTS
from models.mlp import HIDDEN
from models.relative import MODEL_A_RELATIVE
from models.spec import Spec

SPEC = Spec("a", MODEL_A_INPUTS, MODEL_A_OUTPUTS, HIDDEN, dropout=0.3, relative=MODEL_A_RELATIVE)
