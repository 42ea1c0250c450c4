"""Writes docs/reference from the code: commands from --help, run file and run folder from the values, schemas.

`python tools/build_reference.py` writes; tests/house/test_reference.py compares.
"""

import inspect as python
import json
import sys
from copy import copy
from importlib import import_module
from pathlib import Path

import click
import msgspec

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
WIDTH = 96

OUTPUTS = {
    "plan": ("elinvar.cli.plan", "PlanOutput"),
    "doctor": ("elinvar.cli.doctor", "Examination"),
    "sample": ("elinvar.cli.sample", "Continuation"),
    "verify": ("elinvar.record.proof", "Proof"),
    "show": ("json_outputs", "Show"),
    "diff": ("json_outputs", "Diff"),
    "init": ("json_outputs", "Init"),
    "report": ("json_outputs", "Report"),
    "samples --step": ("json_outputs", "SamplesOfStep"),
    "samples --sample": ("json_outputs", "StepsOfSample"),
    "checkpoint list": ("json_outputs", "CheckpointList"),
    "checkpoint show": ("json_outputs", "CheckpointShow"),
    "checkpoint check": ("json_outputs", "CheckpointCheck"),
    "data show": ("json_outputs", "Data"),
    "data build": ("json_outputs", "Data"),
    "data check": ("json_outputs", "DataCheck"),
}
"""What commands print under --json, by command: the module and the struct."""

RECORDS = {
    "attempts.jsonl": ("elinvar.record.attempt", ("AttemptStart", "AttemptEnd"), "attempt"),
    "metrics.jsonl": ("elinvar.record.metrics", ("MetricsRow", "Evaluation"), "metrics"),
    "events.jsonl": ("elinvar.record.events", ("Event",), "event"),
    "ledger/steps.jsonl": ("elinvar.record.ledger", ("LedgerRow",), "ledger"),
    "lineage.json": ("elinvar.record.lineage", ("Lineage",), "lineage"),
    "proof.json": ("elinvar.record.proof", ("Proof", "Case"), "proof"),
    "generations/*/manifest.json": (
        "elinvar.record.manifest",
        ("Manifest", "TensorEntry", "Piece"),
        "manifest",
    ),
    "generations/*/commit.json": ("elinvar.record.manifest", ("Commit",), "commit"),
}
"""The files of a run folder: module, structs (the first is the row or the file), and the schema's name."""


def pages():
    """{path below docs/reference: text} of everything that is generated."""
    made = {
        "commands.md": commands_page(),
        "run-file.md": run_file_page(),
        "run-folder.md": run_folder_page(),
    }
    made |= {
        f"schemas/{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in schemas()
    }
    return made


def schemas():
    """(name, JSON Schema) of the run file, of each command's --json, and of each file of a run folder."""
    from elinvar.spec.schema import run_file_schema

    yield "run-file", run_file_schema()
    for name, (module, struct) in OUTPUTS.items():
        yield file_name(name), schema_of(getattr(import_module(module), struct), f"elinvar {name} --json")
    for file, (module, structs, name) in RECORDS.items():
        yield (
            f"record-{name}",
            schema_of(getattr(import_module(module), structs[0]), f"a run folder's {file}"),
        )


def file_name(command):
    """`data show` and `samples --step` as file names."""
    return command.replace(" --", "-").replace(" ", "-")


def schema_of(struct, title):
    """The JSON Schema of a struct, with its title."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **msgspec.json.schema(struct),
    }


def commands_page():
    from elinvar.cli.main import COMMANDS, commands

    parts = [
        "# Commands",
        (
            "Written by `tools/build_reference.py` from `--help`. Results go to stdout, progress and errors to stderr. "
            "Exit codes: [exit-codes.md](exit-codes.md). Schemas of every `--json`: [schemas](schemas)."
        ),
        block(help_of(commands, "elinvar")),
    ]
    for name in COMMANDS:
        parts += command_parts(import_module(f"elinvar.cli.{name}").command, f"elinvar {name}", 2)
    return "\n\n".join(parts) + "\n"


def command_parts(command, path, depth):
    parts = [f"{'#' * depth} {path}", block(help_of(command, path))]
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            parts += command_parts(inner, f"{path} {name}", depth + 1)
    return parts


def help_of(command, path):
    settings = {
        "terminal_width": WIDTH,
        "max_content_width": WIDTH,
        "help_option_names": ["-h", "--help"],
    }
    command = copy(command)
    command._help_option = None  # click keeps the option that another context made
    with click.Context(command, info_name=path, **settings) as context:
        return command.get_help(context)


def block(text):
    return f"```\n{text.rstrip()}\n```"


def run_file_page():
    from elinvar.spec.fields import run_file
    from elinvar.spec.schema import run_file_schema

    schema = run_file_schema()
    fields = run_file().members[None].fields
    parts = [
        "# Run file",
        (
            "Written by `tools/build_reference.py` from the values. A run file is TOML with the tables `[experiment…]` "
            '(what is learned) and `[execution…]` (how it is computed); `base = "other.toml"` or the name of a preset '
            "inherits; `machine` names the machine to plan for. An override on the command line is a line of this file: "
            "`experiment.optimizer.lr=5e-4`, or shorter where only one key ends so: `optimizer.lr=5e-4`. Unknown keys, "
            "wrong types and numbers that are not finite are refused."
        ),
        "For completion in an editor: `elinvar show --schema > elinvar.schema.json`.",
    ]
    for name in ("experiment", "execution"):
        parts += table_parts(schema["properties"][name], fields[name], name)
    return "\n\n".join([*parts, *machine_parts()]) + "\n"


def machine_parts():
    """The table [machine]: its keys, and the machines that have a name."""
    from elinvar.plan.machine import KNOWN, THIS, Machine

    fields = msgspec.inspect.type_info(Machine).fields
    properties = msgspec.json.schema(Machine)["$defs"]["Machine"]["properties"]
    rows = []
    for field in fields:
        if field.required:
            value = "needed"
        else:
            value = "not known" if field.default is None else f"`{json.dumps(field.default)}`"
        rows.append(
            f"| `{field.encode_name}` | {words(properties[field.encode_name]).removesuffix(' or null')} | {value} |"
        )
    known = [
        f"| `{machine.name}` | {machine.cores} | {machine.memory_bytes / 2**30:.0f} GiB | "
        + (f"{machine.devices} × {machine.device_memory_bytes / 2**30:.0f} GiB" if machine.devices else "–")
        + " |"
        for machine in KNOWN.values()
    ]
    return [
        "## [machine]",
        (
            "What to plan for; in no digest. `machine = NAME` before the first table of a run file names one, `[machine]` "
            "describes one, and so does a TOML file of its own with these keys. `--machine NAME|FILE` wins over the run "
            f"file; without any it is `{THIS}`, the machine that the command runs on."
        ),
        " ".join(python.cleandoc(Machine.__doc__).split("\n\n", 1)[1].split()),
        "\n".join(["| key | value | default |", "|---|---|---|", *rows]),
        "\n".join(["| name | cores | memory | devices |", "|---|---|---|---|", *known]),
    ]


def table_parts(schema, table, path):
    """A heading, the description and one row a key for each kind; inner tables follow."""
    parts = []
    for member in schema.get("anyOf", [schema]):
        properties = member["properties"]
        kind = properties.get("kind", {}).get("const")
        fields = table.members[kind].fields
        parts.append(f"## [{path}]" + (f' kind = "{kind}"' if kind else ""))
        parts.append(member.get("description", ""))
        inner = {key: value for key, value in properties.items() if is_table(value)}
        rows = [
            f"| `{key}` | {allowed(value)} | {default(value, fields[key])} |"
            for key, value in properties.items()
            if key not in inner and key != "kind"
        ]
        if rows:
            parts.append("\n".join(["| key | value | default |", "|---|---|---|", *rows]))
        for key, value in inner.items():
            parts += table_parts(value, fields[key], f"{path}.{key}")
    return parts


def is_table(schema):
    return any(member.get("type") == "object" for member in schema.get("anyOf", [schema]))


def allowed(schema):
    """The type of a value and its limits, in words."""
    if "anyOf" in schema:
        return " or ".join(allowed(member) for member in schema["anyOf"])
    if "enum" in schema:
        return " · ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    signs = {"minimum": "≥", "maximum": "≤", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[name]:,}" for name, sign in signs.items() if name in schema]
    return " ".join([schema.get("type", "any"), *limits])


def default(schema, field):
    if field.required:
        return "needed"
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else "see above"


def run_folder_page():
    from elinvar.record.events import KINDS

    parts = [
        "# Run folder",
        (
            "Written by `tools/build_reference.py` from the values of `elinvar.record`. A run folder is created once and "
            "never deleted or overwritten. Files ending in `.jsonl` are journals: one JSON object a line, only ever "
            "appended to. A last line that was torn by a crash is closed by the next attempt and skipped by readers; an "
            "event says so."
        ),
        block(
            "experiment.json       what is learned, in its canonical form, with both digests\n"
            "attempts.jsonl        one start and one end row for each launch\n"
            "metrics.jsonl         one row a step; where several attempts computed a step, the last one counts\n"
            "events.jsonl          everything that happened besides steps\n"
            "ledger/steps.jsonl    which samples each step consumed\n"
            "generations/          checkpoints, each a folder that exists when its commit.json does\n"
            "lineage.json          in forks: where the run came from\n"
            "proof.json            what verify found\n"
            "report.html           the page of the run\n"
            "lock                  who writes the folder now"
        ),
    ]
    for file, (module, structs, name) in RECORDS.items():
        parts.append(f"## {file}")
        for struct in structs:
            parts += struct_parts(getattr(import_module(module), struct))
        if file == "events.jsonl":
            rows = [f"| `{kind}` | {text} |" for kind, text in KINDS.items()]
            parts.append("\n".join(["| kind | meaning |", "|---|---|", *rows]))
        parts.append(f"Schema: [record-{name}.json](schemas/record-{name}.json)")
    return "\n\n".join(parts) + "\n"


def struct_parts(struct):
    info = msgspec.inspect.type_info(struct)
    schema = msgspec.json.schema(struct)
    properties = schema["$defs"][struct.__name__]["properties"]
    rows = [f"| `{field.encode_name}` | {words(properties[field.encode_name])} |" for field in info.fields]
    if info.tag is not None:
        rows.insert(0, f"| `{info.tag_field}` | `{json.dumps(info.tag)}` |")
    return [
        f"**{struct.__name__}.** {' '.join(python.cleandoc(struct.__doc__ or '').split())}",
        "\n".join(["| key | value |", "|---|---|", *rows]),
    ]


def words(schema):
    """`allowed`, with arrays, objects and references in words."""
    if "anyOf" in schema:
        return " or ".join(words(member) for member in schema["anyOf"])
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if schema.get("type") == "array":
        return f"array of {words(schema.get('items', {}))}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties", {})
        return f"object of {words(inner)}" if isinstance(inner, dict) and inner else "object"
    return allowed(schema)


def main():
    for name, text in pages().items():
        path = REFERENCE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
