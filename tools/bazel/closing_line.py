# SPDX-License-Identifier: Apache-2.0
"""Prints "N passed, N failed", counted from a Bazel build event JSON file."""

from __future__ import annotations

import json
import sys

PASSED = ('PASSED', 'FLAKY')


def outcomes(lines: list[str]) -> dict[str, bool]:
  """{test target: passed}.

  A test that could not be analysed or built, or that an end before its time
  left without a result, has failed.
  """
  tests, done, finished = set(), {}, False
  for event in map(json.loads, lines):
    label = next(iter(event['id'].values()), {}).get('label', '')
    if 'targetConfigured' in event['id']:
      said = event.get('configured', {})
      if said.get('targetKind', '').endswith('_test rule'):
        if 'nightly' not in said.get('tag', []):
          tests.add(label)
      elif 'aborted' in event and label.endswith('_test'):
        done[label] = False
    elif 'targetCompleted' in event['id'] and label in tests:
      if not event.get('completed', {}).get('success', False):
        done.setdefault(label, False)
    elif 'testSummary' in event['id']:
      done[label] = event['testSummary']['overallStatus'] in PASSED
    finished = finished or 'buildFinished' in event['id']
  return done if finished else dict.fromkeys(tests, False) | done


def main() -> None:
  with open(sys.argv[1], encoding='utf-8') as f:
    # A server that was killed leaves half a line.
    lines = [line for line in f if line.endswith('\n')]
  results = list(outcomes(lines).values())
  print(f'{results.count(True)} passed, {results.count(False)} failed')


if __name__ == '__main__':
  main()
