# SPDX-License-Identifier: Apache-2.0
"""Saves and restores of train states, against Orbax and plain files.

    python -m benchmarks.checkpoints --mib=256

All programs of a round run one after the other on the same state and disk:
`pax` is the checkpointer of a training job, `orbax` the AsyncCheckpointer of
Orbax with its defaults, `files` writes and reads the same bytes by eight
threads, and flushes them as both others do. Pax also computes checksums when it
saves and restores; Orbax and the files have none. Before each measurement
memory of the size of the state is written and freed: the host of a virtual
machine takes back free memory, and its return takes longer than reading.
`--leaves` is the number of arrays of a state of small arrays, `--saves` the
number of saves over which the memory of the process is measured. `--job_saves`
is the number of saves of a training job with a small language model, whose
steps are compared with the time that a save blocks the loop.
"""

# bazel: deps=//benchmarks:experiments
# bazel: deps=//pax/checkpoints
# bazel: deps=//pax/tasks:experiments
# bazel: deps=//pax:main_lib
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from benchmarks import measure

_THREADS = 8
_PART_BYTES = 16 * 2**20
_JOB_SAVE_STEPS = 5
_PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')


def main() -> None:
  """Prints a line of JSON per measurement."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--mib', type=int, default=256)
  parser.add_argument('--leaves', type=int, default=2000)
  parser.add_argument('--saves', type=int, default=400)
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--job_saves', type=int, default=5)
  parser.add_argument('--folder', default=None, help='on the disk to measure')
  args = parser.parse_args()
  measure.on_cpu_devices(1)
  with tempfile.TemporaryDirectory(dir=args.folder) as folder:
    root = pathlib.Path(folder)
    # Before the others leave memory to reuse.
    measure.report('checkpoints', _memory_over_saves(root, args.saves))
    large = _random_state(16, args.mib * 2**20 // 16)
    measure.report('checkpoints', _compare('large', root, large, args.rounds))
    del large
    small = _random_state(args.leaves, 16 * 2**10)
    measure.report('checkpoints', _compare('small', root, small, args.rounds))
    measure.report('checkpoints', _blocked_in_a_job(root, args.job_saves))


def _random_state(num_leaves: int, leaf_bytes: int) -> dict[str, Any]:
  """Returns arrays of random numbers, which do not compress."""
  import jax
  import numpy as np

  rng = np.random.default_rng(0)
  return {
    f'layer_{i}': {
      'w': jax.device_put(
        rng.standard_normal((leaf_bytes // 1024, 256), dtype=np.float32)
      )
    }
    for i in range(num_leaves)
  }


class _Times:
  """Seconds of each round: blocked, until saved, to restore."""

  def __init__(self):
    self.blocked: list[float] = []
    self.saved: list[float] = []
    self.restored: list[float] = []


@contextlib.contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
  start = time.perf_counter()
  yield
  seconds.append(time.perf_counter() - start)


def _warm_memory(state: Any) -> None:
  """Makes the host of a virtual machine give it the memory for a restore."""
  import numpy as np

  num_bytes = sum(x['w'].nbytes for x in state.values())
  np.empty(num_bytes * 5 // 4, np.uint8).fill(1)


def _compare(
  name: str, root: pathlib.Path, state: Any, rounds: int
) -> dict[str, Any]:
  """Returns ratios of times, and the numbers of files."""
  programs: dict[str, Callable[[pathlib.Path, Any, _Times], None]] = {
    'pax': _run_pax,
    'orbax': _run_orbax,
    'files': _run_files,
  }
  times = {program: _Times() for program in programs}
  num_files = {}
  # The first round imports and warms up; it does not count.
  for index in range(rounds + 1):
    for program, run in programs.items():
      _warm_memory(state)
      folder = root / f'{name}_{program}'
      run(folder, state, times[program])
      num_files[program] = sum(p.is_file() for p in folder.rglob('*'))
      shutil.rmtree(folder)
      if not index:
        times[program] = _Times()
  pax, orbax, files = times.values()
  return {
    'state': name,
    'mib': sum(x['w'].nbytes for x in state.values()) // 2**20,
    'leaves': len(state),
    'blocked_over_orbax': measure.ratio(pax.blocked, orbax.blocked),
    'saved_over_orbax': measure.ratio(pax.saved, orbax.saved),
    'restored_over_orbax': measure.ratio(pax.restored, orbax.restored),
    'save_bandwidth_over_files': measure.ratio(files.saved, pax.saved),
    'restore_bandwidth_over_files': measure.ratio(files.restored, pax.restored),
    'num_files': num_files,
    **{
      program: {
        phase: measure.summary(seconds)
        for phase, seconds in vars(times[program]).items()
      }
      for program in programs
    },
  }


def _run_pax(folder: pathlib.Path, state: Any, times: _Times) -> None:
  import jax

  from pax import checkpoints

  checkpointer = checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(save_interval_steps=1), str(folder)
  )
  with _timed(times.saved):
    with _timed(times.blocked):
      checkpointer.save(0, state)
    checkpointer.wait()
  _warm_memory(state)
  with _timed(times.restored):
    jax.block_until_ready(checkpointer.restore(_abstract(state)).state)
  checkpointer.close()


def _run_orbax(folder: pathlib.Path, state: Any, times: _Times) -> None:
  import jax
  import orbax.checkpoint as ocp

  with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as checkpointer:
    with _timed(times.saved):
      with _timed(times.blocked):
        checkpointer.save(folder / '0', args=ocp.args.StandardSave(state))
      checkpointer.wait_until_finished()
    _warm_memory(state)
    with _timed(times.restored):
      restored = checkpointer.restore(
        folder / '0', args=ocp.args.StandardRestore(_abstract(state))
      )
      jax.block_until_ready(restored)


def _abstract(state: Any) -> Any:
  import jax

  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )


def _run_files(folder: pathlib.Path, state: Any, times: _Times) -> None:
  import jax
  import numpy as np

  folder.mkdir()
  data = b''.join(np.asarray(x).data for x in jax.tree.leaves(state))
  parts = range(0, len(data), _PART_BYTES)
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    with _timed(times.saved):
      write = functools.partial(_write_part, folder, data)
      list(pool.map(write, parts))
    times.blocked.append(times.saved[-1])
    _warm_memory(state)
    with _timed(times.restored):
      list(pool.map(lambda start: (folder / str(start)).read_bytes(), parts))


def _write_part(folder: pathlib.Path, data: bytes, start: int) -> None:
  with (folder / str(start)).open('wb') as file:
    file.write(memoryview(data)[start : start + _PART_BYTES])
    file.flush()
    os.fsync(file.fileno())


def _memory_over_saves(root: pathlib.Path, num_saves: int) -> dict[str, Any]:
  """Returns the growth of the process over the second half of the saves."""
  import numpy as np

  from pax import checkpoints

  state = _random_state(16, 2**20)
  options = checkpoints.CheckpointOptions(save_interval_steps=1, max_to_keep=1)
  checkpointer = checkpoints.create_checkpointer(options, str(root / 'memory'))
  mib = []
  for step in range(num_saves):
    checkpointer.save(step, state)
    checkpointer.wait()
    pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
    mib.append(pages * _PAGE_BYTES / 2**20)
  checkpointer.close()
  half = mib[num_saves // 2 :]
  slope = np.polyfit(np.arange(len(half)), half, 1)[0]
  return {
    'state': 'memory',
    'saves': num_saves,
    'rss_slope_kib_per_save': round(1024 * float(slope), 2),
    'rss_mib': [round(mib[0], 1), round(half[0], 1), round(half[-1], 1)],
  }


class _TimedCheckpointer:
  """Records the duration of each save of a job, and of the steps between."""

  def __init__(self, checkpointer: Any):
    self._checkpointer = checkpointer
    self._ended_at: float | None = None
    # Seconds.
    self.blocked: list[float] = []
    self.steps: list[float] = []

  def save(self, *args: Any, **kwargs: Any) -> bool:
    """Called before each step; saves at some of them."""
    began = time.perf_counter()
    if self._ended_at is not None:
      self.steps.append(began - self._ended_at)
    is_saved = self._checkpointer.save(*args, **kwargs)
    self._ended_at = time.perf_counter()
    if is_saved:
      self.blocked.append(self._ended_at - began)
    return is_saved

  def __getattr__(self, name: str) -> Any:
    return getattr(self._checkpointer, name)


def _blocked_in_a_job(root: pathlib.Path, num_saves: int) -> dict[str, Any]:
  """Trains a language model that saves every five steps."""
  from pax.programs import train as train_lib
  from pax.programs.stopping import preemption
  from pax.runner import build_train, job_dir, job_setup
  from pax.runner.options import RunOptions

  job_log_dir = str(root / 'job')
  num_steps = _JOB_SAVE_STEPS * num_saves
  options = RunOptions(
    exp='benchmarks.experiments.Lm4x256Spmd',
    job_log_dir=job_log_dir,
    set=(
      f'task.train.num_train_steps={num_steps}',
      f'task.train.save_interval_steps={_JOB_SAVE_STEPS}',
      'task.train.save_max_to_keep=2',
    ),
  )
  with preemption.PreemptionHandler() as signals:
    with (
      job_dir.open_job_dir(job_log_dir, 0) as directory,
      build_train.build(
        options, job_setup.resolve(options), directory, signals
      ) as run,
    ):
      checkpointer = _TimedCheckpointer(run.checkpointer)
      train_lib.train(dataclasses.replace(run, checkpointer=checkpointer))
  newest = max((root / 'job' / 'checkpoints').iterdir())
  size = sum(f.stat().st_size for f in newest.rglob('*') if f.is_file())
  step_secs = statistics.median(checkpointer.steps)
  return {
    'state': 'job',
    'mib': round(size / 2**20, 1),
    'steps': num_steps,
    'step_ms': round(1e3 * step_secs, 1),
    'blocked_ms': [round(1e3 * x, 1) for x in checkpointer.blocked],
    'blocked_over_step': round(
      statistics.median(checkpointer.blocked) / step_secs, 4
    ),
  }


if __name__ == '__main__':
  main()
