# SPDX-License-Identifier: Apache-2.0
"""One run as several hosts and slices: the same numbers, the same files."""

# bazel: size=large
# bazel: tags=nightly
from __future__ import annotations

from tests.integration import binary
from tests.multiprocess import many

SLICES = (
  '--set=ICI_MESH_SHAPE=[1,2,1]',
  '--set=task.model.dcn_mesh_shape=[1,2,1]',
)


def test_two_slices_of_two_hosts_then_two_hosts_then_one(tmp_path):
  """Who saved a checkpoint does not matter to who goes on from it."""
  job = tmp_path / 'job'
  many.train(job, *SLICES, count=4, steps=10)
  many.train(job, many.MESH, count=2, steps=15)
  names = binary.checkpoint_names(job)
  assert names[-1] == 'checkpoint_00000015'
  # Each host has its place in the data.
  for name, num_hosts in ('checkpoint_00000010', 4), (names[-1], 2):
    inputs = job / 'checkpoints' / name / 'metadata' / 'train_input'
    assert len(list(inputs.iterdir())) == num_hosts
  many.single(job)
  many.assert_same(job, many.single(tmp_path / 'single'))
