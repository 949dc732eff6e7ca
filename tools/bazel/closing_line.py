# SPDX-License-Identifier: Apache-2.0
"""Prints "N passed, N failed", counted from a Bazel build event JSON file."""

from __future__ import annotations

import json
import sys

PASSED = ('PASSED', 'FLAKY')
_FILTERS = '--test_tag_filters='


def outcomes(lines: list[str]) -> dict[str, bool]:
  """Returns {test target: passed}.

  A test without a result has failed: it was not analyzed or built, or the
  build was interrupted.
  """
  tests: set[str] = set()
  results: dict[str, bool] = {}
  finished, filters = False, '-nightly'
  for event in map(json.loads, lines):
    identity: dict[str, str] = next(iter(event['id'].values()), {})
    label = identity.get('label', '')
    if 'optionsParsed' in event['id']:
      arguments = event.get('optionsParsed', {}).get('cmdLine', [])
      passed = [a for a in arguments if a.startswith(_FILTERS)]
      # The last event counts.
      filters = passed[-1].removeprefix(_FILTERS) if passed else filters
    elif 'targetConfigured' in event['id']:
      target = event.get('configured', {})
      if target.get('targetKind', '').endswith('_test rule'):
        if '-nightly' not in filters or 'nightly' not in target.get('tag', []):
          tests.add(label)
      elif 'aborted' in event and label.endswith('_test'):
        results[label] = False
    elif 'targetCompleted' in event['id'] and label in tests:
      if not event.get('completed', {}).get('success', False):
        results.setdefault(label, False)
    elif 'testSummary' in event['id']:
      # An interrupted run has an aborted summary without a status.
      status = event.get('testSummary', {}).get('overallStatus')
      results[label] = status in PASSED
    finished = finished or 'buildFinished' in event['id']
  return results if finished else dict.fromkeys(tests, False) | results


def main() -> None:
  with open(sys.argv[1], encoding='utf-8') as f:
    # A killed server leaves an incomplete line.
    lines = [line for line in f if line.endswith('\n')]
  results = list(outcomes(lines).values())
  print(f'{results.count(True)} passed, {results.count(False)} failed')


if __name__ == '__main__':
  main()
