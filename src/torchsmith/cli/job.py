"""`torchsmith job`: workloads on the engines that run them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.app import App
from torchsmith.cli.diagnose import known_of_lines
from torchsmith.cli.output import (
    duration,
    moment,
    note,
    print_content,
    print_json,
    print_json_line,
    print_requests,
    show_files,
    tell,
    write_tree,
)
from torchsmith.errors import JobFailed, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torchsmith.jobs.submissions import Submission, Submissions

app = App("Run jobs here or on a cluster: submit, watch, stop, translate.")

Id = Annotated[str, Argument(help="The id of a job, or the beginning of it.")]
JobFile = Annotated[Path, Argument(help="A job file, or a recipe with jobs in it.")]
Names = Annotated[list[str] | None, Option("--name", help="Only this job of several; repeatable.")]
Changes = Annotated[
    list[str] | None,
    Option("--set", help="Change a key: image=lab/torch, role.main.gpus=2; repeatable."),
]


@app.command()
def submit(
    job: JobFile,
    to: Annotated[str, Option(help="Where: local, slurm, ...; default: the job's own line.")] = "",
    usual: Annotated[str, Option(envvar="TORCHSMITH_JOBS_TO", hidden=True)] = "",
    name: Names = None,
    change: Changes = None,
    after: Annotated[
        list[str] | None, Option(help="Begin when this job has succeeded; repeatable.")
    ] = None,
    array: Annotated[str, Option(help="Once for each index, such as 0-3 (Slurm).")] = "",
    wait: Annotated[bool, Option("--wait", help="Return when it is over.")] = False,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Show its output until it is over.")
    ] = False,
    dry_run: options.DryRun = False,
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Hand a job to the engine that runs it; with --wait or --follow, ends with 12 if it fails."""
    from torchsmith.jobs.clients import client_for, render, target_for
    from torchsmith.jobs.files import load_jobs
    from torchsmith.jobs.submissions import check
    from torchsmith.jobs.submissions import submit as submitted

    changes = [*(change or ()), *([f"slurm.array={array!r}"] if array else ())]
    jobs = load_jobs(job, changes, name or ())
    client = client_for(target_for(jobs, to, usual))
    folder = Path.cwd()
    with _submissions(store) as kept:
        others = [kept.get(one) for one in after or ()]
        if dry_run:
            check(jobs, client, folder, after=others, note=note)
            print_requests(render(jobs, client.engine).files, client.engine, as_json=json)
            return
        made: list[Submission] = []
        for one in submitted(jobs, client, kept, folder, after=others, note=note):
            made.append(one)
            if not json:
                print(_line(one), flush=True)
        if follow:
            _follow(made, json=json)
        if wait or follow:
            made = _ends(made, kept, json=json)
        if json:
            print_json({"jobs": [_table(one) for one in made]})
        _all_well(made if wait or follow else [])


@app.command("list")
def list_(
    limit: Annotated[int, Option(min=1, max=1_000_000, help="Show at most so many.")] = 20,
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """List the jobs that were submitted from here, newest first."""
    from torchsmith.jobs.submissions import all_refreshed

    with _submissions(store) as kept:
        found = all_refreshed(kept, limit, lambda text: tell(f"warning: {text}"))
        if json:
            print_json({"jobs": [_table(one) for one in found]})
            return
        for one in found:
            print(_line(one))
        if not found:
            print("nothing was submitted yet")


@app.command()
def status(job: Id, store: options.StoreFolder = None, json: options.Json = False) -> None:
    """Show where a job and each of its tasks is, and why it failed if it did."""
    from torchsmith.jobs.submissions import refreshed

    with _submissions(store) as kept:
        found = refreshed(kept.get(job), kept)
        if json:
            print_json(_table(found))
            return
        for line in _report(found):
            print(line)


@app.command()
def logs(
    job: Id,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on until the job is over.")] = False,
    role: Annotated[str, Option(help="Only the tasks of this role.")] = "",
    task: Annotated[str, Option(help="Only this task, such as main-0.")] = "",
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Show the output of a job."""
    from torchsmith.jobs.client import Output
    from torchsmith.jobs.submissions import client_of, refreshed
    from torchsmith.redact import redacted_lines

    with _submissions(store) as kept:
        found = refreshed(kept.get(job), kept)
        if not found.engine_id:
            raise UsageError(f"{found.id} never reached {found.intent.engine}: it has no output")
        written = client_of(found).logs(found.submitted, Output(role, task, follow))
        for line in redacted_lines(written):
            if json:
                print_json_line({"job": found.id, "text": line})
            else:
                print(line, flush=follow)


@app.command()
def cancel(
    jobs: Annotated[list[str], Argument(metavar="JOB", help="Ids of jobs.")],
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Stop jobs and everything they started."""
    from torchsmith.jobs.submissions import stopped

    with _submissions(store) as kept:
        over = []
        for one in [kept.get(job) for job in jobs]:
            over.append(stopped(one, kept, patience=30))
            if not json:
                print(_line(over[-1]), flush=True)
        if json:
            print_json({"jobs": [_table(one) for one in over]})


@app.command()
def render(
    job: JobFile,
    to: Annotated[str, Option(help="Any engine of `job submit`, or compose.")],
    name: Names = None,
    change: Changes = None,
    output: options.OutputFolder = None,
    json: options.Json = False,
) -> None:
    """Write a job as the native request of an engine; nothing is submitted."""
    from torchsmith.jobs.clients import render as rendered
    from torchsmith.jobs.files import load_jobs

    made = rendered(load_jobs(job, change or (), name or ()), to)
    if json:
        if output is not None:
            write_tree(output, made.files)
        files = {path: content.decode() for path, content in made.files.items()}
        print_json({"engine": to, "files": files, "notes": list(made.notes)})
        return
    for text in made.notes:
        note(text)
    show_files(made.files, output)


@app.command("import")
def import_(
    file: Annotated[Path, Argument(help="A job of OpenPAI: JSON (v1) or YAML (v2).")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write the job file here; default: print it.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Turn a job of OpenPAI into a job file, from which it can be rendered for any engine."""
    from torchsmith.files import write_result
    from torchsmith.jobs.importing import import_job
    from torchsmith.recipe.job import job_file

    made = import_job(file)
    text = job_file(made.job)
    for line in () if json else made.notes:
        note(line)
    if output is not None:
        if output.exists():
            raise OutputError(f"{output} already exists", "Name another file, or move it away.")
        write_result(output, text.encode())
    if json:
        print_json({"job": text, "file": str(output or ""), "notes": list(made.notes)})
    elif output is None:
        print_content(text)
    else:
        print(output)


def _submissions(store: Path | None) -> AbstractContextManager[Submissions]:
    from contextlib import closing

    from torchsmith.jobs.submissions import Submissions

    return closing(Submissions(store))


def _follow(made: list[Submission], *, json: bool) -> None:
    from torchsmith.jobs.client import Output
    from torchsmith.jobs.submissions import client_of
    from torchsmith.redact import redacted_lines

    for one in made:
        for line in redacted_lines(client_of(one).logs(one.submitted, Output(follow=True))):
            print(line, file=sys.stderr if json or sys.stdout.isatty() else sys.stdout, flush=True)


def _ends(made: list[Submission], kept: Submissions, *, json: bool) -> list[Submission]:
    from torchsmith.jobs.submissions import waited

    over = [waited(one, kept) for one in made]
    for one in () if json else over:
        for line in _report(one):
            print(line)
    return over


def _all_well(made: list[Submission]) -> None:
    from torchsmith.jobs.states import State

    bad = [one for one in made if one.status.state is not State.SUCCEEDED]
    if bad:
        raise JobFailed(
            ", ".join(f"job {one.intent.name} ({one.id}): {one.status.state}" for one in bad),
            f"`torchsmith job logs {bad[0].id}` shows all of its output.",
        )


def _line(one: Submission) -> str:
    # The id of a job on this machine is its folder, which says nothing more.
    its = one.engine_id if one.engine_id != str(one.kept) else ""
    where = f"{one.intent.engine} {its}".strip()
    return f"{one.id}  {moment(one.at)}  {one.status.state:<9}  {one.intent.name}  ({where})"


def _report(one: Submission) -> Iterator[str]:
    from torchsmith.jobs.states import State
    from torchsmith.jobs.submissions import failures

    status = one.status
    yield _line(one)
    words = " ".join(item for item in (status.said, status.reason) if item)
    if words:
        yield f"  {words}"
    if status.started:
        for_how_long = f"ran {duration(status.ended - status.started)}" if status.ended else "runs"
        yield f"  {for_how_long} on {', '.join(status.nodes)}" if status.nodes else for_how_long
    for task in status.tasks if len(status.tasks) > 1 else ():
        code = f"exit code {task.exit_code}" if task.exit_code else ""
        yield f"  {task.name:<12} {task.state:<9}  {code}".rstrip()
    if status.state not in (State.FAILED, State.TIMEOUT, State.LOST):
        return
    for failure in failures(one):
        code = f" (exit code {failure.exit_code})" if failure.exit_code else ""
        yield f"  {failure.task or 'the job'} said last{code}:"
        yield from (f"    {line}" for line in failure.lines)
        yield from known_of_lines(failure.lines)


def _table(one: Submission) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "id": one.id,
        "name": one.intent.name,
        "engine": one.intent.engine,
        "engine_id": one.engine_id,
        "submitted": one.at,
        "folder": str(one.kept),
        **asdict(one.status),
    }
