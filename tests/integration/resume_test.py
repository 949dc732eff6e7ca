# SPDX-License-Identifier: Apache-2.0
"""A run that stops and goes on computes what one without a stop computes."""

# bazel: size=large
from __future__ import annotations

import numpy as np
import pytest

from tests.integration import binary
from tests.testing import nightly


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  """Twenty steps without a stop, by experiment."""
  done = {}

  def losses(exp):
    if exp not in done:
      done[exp] = tmp_path_factory.mktemp(exp)
      ended = binary.run(exp, done[exp], *_mesh(exp, 2), devices=2)
      assert ended.returncode == 0, ended.stderr
    return done[exp]

  return losses


def _mesh(exp, devices):
  return [f'--set=ICI_MESH_SHAPE=[1,{devices},1]'] if exp == 'TinySpmd' else []


@pytest.mark.parametrize(
  ('exp', 'flag', 'newest'),
  [
    ('TinySpmd', '--pmap_use_tensorstore=False', 'checkpoint_00000020'),
    ('TinyPmap', '--pmap_use_tensorstore=True', 'checkpoint_00000020'),
    *nightly.cases(
      ('TinyPmap', '--pmap_use_tensorstore=False', 'checkpoint_20')
    ),
  ],
)
def test_ten_steps_and_ten_more_are_twenty_bit_by_bit(
  tmp_path, straight, exp, flag, newest
):
  for steps in (10, 20):
    words = [flag, f'--set=NUM_STEPS={steps}', *_mesh(exp, 2)]
    ended = binary.run(exp, tmp_path, *words, devices=2)
    assert ended.returncode == 0, ended.stderr
  wanted = binary.loss_bits(straight(exp))
  assert sorted(wanted) == list(range(20))
  assert binary.loss_bits(tmp_path) == wanted
  assert newest in binary.checkpoint_names(tmp_path)


@pytest.mark.parametrize(
  ('exp', 'flag'),
  [
    ('TinySpmd', '--traceback'),
    *nightly.cases(('TinyPmap', '--pmap_use_tensorstore=True')),
  ],
)
def test_goes_on_with_another_number_of_devices(tmp_path, exp, flag):
  """No noise: replicas draw their own, so it differs with their number."""
  common = [flag, '--set=NOISE=0']
  if exp == 'TinyPmap':
    # The batch of a host stays the same.
    common.append('--set=BATCH_SIZE=8')
  for steps, devices in ((10, 4), (20, 2)):
    ended = binary.run(
      exp,
      tmp_path,
      *common,
      f'--set=NUM_STEPS={steps}',
      *_mesh(exp, devices),
      devices=devices,
    )
    assert ended.returncode == 0, ended.stderr
  single = tmp_path / 'single'
  ended = binary.run(exp, single, *common, *_mesh(exp, 1), devices=1)
  assert ended.returncode == 0, ended.stderr
  wanted, found = binary.losses(single), binary.losses(tmp_path)
  assert found.keys() == wanted.keys()
  np.testing.assert_allclose(
    [found[s] for s in found], [wanted[s] for s in found], rtol=1e-5
  )
