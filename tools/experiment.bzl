"""pax_experiment: an experiment as a program and as a single-file binary."""

load("@rules_python//python:py_binary.bzl", "py_binary")
load("//tools/par:par.bzl", "par")

_MAIN = """# SPDX-License-Identifier: Apache-2.0
\"\"\"Runs one experiment; written by tools/experiment.bzl.\"\"\"

import sys

from pax import main

if __name__ == "__main__":
    main.console([sys.argv[0], "--exp={exp}", *sys.argv[1:]])
"""

def pax_experiment(name, exp, deps, privacy = False, tags = [], visibility = None):
    """Declares `name`, which runs `exp`, and `name`.par, a self-contained binary.

    Args:
      name: name of the py_binary; it takes the flags of //pax:main.
      exp: what --exp would be.
      deps: the module that declares the experiment.
      privacy: whether `name`.par logs the epsilon of DP-SGD, for 40 MB.
      tags: of both targets; the .par is built only when asked for by name.
      visibility: of both targets.
    """
    main = name + "_main.py"
    native.genrule(
        name = name + "_main",
        outs = [main],
        cmd = "cat > $@ <<'PY'\n%sPY" % _MAIN.replace("{exp}", exp).replace("$", "$$"),
        tags = tags,
        visibility = ["//visibility:private"],
    )
    py_binary(
        name = name,
        srcs = [main],
        main = main,
        tags = tags,
        visibility = visibility,
        deps = deps + [
            "//pax:main_lib",
            "//third_party/pip:accelerator",
        ],
    )
    par(
        name = name + "_par",
        out = name + ".par",
        main = main,
        privacy = privacy,
        program = name,
        tags = tags + ["manual"],
        visibility = visibility,
    )
