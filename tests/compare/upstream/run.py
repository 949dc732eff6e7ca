# SPDX-License-Identifier: Apache-2.0
"""Runs all cases under upstream praxis/paxml and under ours; compares.

    tests/compare/upstream/install.sh ~/.cache/pax-upstream   # once
    python tests/compare/upstream/run.py                      # all families
    python tests/compare/upstream/run.py linears --only=Bias  # some

PAX_UPSTREAM names the folder that install.sh made: `venv/` and `source/`.
PAX_UPSTREAM_PYTHON and PAX_UPSTREAM_SOURCE name them one by one.
With --cache=FOLDER the results of upstream are stored there and used again as
long as its packages and the definitions of the family's cases are the same;
compiled programs of both sides are stored there, too.
Prints at its end the counts of cases by family, their total and the time.
Exits with 0 only if every difference is in `allowed.py` and, in a run of all
families, at least 1,500 cases were compared.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.util
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import tempfile
import time

_FOLDER = pathlib.Path(__file__).absolute().parent
_ROOT = _FOLDER.parents[2]
sys.path.insert(0, str(_ROOT))

from tests.compare.upstream import allowed, compare, results  # noqa: E402

_MINIMUM = 1500
_TIMEOUT_S = 1800
# Families that import SeqIO or TensorFlow on both sides.
_WITH_SEQIO = ('record_inputs', 'seqio_inputs')


@dataclasses.dataclass(frozen=True)
class Upstream:
  """An interpreter and a folder with the packages praxis and paxml."""

  python: pathlib.Path
  source: pathlib.Path

  @classmethod
  def from_environment(cls) -> Upstream:
    default = pathlib.Path.home() / '.cache' / 'pax-upstream'
    folder = pathlib.Path(os.environ.get('PAX_UPSTREAM', default))
    python = os.environ.get('PAX_UPSTREAM_PYTHON', folder / 'venv/bin/python')
    source = os.environ.get('PAX_UPSTREAM_SOURCE', folder / 'source')
    return cls(pathlib.Path(python), pathlib.Path(source))

  def exists(self) -> bool:
    return self.python.exists() and (self.source / 'praxis').is_dir()

  @functools.cached_property
  def version(self) -> str:
    """A digest of the sources and of the versions of installed packages."""
    packages = subprocess.run(
      [self.python, '-c', _LIST_PACKAGES], check=True, stdout=subprocess.PIPE
    )
    digest = hashlib.sha256(packages.stdout)
    for path in sorted(self.source.glob('pax*/**/*.py')) + sorted(
      self.source.glob('praxis/**/*.py')
    ):
      digest.update(str(path.relative_to(self.source)).encode())
      digest.update(path.read_bytes())
    return digest.hexdigest()


_LIST_PACKAGES = """
import importlib.metadata, sys
packages = importlib.metadata.distributions()
print(sys.version, sorted((p.name, p.version) for p in packages))
"""


def family_names() -> list[str]:
  """Returns the families whose packages this interpreter has."""
  names = {m.name for m in pkgutil.iter_modules([_FOLDER / 'families'])}
  if importlib.util.find_spec('seqio') is None:
    print(f"not compared without 'pax-jax[seqio]': {', '.join(_WITH_SEQIO)}")
    names -= set(_WITH_SEQIO)
  return sorted(names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FamilyReport:
  """Differences of one family's cases."""

  family: str
  # By case; empty where equal. Allowed differences are not in here.
  differences: dict[str, list[str]]
  # Allowed differences: count by reason.
  reasons: collections.Counter[str]
  # Cases where both sides raise.
  num_raising: int
  seconds: float

  @property
  def failures(self) -> dict[str, list[str]]:
    return {k: v for k, v in self.differences.items() if v}


def _definition_of(family: str) -> bytes:
  """Returns a digest of all code that determines recorded results."""
  names = ['record.py', 'cases.py', 'tasks.py', 'flatten.py', 'results.py']
  paths = [_FOLDER / name for name in names]
  paths.append(_FOLDER / 'families' / f'{family}.py')
  return hashlib.sha256(b''.join(path.read_bytes() for path in paths)).digest()


def run_family(
  upstream: Upstream,
  family: str,
  folder: pathlib.Path,
  only: str = '',
  cache: pathlib.Path | None = None,
) -> FamilyReport:
  """Records a family in two processes, upstream first, and compares.

  Args:
    upstream: Where upstream is.
    family: Name of a module in `families`.
    folder: Results go to its subfolders.
    only: Regular expression; runs the cases whose name it finds.
    cache: Folder of upstream's results, which always have all cases, and of
      compiled programs.
  """
  start = time.monotonic()
  theirs, ours = folder / f'{family}.upstream', folder / f'{family}.ours'
  if cache:
    key = hashlib.sha256(upstream.version.encode() + _definition_of(family))
    theirs = cache / f'{family}.{key.hexdigest()[:16]}'
  if not (theirs / 'source.json').exists():  # Written last.
    only_theirs = '' if cache else only
    _record(
      upstream.python, upstream.source, family, only_theirs, theirs, cache=cache
    )
  python = pathlib.Path(sys.executable)
  _record(python, _ROOT, family, only, ours, theirs, cache)
  recorded = results.load(theirs), results.load(ours)
  if cache and only:
    recorded[0].outcomes = {
      name: outcome
      for name, outcome in recorded[0].outcomes.items()
      if name in recorded[1].outcomes or re.search(only, name)
    }
  reasons: collections.Counter[str] = collections.Counter()
  differences = {}
  for case, found in compare.compare(*recorded).items():
    differences[case] = []
    for difference in found:
      reason = allowed.reason_of(f'{family}: {case}', difference)
      if reason is None:
        differences[case].append(difference)
      else:
        reasons[reason] += 1
  both = [r.outcomes for r in recorded]
  raising = [c for c in both[0] if c in both[1] and both[0][c].error]
  return FamilyReport(
    family=family,
    differences=differences,
    reasons=reasons,
    num_raising=sum(bool(both[1][c].error) for c in raising),
    seconds=time.monotonic() - start,
  )


def _record(
  python: pathlib.Path,
  source: pathlib.Path,
  family: str,
  only: str,
  output: pathlib.Path,
  variables: pathlib.Path | None = None,
  cache: pathlib.Path | None = None,
) -> None:
  """Starts record.py.

  Args:
    python: The interpreter.
    source: Folder of praxis and paxml.
    family: Name of a module in `families`.
    only: Regular expression of cases.
    output: Folder of the results.
    variables: Folder of upstream's results, for ours.
    cache: A subfolder has XLA's compiled programs.

  Raises:
    RuntimeError: if it fails, with its output.
  """
  command = [python, _FOLDER / 'record.py', f'--family={family}']
  command += [f'--output={output}', f'--only={only}']
  command += [f'--variables={variables}'] if variables else []
  environment = {
    **os.environ,
    'PYTHONPATH': str(source),
    'JAX_PLATFORMS': 'cpu',
    'TF_CPP_MIN_LOG_LEVEL': '3',
    'PYTHONDONTWRITEBYTECODE': '1',
  }
  if cache:
    environment |= {
      'JAX_COMPILATION_CACHE_DIR': str(cache / 'xla'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }
  done = subprocess.run(
    [str(x) for x in command],
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=_TIMEOUT_S,
    cwd=output.parent,
  )
  if done.returncode:
    raise RuntimeError(f'{source}: {family} failed:\n{done.stdout[-4000:]}')


def _print(report: FamilyReport) -> None:
  for case, differences in sorted(report.failures.items()):
    print(f'{report.family}: {case}')
    for difference in differences:
      print(f'    {difference}')
  print(
    f'{report.family}: {len(report.differences)} cases compared, '
    f'{len(report.failures)} differ, {sum(report.reasons.values())} allowed '
    f'differences, {report.num_raising} raise on both sides, '
    f'{report.seconds:.0f} s',
    flush=True,
  )


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('families', nargs='*')
  parser.add_argument('--only', default='', help='regular expression of cases')
  parser.add_argument('--jobs', type=int, default=2)
  parser.add_argument('--keep', type=pathlib.Path, help='folder of the results')
  parser.add_argument(
    '--cache',
    type=pathlib.Path,
    help="folder of upstream's results and of programs",
  )
  flags = parser.parse_args()
  start = time.monotonic()
  upstream = Upstream.from_environment()
  if not upstream.exists():
    print(f'no upstream at {upstream}: run {_FOLDER}/install.sh')
    return 2
  families = flags.families or family_names()
  cache = flags.cache and flags.cache.absolute()
  if cache:
    cache.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as scratch:
    folder = flags.keep or pathlib.Path(scratch)
    folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
      runs = [
        pool.submit(
          run_family, upstream, family, folder.absolute(), flags.only, cache
        )
        for family in families
      ]
      reports = []
      for run in runs:
        reports.append(run.result())
        _print(reports[-1])
  status = _summarize(reports, is_full=not flags.families and not flags.only)
  print(f'{time.monotonic() - start:.0f} s, exit {status}')
  return status


def _summarize(reports: list[FamilyReport], is_full: bool) -> int:
  """Prints counts by family and totals; returns the exit status."""
  reasons = sum((r.reasons for r in reports), collections.Counter())
  for reason, count in sorted(reasons.items()):
    print(f'allowed {count} times: {reason}')
  for entry in allowed.ALLOWED:
    if is_full and entry.reason not in reasons:
      print(f'no difference needs allowed.py for: {entry.reason}')
  num_cases = sum(len(r.differences) for r in reports)
  num_failures = sum(len(r.failures) for r in reports)
  for report in reports:
    print(
      f'{report.family:20} {len(report.differences):5} cases, '
      f'{len(report.failures)} differ'
    )
  print(f'{"all":20} {num_cases:5} cases, {num_failures} differ')
  if is_full and num_cases < _MINIMUM:
    print(f'fewer than {_MINIMUM} cases')
    return 1
  return 1 if num_failures else 0


if __name__ == '__main__':
  sys.exit(main())
