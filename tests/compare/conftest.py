# SPDX-License-Identifier: Apache-2.0
"""What the comparisons need, which the lock does not have.

pip install -e '.[test,compare]' && pytest tests/compare
"""

from __future__ import annotations

import importlib.util

_NEEDED = ('torch', 'transformers')
_MISSING = [name for name in _NEEDED if not importlib.util.find_spec(name)]

collect_ignore_glob = ['*_test.py'] if _MISSING else []


def pytest_report_header() -> str:
  """Says why there is nothing to run, where that is so."""
  if _MISSING:
    return f'tests/compare: left out, not installed: {", ".join(_MISSING)}'
  return 'tests/compare: against torch and transformers'
