# SPDX-License-Identifier: Apache-2.0
"""Errors on stderr: one or two lines, and the traceback on request."""

from __future__ import annotations

import sys
import traceback

# Most lines and characters of a message without --traceback.
_MAX_LINES = 2
_MAX_CHARACTERS = 2000
# Paths of the Configs that a run builds, by a base class of what they build.
_ROOTS = {
  'BaseTask': 'task',
  'BaseModel': 'task.model',
  'Learner': 'task.train.learner',
  'BaseOptimizer': 'task.train.learner.optimizer',
}


def print_error(error: BaseException, *, show_traceback: bool) -> None:
  """Prints an error, and its traceback before it if that is requested."""
  if show_traceback:
    traceback.print_exception(error)
  print(f'pax: error: {text(error)}', file=sys.stderr)


def text(error: BaseException) -> str:
  """Returns the message of an error: where it was raised, what is wrong.

  The type is left out of ValueErrors and of errors of the operating system,
  whose messages are for users. An error of an import has the line that raised
  it, and the line of the first module that was imported for it.
  """
  message = str(error)
  is_for_users = isinstance(error, ValueError) or (
    isinstance(error, OSError) and error.errno is not None
  )
  if not is_for_users:
    message = f'{type(error).__name__}: {message}{_import_lines(error)}'
  message = f'{_location(error)}{message}'
  lines = [line.rstrip() for line in message.splitlines() if line.strip()]
  shown = '\n'.join(lines[:_MAX_LINES])
  if len(shown) > _MAX_CHARACTERS:
    shown = f'{shown[:_MAX_CHARACTERS]}...'
  if not is_for_users or len(shown) < len(message.strip()):
    shown = f'{shown} (--traceback shows where)'
  return shown


def _import_lines(error: BaseException) -> str:
  """The lines at which the import of a module failed; none after imports."""
  frames = traceback.extract_tb(error.__traceback__)
  if not frames:
    return ''
  # Frames above the first module are those of the program that imports it.
  imports = [frame for frame in frames if frame.name == '<module>']
  places = [(f.filename, f.lineno) for f in (*imports[:1], frames[-1])]
  if isinstance(error, SyntaxError) and str(error.filename).endswith('.py'):
    places.append((str(error.filename), error.lineno))
  elif not imports and not isinstance(error, ImportError):
    return ''
  (file, line), (first_file, first_line) = places[-1], places[0]
  text = f', in {file}, line {line}'
  if not imports or file == first_file:
    return text
  return f'{text}, reached from {first_file}, line {first_line}'


def _location(error: BaseException) -> str:
  """The path of the Config that could not be built, and its class."""
  if 'praxis.pax_fiddle' not in sys.modules:
    return ''
  from praxis.pax_fiddle import build_errors

  if 'praxis.base_layer' in sys.modules:
    from praxis.base_layer import children

    children.locate_call(error)
  location = build_errors.location_of(error)
  if location is None:
    return ''
  bases = [base.__name__ for base in getattr(location.root, '__mro__', ())]
  roots = (_ROOTS[name] for name in bases if name in _ROOTS)
  root = next(roots, build_errors.name_of(location.root))
  path, cls = f'{root}{location.path}', build_errors.name_of(location.cls)
  # The path of a call, or of a root that has no path.
  if path == cls or (location.path and location.cls is location.root):
    return f'{path}: '
  return f'{path} ({cls}): '
