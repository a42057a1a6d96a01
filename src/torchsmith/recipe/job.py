"""A job as it is written down: in a recipe's `[[job]]`, or in a job file of its own."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from torchsmith.recipe.toml import toml_lines
from torchsmith.recipe.values import (
    EnvName,
    Form,
    ImageName,
    Line,
    Name,
    Script,
    Section,
    SourcePath,
    no_secrets,
    unique_names,
)

# Stands for null in what is kept of OpenPAI: TOML has no word for it.
NULL = "\N{SYMBOL FOR NULL}"

DURATION = Form(
    r"(?:[0-9]{1,4}d)?(?:[0-9]{1,4}h)?(?:[0-9]{1,5}m)?(?:[0-9]{1,6}s)?(?<=[dhms])",
    "a length of time such as 90m, 12h or 1d12h",
    ("90m", "12h", "1d12h"),
)


def _more_than_nothing(text: str) -> str:
    if not seconds(text):
        raise ValueError("must be more than nothing")
    return text


def seconds(duration: str) -> int:
    """Return how many seconds a length of time such as 1d12h stands for."""
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([dhms])", duration))


Duration = Annotated[str, DURATION, AfterValidator(_more_than_nothing)]
# What Kubernetes calls a Secret and its key; other engines know one word.
SecretReference = Annotated[
    str,
    Form(
        r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?(?:/[A-Za-z0-9._-]{1,63})?",
        "the name of a secret and its key, such as hub/token",
        ("hub/token",),
    ),
]
MountSource = Annotated[
    str,
    Form(
        r"nfs://[A-Za-z0-9.-]+/[\w./-]*|claim:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:/[\w./-]+)?"
        r"|(?!-)(?!.*\.\.)[\w./@+=-]+",
        "a folder, nfs://server/folder, or claim:name for a storage the cluster knows",
        ("/srv/mnist", "nfs://files/mnist", "claim:mnist"),
    ),
]
Identifier = Annotated[
    str, Form(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "letters, digits and _, no digit first")
]

Environment = Annotated[
    dict[EnvName, Line],
    no_secrets('name where it is kept instead: secrets = {{ {name} = "name/key" }}'),
]
Tasks = Annotated[int, Field(ge=1, le=100_000)]
# OpenPAI's own: -1 means that no number of tasks decides.
Enough = Annotated[int, Field(ge=1, le=100_000)] | Literal[-1]
# -1 as in OpenPAI's FrameworkController: as long as it fails.
Retries = Annotated[int, Field(ge=-1, le=1000)]


class Port(Section):
    """A port a task listens on."""

    name: Identifier = Field(description="Its label.")
    number: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="The first one; 0: whichever the engine gives."
    )
    count: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="How many in a row.")


class Mount(Section):
    """A folder the tasks see; `NAME_DIR` in their environment says where."""

    name: Identifier = Field(description="`data` is found in `$DATA_DIR`.")
    source: MountSource = Field(
        alias="from",
        description="A folder, `nfs://server/folder`, or `claim:name`: a storage of the cluster.",
    )
    at: Annotated[str, Form(r"/[\w./@+=-]{0,400}", "an absolute path")] = Field(
        description="Where the tasks see it."
    )


class Slurm(Section):
    """What only Slurm knows."""

    account: Name | None = Field(None, description="Who pays.")
    qos: Name | None = Field(None, description="Quality of service.")
    constraint: (
        Annotated[str, Form(r"[A-Za-z0-9_&|()*\[\]-]{1,200}", "node features such as a100&nvlink")]
        | None
    ) = Field(None, description="Features the nodes must have.")
    gpu_type: Name | None = Field(None, description="Of the GRES: gpu:TYPE:COUNT.")
    container: Literal["pyxis", "apptainer"] = Field(
        "pyxis", description="What runs the image there."
    )
    array: (
        Annotated[
            str,
            Form(
                r"[0-9]{1,7}(?:-[0-9]{1,7}(?::[0-9]{1,7})?)?"
                r"(?:,[0-9]{1,7}(?:-[0-9]{1,7})?){0,99}(?:%[0-9]{1,6})?",
                "an array such as 0-9%2",
            ),
        ]
        | None
    ) = Field(None, description="Run it once for each index; `SLURM_ARRAY_TASK_ID` says which.")
    modules: list[Annotated[str, Form(r"[A-Za-z0-9][\w./+-]{0,127}", "a module")]] = Field(
        default_factory=list, description="Loaded before anything runs."
    )


class Kubernetes(Section):
    """What only Kubernetes knows."""

    namespace: (
        Annotated[str, Form(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "a namespace")] | None
    ) = Field(None, description="Where it runs; default: the client's own.")
    gpu_resource: Annotated[str, Form(r"[a-z0-9.-]+/[a-z0-9.-]+", "a resource name")] = Field(
        "nvidia.com/gpu", description="What a GPU is called there."
    )
    node_selector: dict[Line, Line] = Field(
        default_factory=dict, description="Labels the nodes must have."
    )


class Role(Section):
    """One kind of task of a job."""

    name: Annotated[
        str, Form(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "a name of letters, digits and '_'")
    ] = Field("main", description="The role's name.")
    tasks: Tasks = Field(1, description="How many tasks of this kind.")
    cpus: Annotated[int, Field(ge=1, le=4096)] = Field(1, description="CPU cores of each.")
    memory_mb: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        2048, description="Memory of each, in MB."
    )
    gpus: Annotated[int, Field(ge=0, le=1024)] = Field(0, description="GPUs of each.")
    shm_mb: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="Shared memory of each, in MB; default: the image's `shm_size`."
    )
    processes: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="Processes per task for a distributed run; default: one per GPU."
    )
    command: Line | Annotated[list[Script], Field(min_length=1, max_length=10_000)] = Field(
        description="What each task runs: one line, or a list of commands."
    )
    image: ImageName | None = Field(None, description="Default: the job's.")
    env: Environment = Field(default_factory=dict, description="Over the job's own.")
    port: Annotated[list[Port], Field(max_length=100), AfterValidator(unique_names)] = Field(
        default_factory=list, description="Ports each task listens on."
    )
    retries: Retries = Field(
        0, description="How often a failed task is started again; -1: until it succeeds."
    )
    min_failed: Enough | None = Field(
        None, description="So many failed tasks fail the job; -1: none does. Default: 1."
    )
    min_succeeded: Enough | None = Field(
        None,
        description="So many tasks of this role that succeeded end the whole job, other roles "
        "too; -1: none does. Default: the job ends when every role has.",
    )

    @property
    def lines(self) -> tuple[str, ...]:
        """The commands, one after the other."""
        return (self.command,) if isinstance(self.command, str) else tuple(self.command)

    @property
    def script(self) -> str:
        """The commands as one text."""
        return "\n".join(self.lines)

    @model_validator(mode="after")
    def _some_command(self) -> Self:
        if not self.script.strip():
            raise ValueError(f"role {self.name} has no command")
        return self

    @model_validator(mode="after")
    def _not_more_than_there_are(self) -> Self:
        for key, count in (("min_failed", self.min_failed), ("min_succeeded", self.min_succeeded)):
            if count is not None and count > self.tasks:
                tasks = f"{self.tasks} task{'' if self.tasks == 1 else 's'}"
                raise ValueError(f"{key} is {count}, and role {self.name} has {tasks}")
        return self


class Job(Section):
    """A workload to run with the result."""

    name: Annotated[
        str, Form(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,254}", "a name of letters, digits, '_' and '-'")
    ] = Field(description="Its name on the cluster.")
    image: ImageName | None = Field(None, description="Default: the recipe's own image.")
    environment: SourcePath | None = Field(
        None, description="A Python environment on the machines, in place of an image."
    )
    wheels: SourcePath | None = Field(
        None, description="A folder of wheels the environment is made from where it is missing."
    )
    role: Annotated[
        list[Role], Field(min_length=1, max_length=64), AfterValidator(unique_names)
    ] = Field(description="Its task roles, at least one.")
    distributed: bool = Field(False, description="Whether the tasks train together.")
    backend: Literal["nccl", "gloo", "mpi"] | None = Field(
        None, description="Of torch.distributed."
    )
    remote_gpus: bool = Field(False, description="GPUs reached over RDMA (vGPU).")
    retries: Retries = Field(
        0, description="How often a failed job is started again; -1: until it succeeds."
    )
    env: Environment = Field(default_factory=dict, description="Environment of every task.")
    secrets: dict[EnvName, SecretReference] = Field(
        default_factory=dict,
        description="Variables whose values the engine keeps: where each is kept, never a value.",
    )
    data: Annotated[list[Mount], Field(max_length=100), AfterValidator(unique_names)] = Field(
        default_factory=list, description="Folders that are only read."
    )
    output: Annotated[list[Mount], Field(max_length=100), AfterValidator(unique_names)] = Field(
        default_factory=list, description="Folders that are written to."
    )
    time_limit: Duration | None = Field(None, description="It is stopped after so long.")
    to: (
        Literal[
            "local",
            "podman",
            "docker",
            "slurm",
            "kubernetes",
            "kubeflow",
            "kubeflow-trainer",
            "openpai",
            "openpai-v1",
        ]
        | None
    ) = Field(
        None, description="Where `torchsmith job submit` takes it, unless `--to` says otherwise."
    )
    queue: Name | None = Field(
        None, description="Slurm's partition, OpenPAI's virtual cluster, Kueue's queue."
    )
    after: list[Name] = Field(
        default_factory=list, description="Jobs of this file that have to succeed first."
    )
    parameters: dict[Identifier, Script | int | float | bool] = Field(
        default_factory=dict, description="Filled in where a command says `<% $parameters.x %>`."
    )
    slurm: Slurm = Field(default_factory=Slurm, description="What only Slurm knows.")
    kubernetes: Kubernetes = Field(
        default_factory=Kubernetes, description="What only Kubernetes knows."
    )
    openpai_env: bool = Field(
        False,
        description="Give the tasks OpenPAI's variables (`PAI_TASK_INDEX`, ...) on every engine; "
        "so does a command that names one.",
    )
    openpai: dict[str, JsonValue] = Field(
        default_factory=dict, description="What only OpenPAI's protocol 2 knows, as it writes it."
    )
    openpai_v1: dict[str, JsonValue] = Field(
        default_factory=dict, description="What only OpenPAI's protocol 1 knows, as it writes it."
    )

    @model_validator(mode="after")
    def _remote_means_nccl(self) -> Self:
        if self.remote_gpus and not (self.distributed and self.backend == "nccl"):
            raise ValueError(
                "GPUs reached over RDMA need distributed = true and backend = 'nccl': peer access "
                "between processes works only through NCCL there"
            )
        if self.backend == "nccl" and not any(role.gpus for role in self.role):
            raise ValueError("backend = 'nccl' connects GPUs, and no role has any: use 'gloo'")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.image and self.environment:
            raise ValueError("image and environment: a job runs in one of the two")
        if self.wheels and not self.environment:
            raise ValueError("wheels needs environment: where the environment is made of them")
        if both := self.env.keys() & self.secrets.keys():
            raise ValueError(f"{min(both)} is in env and in secrets")
        unique_names([*self.data, *self.output])
        return self


class Jobs(Section):
    """Several jobs in one file, under the name that a recipe has for them."""

    job: list[Job]


def job_file(job: Job) -> str:
    """The job file of a job; keys that have their defaults are left out."""
    table = job.model_dump(by_alias=True, exclude_defaults=True)
    roles = table.pop("role")
    # OpenPAI's own keys can be long: a line for each of them.
    own = {name: table.pop(name) for name in ("openpai", "openpai_v1") if name in table}
    lines = toml_lines(table)
    for name, inner in own.items():
        lines += [f"{name}.{line}" for line in toml_lines(inner)]
    for role in roles:
        lines += ["", "[[role]]", *toml_lines(role)]
    return "\n".join([*lines, ""])
