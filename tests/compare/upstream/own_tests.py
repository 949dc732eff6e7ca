# SPDX-License-Identifier: Apache-2.0
"""Runs upstream's own unit tests against our packages.

    python tests/compare/upstream/own_tests.py                 # all
    python tests/compare/upstream/own_tests.py repeats paxml/  # by substring
    python tests/compare/upstream/own_tests.py --upstream ...  # for comparison

The last runs them against upstream's packages.

Reads the environment variables of run.py: the interpreter of upstream's virtual
environment runs the test files of upstream's source, and `praxis`, `paxml` and
`pax` are ours. Failures must be those of own_tests_expected.txt: exits with 1
if another test fails, or if an expected failure passes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

_FOLDER = pathlib.Path(__file__).absolute().parent
_ROOT = _FOLDER.parents[2]
sys.path.insert(0, str(_ROOT))

from tests.compare.upstream import run  # noqa: E402

_EXPECTED = _FOLDER / 'own_tests_expected.txt'
# transformer_models_encoder_decoder_test.py compiles 512 models.
_TIMEOUT_S = 7200
# Tests for which upstream's BUILD files ask for several devices.
_NUM_DEVICES = {
  'paxml/programs_test.py': 2,
  'praxis/layers/grouped_query_attention_test.py': 4,
}
# The id of a file that pytest cannot collect, or that does not end.
_MODULE = '*module*'


@dataclasses.dataclass(frozen=True)
class FileReport:
  """Outcomes of one test file."""

  file: str
  # Message by `Class.test`; '' if it passes.
  outcomes: dict[str, str]

  @property
  def failures(self) -> dict[str, str]:
    """Messages by `file::Class.test`."""
    return {f'{self.file}::{k}': v for k, v in self.outcomes.items() if v}


def test_files(source: pathlib.Path, substrings: list[str]) -> list[str]:
  """Paths of upstream's tests relative to `source`."""
  paths = [
    str(path.relative_to(source))
    for package in ('praxis', 'paxml')
    for path in (source / package).rglob('*_test.py')
  ]
  return sorted(
    p for p in paths if not substrings or any(s in p for s in substrings)
  )


def run_file(
  upstream: run.Upstream, file: str, packages: pathlib.Path, log: pathlib.Path
) -> FileReport:
  """Runs one test file in a process of its own.

  Args:
    upstream: Where upstream is.
    file: Path of the test in upstream's source.
    packages: Folder with the packages under test.
    log: Folder that gets the output of pytest.
  """
  name = file.removesuffix('.py').replace('/', '.')
  output = log / f'{name}.log'
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    # A copy: pytest would import the packages that contain the original.
    copy = folder / pathlib.Path(file).name
    shutil.copy(upstream.source / file, copy)
    shutil.copy(_FOLDER / 'own_tests_conftest.py', folder / 'conftest.py')
    report = folder / 'report.xml'
    command = [upstream.python, '-m', 'pytest', '-q', copy, '--rootdir', folder]
    command += ['-c', os.devnull, '-p', 'no:cacheprovider', '--tb=short']
    command += [f'--junitxml={report}', '-W', 'ignore']
    environment = {
      'JAX_COMPILATION_CACHE_DIR': str(log / 'jax_cache'),
      **os.environ,
      'PYTHONPATH': f'{packages}:{os.environ.get("PYTHONPATH", "")}',
      'PAX_UPSTREAM_SOURCE': str(upstream.source.absolute()),
      'JAX_PLATFORMS': 'cpu',
      'TF_CPP_MIN_LOG_LEVEL': '3',
      'PYTHONDONTWRITEBYTECODE': '1',
    }
    if file in _NUM_DEVICES:
      count = _NUM_DEVICES[file]
      flag = f'--xla_force_host_platform_device_count={count}'
      environment['XLA_FLAGS'] = flag
    with output.open('w') as sink:
      try:
        subprocess.run(
          [str(x) for x in command],
          env=environment,
          stdout=sink,
          stderr=subprocess.STDOUT,
          timeout=_TIMEOUT_S,
          cwd=folder,
        )
      except subprocess.TimeoutExpired:
        return FileReport(file, {_MODULE: f'did not end in {_TIMEOUT_S} s'})
    if not report.exists():
      return FileReport(file, {_MODULE: f'pytest crashed: {output}'})
    return FileReport(file, load_outcomes(report))


def load_outcomes(report: pathlib.Path) -> dict[str, str]:
  """Outcomes from a JUnit file, without skipped tests."""
  outcomes = {}
  cases = list(ElementTree.parse(report).iter('testcase'))
  if not cases:
    return {_MODULE: 'has no tests'}
  for case in cases:
    if case.find('skipped') is not None:
      continue
    failure = case.find('failure')
    failure = case.find('error') if failure is None else failure
    message = ''
    if failure is not None:
      message = (failure.get('message') or 'failed').strip()
    test = case.get('name', '')
    scope = case.get('classname', '').rpartition('_test')[2].lstrip('.')
    key = f'{scope}.{test}' if scope else _MODULE
    # A test with subtests has several entries.
    outcomes[key] = outcomes.get(key) or message
  return outcomes


@dataclasses.dataclass(frozen=True)
class Expected:
  """Failures that stay; `pattern` is a glob of `file::Class.test`."""

  pattern: str
  reason: str

  @property
  def file(self) -> str:
    return self.pattern.partition('::')[0]

  def matches(self, test: str) -> bool:
    return fnmatch.fnmatchcase(test, self.pattern)


def load_expected(path: pathlib.Path = _EXPECTED) -> list[Expected]:
  """Lines `pattern: reason`; lines that start with # are comments.

  Raises:
    ValueError: if a line has another form.
  """
  expected = []
  for line in path.read_text().splitlines():
    if not line or line.startswith('#'):
      continue
    match = re.fullmatch(r'(\S+::\S+): (.+)', line)
    if not match:
      raise ValueError(
        f'{path}: expected `file::Class.test: reason`, got {line!r}'
      )
    expected.append(Expected(*match.groups()))
  return expected


def unexpected(report: FileReport, expected: list[Expected]) -> list[str]:
  """Failures without a reason, and reasons without a failure."""
  lines = [
    f'{test}: {message.splitlines()[0]}'
    for test, message in report.failures.items()
    if not any(e.matches(test) for e in expected)
  ]
  lines += [
    f'{e.pattern}: passes, remove it from {_EXPECTED.name}'
    for e in expected
    if e.file == report.file
    and not any(e.matches(test) for test in report.failures)
  ]
  return lines


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('files', nargs='*', help='substrings of paths')
  parser.add_argument('--upstream', action='store_true')
  parser.add_argument('--jobs', type=int, default=2)
  parser.add_argument('--log', type=pathlib.Path, help='folder of the output')
  flags = parser.parse_args()
  upstream = run.Upstream.from_environment()
  if not upstream.exists():
    print(f'no upstream at {upstream}: run {_FOLDER}/install.sh')
    return 2
  packages = upstream.source if flags.upstream else _ROOT
  expected = [] if flags.upstream else load_expected()
  log = (flags.log or pathlib.Path(tempfile.mkdtemp())).absolute()
  log.mkdir(parents=True, exist_ok=True)
  num_passed = num_failed = num_unexpected = 0
  with concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
    runs = [
      pool.submit(run_file, upstream, file, packages, log)
      for file in test_files(upstream.source, flags.files)
    ]
    for future in concurrent.futures.as_completed(runs):
      report = future.result()
      lines = unexpected(report, expected)
      failed = len(report.failures)
      passed = len(report.outcomes) - failed
      print(
        f'{report.file}: {passed} passed, {failed} failed, '
        f'{len(lines)} unexpected',
        flush=True,
      )
      for line in lines:
        print(f'    {line}', flush=True)
      num_passed += passed
      num_failed += failed
      num_unexpected += len(lines)
  print(
    f'{num_passed} passed, {num_failed} failed, {num_unexpected} unexpected; '
    f'output in {log}'
  )
  return int(bool(num_unexpected))


if __name__ == '__main__':
  sys.exit(main())
