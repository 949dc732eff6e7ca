"""py_wheel: a reproducible wheel of the workspace's own files under deps."""

load("@local_python//:defs.bzl", python = "VERSION")

# Version of all wheels; equal to the one in pyproject.toml.
VERSION = "0.1.0"

def _impl(ctx):
    own = depset(transitive = [d[DefaultInfo].default_runfiles.files for d in ctx.attr.deps])
    folders = ctx.attr.folders or [ctx.label.name]
    files = [f for f in own.to_list() if f.short_path.split("/")[0] in folders]
    tag = "py3-none-any"
    if ctx.attr.platform:
        tag = "cp{v}-cp{v}-{platform}".format(
            v = python.replace(".", ""),
            platform = ctx.attr.platform,
        )
    out = ctx.actions.declare_file("%s-%s-%s.whl" % (ctx.label.name, VERSION, tag))
    args = ctx.actions.args()
    args.use_param_file("@%s", use_always = True)
    args.set_param_file_format("multiline")
    args.add(out, format = "--out=%s")
    args.add("--name=" + ctx.label.name)
    args.add("--version=" + VERSION)
    args.add("--tag=" + tag)
    args.add(ctx.file._pyproject, format = "--pyproject=%s")
    args.add_all(ctx.attr.own, format_each = "--own=%s")
    args.add_all(ctx.attr.scripts, format_each = "--script=%s")
    args.add_all(files, map_each = _pair)
    ctx.actions.run(
        executable = ctx.executable._tool,
        arguments = [args],
        inputs = files + [ctx.file._pyproject],
        outputs = [out],
        mnemonic = "PyWheel",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]))]

def _pair(file):
    return "%s=%s" % (file.path, file.short_path)

py_wheel = rule(
    implementation = _impl,
    doc = "The target's name is the distribution's.",
    attrs = {
        "deps": attr.label_list(),
        "folders": attr.string_list(
            doc = "The top-level packages it holds; by default the one of its name.",
        ),
        "own": attr.string_list(doc = "Our other distributions that it may need."),
        "platform": attr.string(doc = "As linux_x86_64; empty for a pure wheel."),
        "scripts": attr.string_list(doc = "As `pax = pax.main:console`."),
        "_pyproject": attr.label(
            default = "//:pyproject.toml",
            allow_single_file = True,
        ),
        "_tool": attr.label(
            default = "//tools/wheel:make_wheel",
            cfg = "exec",
            executable = True,
        ),
    },
)
