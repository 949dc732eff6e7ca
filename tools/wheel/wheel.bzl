"""py_wheel: a reproducible wheel of the workspace's own files under deps."""

load("@local_python//:defs.bzl", "EXT_SUFFIX", python = "VERSION")

# Equal to `__version__` of pax/__init__.py.
VERSION = "0.1.0"

def _impl(ctx):
    own = depset(transitive = [d[DefaultInfo].default_runfiles.files for d in ctx.attr.deps])
    files = [f for f in own.to_list() if f.short_path.split("/")[0] in ctx.attr.folders]
    version = VERSION + ("+" + ctx.attr.variant if ctx.attr.variant else "")
    tag = "cp{v}-cp{v}-{platform}".format(
        v = python.replace(".", ""),
        platform = ctx.attr.platform,
    )
    out = ctx.actions.declare_file("%s-%s-%s.whl" % (ctx.label.name, version, tag))
    args = ctx.actions.args()
    args.use_param_file("@%s", use_always = True)
    args.set_param_file_format("multiline")
    args.add(out, format = "--out=%s")
    args.add_all(ctx.files._project, format_each = "--project=%s")
    args.add_all(files, map_each = _pair)
    for target, path in ctx.attr.data.items():
        args.add_all(target.files, format_each = "%s=" + path)
    ctx.actions.run(
        executable = ctx.executable._tool,
        arguments = [args],
        inputs = files + ctx.files.data + ctx.files._project,
        outputs = [out],
        mnemonic = "PyWheel",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]))]

def _pair(file):
    # setuptools adds the interpreter to the names of extensions.
    return "%s=%s" % (file.path, file.short_path.replace(".so", EXT_SUFFIX))

py_wheel = rule(
    implementation = _impl,
    doc = "The target's name is the distribution's, with underscores.",
    attrs = {
        "data": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Files, and their paths in the wheel.",
        ),
        "deps": attr.label_list(),
        "folders": attr.string_list(doc = "The top-level packages it contains."),
        "platform": attr.string(doc = "As linux_x86_64."),
        "variant": attr.string(doc = "Local version: cuda13 of 0.1.0+cuda13."),
        "_project": attr.label(default = "//:project_files"),
        "_tool": attr.label(
            default = "//tools/wheel:make_wheel",
            cfg = "exec",
            executable = True,
        ),
    },
)
