"""What other load generators and suites write, read into one form, or refused in one line.

What must hold of every row:
- It is of one run. A log with several gives several rows, or an error; no row has one run's rate with another's latency.
- It has no percentile without the number of requests that it is of, and a verdict (worth.py: the load generator's own rules).
- It has no number that the file does not hold or imply. What the file does not tell is None, and `reason` says what is missing.
- A run that failed gives no row.

    python -m collection.adapters TOOL FILE [--json] [--duration-s S] [--offered-rps R] [--update-frac F]

What holds between the tools is in measured.py (a row), worth.py (verdicts), words.py (numbers and lines), reading.py (a file) and
command.py; one further file a tool.
"""

from .command import main
from .measured import Known, Measured
from .reading import ANY, TOOLS, read

__all__ = ["ANY", "TOOLS", "Known", "Measured", "main", "read"]
