"""Options of every C++ target here.

No -march: a kernel chooses its instructions at run time, so that one build runs
on every x86-64 and is as fast as the machine allows.
"""

COPTS = [
    "-O3",
    "-Wall",
    "-Werror",
    "-fPIC",
    "-fvisibility=hidden",
]

# Of the extensions in the wheel, which need no newer libstdc++ than the machine
# has. Bazel adds -lstdc++ after these.
EXTENSION_LINKOPTS = [
    "-l:libstdc++.a",
    "-Wl,--exclude-libs,libstdc++.a",
    "-Wl,--as-needed",
]
