# SPDX-License-Identifier: Apache-2.0
"""A DP-SGD run: epsilon on the console, in the log and in the summaries."""

# bazel: size=medium
from __future__ import annotations

import pytest

from tests.integration import binary


@pytest.mark.nightly
def test_epsilon_of_a_run(tmp_path):
  dp_accounting = pytest.importorskip('dp_accounting')
  ended = binary.run('TinyPrivate', tmp_path)
  assert ended.returncode == 0, ended.stderr
  step = dp_accounting.PoissonSampledDpEvent(
    8 / 100, dp_accounting.GaussianDpEvent(2.0)
  )
  wanted = [
    dp_accounting.rdp.RdpAccountant().compose(step, count).get_epsilon(1e-5)
    for count in range(1, 5)
  ]
  found = [
    record['dp_metrics/epsilon']
    for record in binary.records(tmp_path)
    if record['split'] == 'train'
  ]
  assert found == pytest.approx(wanted)
  line = f'DP-SGD: epsilon {wanted[-1]:.3g} at delta 1e-05 after 4 steps'
  # Planned at the start, spent at the end.
  assert ended.stderr.count(line) == 2
  assert line in (tmp_path / 'logs' / 'train_0.log').read_text()
