# SPDX-License-Identifier: Apache-2.0
"""Files of samples of a policy, for people."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float32

from pax.files import side_files, storage

# In the directory of the job.
FOLDER = 'rollouts'

# Of a rollout, with all their samples.
_NUM_PROMPTS = 4


def write(
  job_log_dir: str | os.PathLike[str],
  step: int,
  texts: Sequence[tuple[str, str]],
  rewards: Mapping[str, Float32[np.ndarray, ' B']],
  *,
  is_truncated: Bool[np.ndarray, ' B'],
  num_samples: int,
) -> None:
  """Writes the samples of the first prompts of a rollout, JSON lines.

  A file that cannot be written is a warning.

  Args:
    job_log_dir: The directory of the job.
    step: The step of the policy.
    texts: Prompt and response of each sample; those of a prompt are adjacent.
    rewards: The reward and its terms.
    is_truncated: Whether a response has no eos.
    num_samples: Number of samples of a prompt.
  """
  lines = [
    json.dumps(
      {
        'prompt': prompt,
        'response': response,
        'truncated': bool(is_truncated[row]),
        **{name: float(values[row]) for name, values in rewards.items()},
      },
      ensure_ascii=False,
    )
    for row, (prompt, response) in enumerate(
      texts[: _NUM_PROMPTS * num_samples]
    )
  ]
  path = storage.to_path(job_log_dir) / FOLDER / f'step_{step:08}.jsonl'
  with side_files.tolerate_errors(path):
    side_files.make_directories(job_log_dir, FOLDER)
    side_files.write_text(path, '\n'.join([*lines, '']))
