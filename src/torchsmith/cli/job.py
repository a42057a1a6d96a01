"""`torchsmith job`: workloads on the engines that run them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from torchsmith.cli import job_run
from torchsmith.cli.help import App

app = App("Run jobs here or on a cluster: submit, watch, stop, translate.")
app.command("submit")(job_run.submit)
app.command("list")(job_run.list_)
app.command("status")(job_run.status)
app.command("logs")(job_run.logs)
app.command("cancel")(job_run.cancel)


@app.command()
def render(
    job: Annotated[Path, typer.Argument(help="A job file, or a recipe with jobs in it.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="local, podman, docker, slurm, kubernetes, kubeflow, kubeflow-trainer, openpai, "
            "openpai-v1 or compose.",
        ),
    ],
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Only this job of several; repeatable.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key: image=lab/torch, role.main.gpus=2; repeatable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the files into this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Write a job as the native request of an engine; nothing is submitted."""
    from torchsmith.cli.output import print_content, print_files, print_json, write_tree
    from torchsmith.jobs.files import load_jobs
    from torchsmith.jobs.render import render as rendered

    made = rendered(load_jobs(job, change or (), name or ()), to)
    if output is not None:
        write_tree(output, made.files)
    if json:
        files = {path: content.decode() for path, content in made.files.items()}
        print_json({"engine": to, "files": files, "notes": list(made.notes)})
        return
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    if output is not None:
        for path in made.files:
            print(output / path)
    elif len(made.files) == 1:
        (content,) = made.files.values()
        print_content(content.decode())
    else:
        print_files(made.files)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A job of OpenPAI: JSON (v1) or YAML (v2).")],
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the job file here; default: print it.")
    ] = None,
) -> None:
    """Turn a job of OpenPAI into a job file, from which it can be rendered for any engine."""
    from torchsmith.cli.output import print_content
    from torchsmith.errors import OutputError
    from torchsmith.files import write_result
    from torchsmith.jobs.importing import import_job
    from torchsmith.recipe.job_file import job_file

    made = import_job(file)
    text = job_file(made.job)
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    if output is None:
        print_content(text)
        return
    if output.exists():
        raise OutputError(f"{output} is there already", "Name another file, or move it away.")
    write_result(output, text.encode())
    print(output)
