"""OSML's Model-A', the shadow of Model-A for services with neighbours (OSML, Sec. 4.1).

Asked: the inputs of Model-A, and what the neighbours hold and use: cores, cache, bandwidth.
Answers: as models/osml_a.py.
Network: 40-40-40 ReLU, dropout 0 % (the paper: 30 %). Loss: absolute error, as models/osml_a.py. It learns from services alone,
too: that is what no neighbours look like.

Differences from the paper: as models/osml_a.py.
"""

from __future__ import annotations

from models.features import MODEL_A_INPUTS, MODEL_A_OUTPUTS
from models.osml_a import HIDDEN
from models.spec import Spec

SPEC = Spec("osml-ap", MODEL_A_INPUTS, MODEL_A_OUTPUTS, HIDDEN, dropout=0.3)
