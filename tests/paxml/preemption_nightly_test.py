# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: tags=nightly
"""Two processes with paxml's manager save at one step when one gets SIGTERM."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pax import train_states
from paxml import checkpoint_managers, checkpoints
from tests.integration import binary
from tests.testing import programs

_MAX_STEPS = 10**6
_PROCESS = """
import sys
from tests.paxml import preemption_nightly_test
preemption_nightly_test.train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def train(folder: str, address: str, process: int) -> None:
  """Counts steps until one is saved because of a signal.

  Args:
    folder: Directory of the checkpoints.
    address: Address of process 0.
    process: Index of this process.
  """
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(address, 2, process)
  manager = checkpoint_managers.OrbaxCheckpointManager(
    folder,
    checkpoints.get_checkpointer(checkpoints.CheckpointType.GDA),
    options=checkpoint_managers.CheckpointManagerOptions(
      save_interval_steps=_MAX_STEPS
    ),
    checkpoint_type=checkpoints.CheckpointType.GDA,
    tensorstore_use_ocdbt=False,
  )
  replicated = NamedSharding(
    Mesh(np.array(jax.devices()), ('x',)), PartitionSpec()
  )
  for step in range(_MAX_STEPS):
    step_array = jax.make_array_from_callback(
      (), replicated, lambda _, step=step: np.uint32(step)
    )
    state = train_states.TrainState(
      step=step_array, mdl_vars={'params': {}}, opt_states=[]
    )
    # The first step of a directory is always saved.
    if manager.save(step, state) and step > 0:
      return
    multihost_utils.sync_global_devices('step')
    if step == 3:
      pathlib.Path(folder, f'.running_{process}').touch()


def test_both_save_at_the_same_step(tmp_path: pathlib.Path) -> None:
  address = f'localhost:{binary.free_port()}'
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', _PROCESS, tmp_path, address, str(index)],
      env=programs.environment(),
    )
    for index in range(2)
  ]
  try:
    binary.wait_for_file(tmp_path / '.running_1')
    processes[1].send_signal(signal.SIGTERM)
    codes = [process.wait(60) for process in processes]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  assert codes == [0, 0]
  names = sorted(path.name for path in tmp_path.glob('checkpoint_*'))
  assert names[0] == 'checkpoint_00000000' and len(names) == 2, names
