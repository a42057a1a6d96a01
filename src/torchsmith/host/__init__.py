"""What this machine has, read once and passed on as a value.

``models`` says what a host is, ``read`` fills one in; each other module knows one subject, and
``probe`` alone starts programs. A host is plain data: a plan for another machine is made by
handing in that machine's host, which ``Host.model_dump_json`` wrote there.
"""

from torchsmith.host.models import Host
from torchsmith.host.read import read_host

__all__ = ["Host", "read_host"]
