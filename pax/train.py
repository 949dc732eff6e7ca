# SPDX-License-Identifier: Apache-2.0
"""Training as a function, for those who have an experiment at hand."""

from __future__ import annotations

import os
from typing import Any

from pax import base_experiment
from pax.runner import options, runner


def train_and_evaluate(
  experiment_config: base_experiment.BaseExperiment,
  job_log_dir: str | os.PathLike[str],
  *,
  eval_on_test: bool | None = None,
  run_decode: bool = False,
  **flags: Any,
) -> int:
  """Trains, as `--mode=train` does; returns the exit code.

  Args:
    experiment_config: What is trained.
    job_log_dir: The directory of everything that is written.
    eval_on_test: Whether to evaluate meanwhile; None as the experiment says.
    run_decode: Whether to decode meanwhile.
    **flags: Other flags of the command, as `init_from='/tmp/pax/tiny'`.
  """
  return runner.run(
    options.RunOptions(
      mode='train',
      job_log_dir=os.fspath(job_log_dir),
      eval_on_test=eval_on_test,
      decode_during_train=run_decode,
      **flags,
    ),
    experiment_config,
  )
