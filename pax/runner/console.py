# SPDX-License-Identifier: Apache-2.0
"""Start and end of a program on the console: directory, pipes, exit."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TextIO


def use_invocation_dir() -> None:
  """Makes relative paths, and modules of experiments, those of the user.

  `bazel run` starts programs in another directory than the command's, and
  passes that in an environment variable.
  """
  if directory := os.environ.get('BUILD_WORKING_DIRECTORY'):
    os.chdir(directory)
  sys.path.append(os.getcwd())


def flush_streams() -> bool:
  """Flushes stdout and stderr; returns whether their readers still exist.

  A stream whose reader has exited, such as `head`, is redirected to os.devnull,
  so that Python does not report it on exit.
  """
  all_open = True
  for stream in (sys.stdout, sys.stderr):
    if not _has_reader(stream):
      all_open = False
      devnull = os.open(os.devnull, os.O_WRONLY)
      os.dup2(devnull, stream.fileno())
      os.close(devnull)
  return all_open


def print_text(text: object) -> None:
  """Prints to stdout; without an error if its reader has exited."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    flush_streams()


def _has_reader(stream: TextIO) -> bool:
  """Flushes a stream; returns whether its reader still exists."""
  try:
    stream.flush()
    # With PYTHONUNBUFFERED it has forgotten what it could not write.
    poll = select.poll()
    poll.register(stream.fileno(), 0)
  except BrokenPipeError:
    return False
  except io.UnsupportedOperation:  # It is in memory.
    return True
  return not any(events & select.POLLERR for _, events in poll.poll(0))
