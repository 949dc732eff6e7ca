"""nvcc_library: a CUDA file compiled by the nvcc of the lock into a cc_library."""

load("@rules_cc//cc:cc_library.bzl", "cc_library")

# What jax's CUDA 13 wheels run on, oldest and newest; the newest is also kept as
# PTX, for what comes after it.
_ARCHITECTURES = ["75", "80", "90", "100", "120"]

_TOOLKIT = "@cuda_toolkit//all:"

def nvcc_library(name, srcs, hdrs = [], deps = [], visibility = None):
    """Declares `name`; building it fetches CUDA's compiler and headers.

    Args:
      name: of the cc_library.
      srcs: one .cu file.
      hdrs: headers it includes, also those of its deps.
      deps: cc_library targets that users of it need too.
      visibility: of the cc_library.
    """
    codes = " ".join([
        "-gencode=arch=compute_%s,code=sm_%s" % (a, a)
        for a in _ARCHITECTURES
    ] + ["-gencode=arch=compute_%s,code=compute_%s" % (_ARCHITECTURES[-1], _ARCHITECTURES[-1])])
    native.genrule(
        name = name + "_nvcc",
        srcs = srcs + hdrs,
        outs = ["lib%s.a" % name],
        cmd = " ".join([
            "$(execpath %snvcc)" % _TOOLKIT,
            "-ccbin=$(CC)",
            "-std=c++17 -O3 -Xcompiler=-fPIC,-fvisibility=hidden",
            codes,
            "-I. --lib $(location %s) -o $@" % srcs[0],
        ]),
        message = "Compiling CUDA",
        tags = ["manual"],
        toolchains = ["@bazel_tools//tools/cpp:current_cc_toolchain"],
        tools = [_TOOLKIT + "nvcc", _TOOLKIT + "files"],
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = [":lib%s.a" % name],
        hdrs = hdrs,
        linkstatic = True,
        tags = ["manual"],
        visibility = visibility,
        deps = deps + [_TOOLKIT + "cudart"],
    )

def if_cuda(values):
    """Returns `values` with --config=cuda, else nothing.

    Args:
      values: a list for an attribute.

    Returns:
      a select.
    """
    return select({
        "//:cuda": values,
        "//conditions:default": [],
    })
