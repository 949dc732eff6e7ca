# SPDX-License-Identifier: Apache-2.0
"""What a trial measured, under the names that metrics look for."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pax.summaries import jsonl, writer
from pax.tuning import interfaces

# What a trial does in order to measure, by where metrics are from.
OPTIONS: dict[str, dict[str, bool]] = {
  'train': {},
  'eval': {'eval_on_test': True},
  'decode': {'eval_on_test': True, 'decode_during_train': True},
}
_SPLITS = {
  'train': ('train',),
  'eval': ('eval_',),
  'decode': ('decode_test_',),
}
_TAGS = ('step', 'split', 'time')


def history(
  job_log_dir: str, metrics_from: str, reward: interfaces.BaseReward | None
) -> Sequence[tuple[int, dict[str, float]]]:
  """All that was known at each step that `metrics_from` measured.

  What is computed of a step's metrics is among them, as `reward`.
  """
  known: dict[str, float] = {}
  found: dict[int, dict[str, float]] = {}
  for record in jsonl.read(os.path.join(job_log_dir, writer.METRICS_FILE)):
    split, step = record['split'], record['step']
    prefix = f'{split}/metrics/' if split.startswith('eval_') else f'{split}/'
    for tag, value in record.items():
      if tag not in _TAGS:
        known[prefix + tag.removeprefix('Metrics/')] = float(value)
    if split.startswith(_SPLITS[metrics_from]):
      # What comes again after a restart is newer.
      found.pop(step, None)
      found[step] = dict(known)
  for step, metrics in found.items():
    if reward and all(m.match_items(metrics) for m in reward.used_metrics):
      metrics['reward'] = reward(metrics, step)
  return list(found.items())
