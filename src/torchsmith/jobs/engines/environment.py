"""The environment a job is started with: that of whoever starts it, less their other secrets."""

from __future__ import annotations

from collections.abc import Mapping

from torchsmith.jobs.models import Job
from torchsmith.secret_names import is_secret_name


def handed_on(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables a job gets: a secret only if it is one of the job's own."""
    own = {secret.variable for secret in job.secrets}
    return {
        name: value for name, value in environ.items() if name in own or not is_secret_name(name)
    }
