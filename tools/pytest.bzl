"""pytest_test: runs *_test.py files with pytest."""

load("@rules_python//python:py_test.bzl", "py_test")

_MAIN = "//tests/testing:pytest_main.py"

def pytest_test(name, srcs, args = [], deps = [], **kwargs):
    """Declares a py_test with the program tests/testing/pytest_main.py.

    Args:
      name: of the target.
      srcs: the test files.
      args: for pytest, after the test files.
      deps: what the files import.
      **kwargs: attributes of py_test.
    """
    py_test(
        name = name,
        srcs = srcs + [_MAIN],
        args = ["$(rootpath %s)" % src for src in srcs] + args,
        main = _MAIN,
        deps = depset(deps + ["//tests/testing:pytest_main_lib"]).to_list(),
        **kwargs
    )
