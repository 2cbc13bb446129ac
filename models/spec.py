"""What a regression model is asked and answers: one `Spec` a model, each in its own file with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """A multi-layer perceptron that is fitted to labels (models/mlp.py, models/regression.py).

    Attributes:
        name: how the command line, the pipeline and the bundle call it.
        inputs, outputs: names, in order; a host or a data set may lack some (models/features.py).
        relative: inputs of the variant `relative` (models/relative.py); none where a model has no such variant.
        hidden: neurons of the hidden layers.
        dropout: rate behind each hidden layer, as the paper has it; params.yaml may set another.
        alone: learns from services without neighbours only, and has no input about any.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    hidden: tuple[int, ...]
    dropout: float
    alone: bool = False
    relative: tuple[str, ...] = ()

    def inputs_of(self, variant: str) -> tuple[str, ...]:
        """Inputs of a variant of params.yaml: `paper` or `relative`.

        Raises:
            ValueError: the model has no such variant.
        """
        found = {"paper": self.inputs, "relative": self.relative}.get(variant, ())
        if not found:
            raise ValueError(f"model {self.name} has no inputs {variant!r}; set `inputs: paper`")
        return found
