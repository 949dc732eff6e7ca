# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Configs of inputs without task objects of SeqIO."""

from __future__ import annotations

import fiddle as fdl

from pax.inputs.seqio import configs as seqio_configs
from praxis import pax_fiddle


def test_tasks_of_seqio_are_found_by_name():
  kind = type('Task', (), {'__module__': 'seqio.dataset_providers'})
  task = kind()
  task.name = 'c4'
  config = pax_fiddle.Config(dict, a=[task], b=3)
  found = seqio_configs.convert_seqio_tasks(config)
  assert isinstance(found.a[0], fdl.Buildable)
  assert found.a[0].task_or_mixture_name == 'c4' and found.b == 3
