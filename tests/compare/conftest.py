# SPDX-License-Identifier: Apache-2.0
"""What the comparisons need, which the lock does not have.

pip install -e '.[test,compare,lm_eval,mlflow,wandb]' && pytest tests/compare
"""

from __future__ import annotations

import importlib.util
import pathlib

_USUAL = ('torch', 'transformers')
_NEEDED = {
  'fine_tuning_test.py': ('tokenizers',),
  'huggingface_datasets_test.py': ('datasets',),
  'lm_evaluation_test.py': (*_USUAL, 'lm_eval'),
  'low_rank_updates_test.py': (*_USUAL, 'peft'),
  'services_test.py': ('mlflow', 'wandb'),
  'tf_summaries_test.py': ('tensorflow',),
}


def _missing(name: str) -> list[str]:
  """Returns the packages that a file needs and does not find."""
  needed = _NEEDED.get(name, _USUAL)
  return [x for x in needed if not importlib.util.find_spec(x)]


_FILES = [p.name for p in pathlib.Path(__file__).parent.glob('*_test.py')]
collect_ignore = [name for name in _FILES if _missing(name)]


def pytest_report_header() -> str:
  """Says why there is nothing to run, where that is so."""
  missing = sorted({x for name in _FILES for x in _missing(name)})
  if missing:
    return f'tests/compare: not installed: {", ".join(missing)}'
  return 'tests/compare: against torch, transformers and others'
