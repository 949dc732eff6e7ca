# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//seqio
# bazel: size=large
# bazel: tags=nightly
"""Metrics of a SeqIO task in every mode and over several processes."""

from __future__ import annotations

import pytest

from tests.integration import binary, seqio_experiments
from tests.integration.seqio_test import _EXPERIMENT, _NUM_STEPS, check, data

pytest.importorskip('seqio')
__all__ = ['data']


def _assert_ends(processes):
  for done in binary.wait(processes):
    assert done.returncode == 0, done.stderr


def test_jobs_that_evaluate_and_decode(tmp_path):
  for words in ([], ['--mode=eval'], ['--mode=decode_once']):
    _assert_ends([binary.start(_EXPERIMENT, tmp_path, *words)])
  check(tmp_path, _NUM_STEPS)


@pytest.mark.parametrize('count', [2])
def test_processes(tmp_path, count):
  mesh = f'--set=ICI_MESH_SHAPE=[{count},1,1]'
  words = ['--eval_on_test', '--decode_during_train', mesh]
  _assert_ends(
    binary.start_processes(
      _EXPERIMENT, tmp_path, *words, count=count, devices=1
    )
  )
  check(tmp_path, _NUM_STEPS)
  assert seqio_experiments.NUM_EVALUATED % count
