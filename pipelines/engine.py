"""Where samples are reduced: DuckDB in this process, or Spark. Which one is `samples.engine` in params.yaml; what is computed is
written once, in pipelines/reduce.py, and comes out the same to the last bit (docs/decisions/engines.md).

Which Spark is said where every Spark program is told: `spark.master` in the folder SPARK_CONF_DIR (or in
PYSPARK_SUBMIT_ARGS), or SPARK_REMOTE for Spark Connect; without any of them Spark starts on this machine.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from pipelines.errors import BadInput, PipelineError
from pipelines.params import Samples

if TYPE_CHECKING:
    import ibis.expr.types as ir

BATCH = 256  # shards whose rows DuckDB numbers at a time: about five million rows


class Engine(Protocol):
    """Attributes:
    batch: shards that a query which keeps its rows in memory may read at once; None: any number.
    """

    batch: int | None

    def samples(self, shards: Sequence[Path]) -> ir.Table:
        """The shards' columns, and each sample's address: `shard` (`name` of its file) and `row`, from 0."""

    def name(self, shard: Path) -> str:
        """What the column `shard` says for a file."""

    def table(self, frame: pl.DataFrame) -> ir.Table:
        """A small table beside the samples."""

    def collect(self, table: ir.Table) -> pl.DataFrame:
        """Compute; rows come in no order."""


@contextmanager
def connect(p: Samples) -> Iterator[Engine]:
    """The engine that params.yaml names.

    Raises:
        BadInput: it is not installed here; says what to install.
        PipelineError: it failed.
    """
    with _spark() if p.engine == "spark" else _duckdb(p) as engine:
        yield engine


class _Failed(PipelineError):
    """The engine's own error, in one line."""

    def __init__(self, engine: str, error: Exception, remedy: str) -> None:
        said = " ".join(str(error).split())
        super().__init__(f"{engine}: {said[:400]}; {remedy}")


class _DuckDb:
    batch: int | None

    def __init__(self, connection: Any) -> None:
        self.batch = BATCH
        self._con = connection
        self._tables = 0

    def _next(self) -> str:
        self._tables += 1
        return f"t{self._tables}"

    def samples(self, shards: Sequence[Path]) -> ir.Table:
        # DuckDB takes names for patterns.
        files = [glob.escape(self.name(shard)) for shard in shards]
        try:
            table = self._con.read_parquet(files, table_name=self._next(), filename=True, file_row_number=True)
        except self._error as error:
            raise self._failed(error) from None
        return table.rename(shard="filename", row="file_row_number")

    def name(self, shard: Path) -> str:
        return os.path.abspath(shard)  # as Ibis calls it

    def table(self, frame: pl.DataFrame) -> ir.Table:
        return self._con.create_table(self._next(), frame.to_arrow(), temp=True)

    def collect(self, table: ir.Table) -> pl.DataFrame:
        try:
            found = pl.from_arrow(self._con.to_pyarrow(table))
        except self._error as error:
            raise self._failed(error) from None
        assert isinstance(found, pl.DataFrame)
        return found

    @property
    def _error(self) -> type[Exception]:
        import duckdb

        return duckdb.Error

    def _failed(self, error: Exception) -> PipelineError:
        return _Failed("DuckDB", error, "is a shard damaged (`surefoot campaign verify` says), or samples.memory_mb too small?")


@contextmanager
def _duckdb(p: Samples) -> Iterator[Engine]:
    try:
        import ibis

        ibis.duckdb  # noqa: B018  loads the back end
    except ImportError as error:
        raise BadInput(f"samples.engine is 'duckdb', but {error.name or error} is not installed; run `make python`") from None
    # What does not fit the memory limit is written here.
    with tempfile.TemporaryDirectory(prefix="surefoot-duckdb-") as spill:
        connection = ibis.duckdb.connect(
            threads=p.threads or len(os.sched_getaffinity(0)),
            memory_limit=f"{p.memory_mb}MiB",
            temp_directory=spill,
            preserve_insertion_order=False,
            autoinstall_known_extensions=False,
            autoload_known_extensions=False,
        )
        try:
            yield _DuckDb(connection)
        finally:
            connection.disconnect()


class _Spark:
    batch: int | None = None  # it spills and spreads by itself

    def __init__(self, session: Any, connection: Any) -> None:
        self._session = session
        self._con = connection
        self._views = 0

    def _view(self, frame: Any) -> ir.Table:
        self._views += 1
        name = f"surefoot_{os.getpid()}_{self._views}"
        frame.createOrReplaceTempView(name)
        return self._con.table(name)

    def samples(self, shards: Sequence[Path]) -> ir.Table:
        if len({shard.name for shard in shards}) != len(shards):
            raise BadInput(f"{shards[0].parent}: two shards have one name; Spark cannot tell their rows apart")
        # Spark takes names for patterns.
        files = [re.sub(r"([\[\]{}*?\\])", r"\\\1", str(shard.absolute())) for shard in shards]
        try:
            frame = self._session.read.parquet(*files)
            return self._view(frame.selectExpr("*", "_metadata.file_name AS shard", "_metadata.row_index AS row"))
        except self._error as error:
            raise self._failed(error) from None

    def name(self, shard: Path) -> str:
        return shard.name

    def table(self, frame: pl.DataFrame) -> ir.Table:
        return self._view(self._session.createDataFrame(frame.to_arrow()))

    def collect(self, table: ir.Table) -> pl.DataFrame:
        # Not the back end's own way to Arrow: it goes through pandas, where a missing integer is a float.
        try:
            found = pl.from_arrow(self._session.sql(self._con.compile(table)).toArrow())
        except self._error as error:
            raise self._failed(error) from None
        assert isinstance(found, pl.DataFrame)
        return found

    @property
    def _error(self) -> tuple[type[Exception], ...]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        return (PySparkException, Py4JError)

    def _failed(self, error: Exception) -> PipelineError:
        return _Failed("Spark", error, "every worker must see the shards under the same path; see docs/training.md, Engines")


@contextmanager
def _spark() -> Iterator[Engine]:
    try:
        with warnings.catch_warnings():
            # pyspark 4.3 knows pandas 2 best; nothing here goes through pandas.
            warnings.simplefilter("ignore", FutureWarning)
            import ibis
            from pyspark.errors import PySparkException
            from pyspark.sql import SparkSession

            ibis.pyspark  # noqa: B018  loads the back end
    except ImportError as error:
        raise BadInput(
            f"samples.engine is 'spark', but {error.name or error} is not installed; run `scripts/python.sh .venv "
            "requirements-spark.lock` (docs/training.md, Engines), or set it to 'duckdb'"
        ) from None
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None and not os.environ.get("SPARK_REMOTE", "").startswith("sc://"):
        raise BadInput(
            f"samples.engine is 'spark', but there is no java{f' in JAVA_HOME={home}' if home else ''}; install "
            "default-jre-headless (17 or newer), or name a Spark Connect server in SPARK_REMOTE, or set it to 'duckdb'"
        )
    try:
        session = SparkSession.builder.appName("surefoot").getOrCreate()
        session.conf.set("spark.sql.session.timeZone", "UTC")
    except (PySparkException, RuntimeError) as error:
        raise _Failed("Spark", error, "it did not start; is the JRE 17 or newer, and is spark.master right?") from None
    try:
        yield _Spark(session, ibis.pyspark.connect(session))
    finally:
        session.stop()
