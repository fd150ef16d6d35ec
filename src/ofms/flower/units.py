"""systemd units and a container definition for servers and devices."""

from __future__ import annotations

import shlex
from pathlib import Path

from ofms.core.errors import InvalidInput
from ofms.core.version import __version__
from ofms.storage.files import new_folder, write_whole

# The service may read the system, and write its own folders alone: /var/lib/NAME, mode 0700.
_HARDENED = """\
DynamicUser=yes
User={user}
StateDirectory={user}
StateDirectoryMode=0700
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
CapabilityBoundingSet=
AmbientCapabilities=
LockPersonality=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
"""

_UNIT = """\
# {path}: {about}
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target
{relations}
[Service]
ExecStart={command}
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# Invalid configuration (status 2) does not become valid by trying again.
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=10
# First the command, which stops Flower's processes in order.
KillMode=mixed
TimeoutStopSec=60
{hardened}
[Install]
WantedBy=multi-user.target
"""

_CONTAINER = """\
# A server or a device of a fleet, from Debian's and PyPI's packages.
#   podman build --tag ofms .        # wheels beside this file are used instead of PyPI's
#   podman run --read-only --tmpfs /tmp --cap-drop=all --security-opt=no-new-privileges --publish 9092:9092 \\
#       --volume ofms-fleet:/var/lib/ofms ofms
# The page and the metrics are served inside the container, on its loopback interface; to publish them, set
# `host = "0.0.0.0"` in [watch] of server.toml and add --publish 127.0.0.1:9095:9095.
FROM docker.io/library/debian:trixie-slim

# With what exports networks for devices without PyTorch (`ofms deploy keys --edge`).
ARG OFMS="ofms[flower,export]=={version}"
# PyTorch without CUDA, which PyPI's own wheels for Linux bring along.
ARG PIP_EXTRA_INDEX_URL="https://download.pytorch.org/whl/cpu"

RUN apt-get update \\
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \\
    && rm -rf /var/lib/apt/lists/* \\
    && useradd --system --uid 10001 --home-dir /var/lib/ofms --create-home --shell /usr/sbin/nologin ofms \\
    && chmod 0700 /var/lib/ofms

COPY Containerfile *.whl /tmp/wheels/
RUN python3 -m venv /opt/ofms \\
    && /opt/ofms/bin/pip install --no-cache-dir --disable-pip-version-check --find-links /tmp/wheels "$OFMS" \\
    && rm -rf /tmp/wheels

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
USER 10001
WORKDIR /var/lib/ofms
VOLUME /var/lib/ofms
EXPOSE 9092
ENTRYPOINT ["/opt/ofms/bin/ofms"]
CMD ["deploy", "server", "/var/lib/ofms/fleet", "--log-format", "json"]
# A device: podman run … ofms deploy device /var/lib/ofms/pump-1 --store /var/lib/ofms/store
"""


def unit_files(program: Path) -> dict[str, str]:
    """Content by file name; `program` is the installed command `ofms`."""
    ofms, python = shlex.quote(str(program)), shlex.quote(str(program.parent / "python"))
    fleet = "%S/ofms-server/fleet"
    superlink = (
        f"{python} -m ofms.flower.superlink --ssl-certfile {fleet}/server.pem --ssl-keyfile {fleet}/server.key"
        f" --ssl-ca-certfile {fleet}/ca.pem --database {fleet}/flower/superlink.db --host 0.0.0.0 --port 9092"
        " --enable-supernode-auth --disable-runtime-dependency-installation"
    )
    return {
        "ofms-server.service": _unit(
            "ofms-server.service",
            "the server of the fleet in /var/lib/ofms-server/fleet; it starts its SuperLink itself",
            "Server of an ofms fleet",
            f"{ofms} deploy server {fleet}",
            user="ofms-server",
        ),
        "ofms-superlink.service": _unit(
            "ofms-superlink.service",
            "only for a server app that `flwr run` starts: the SuperLink of the same fleet",
            "SuperLink of an ofms fleet",
            superlink,
            user="ofms-server",
            relations="Conflicts=ofms-server.service\n",
            environment=f"Environment=FLWR_HOME={fleet}/flower OFMS_EVENTS={fleet}/events.log\n",
        ),
        "ofms-device@.service": _unit(
            "ofms-device@.service",
            "a device's connection: ofms-device@pump-1 uses /var/lib/ofms-device/pump-1 and its folder `store`",
            "Connection of the ofms device %i",
            f"{ofms} deploy device %S/ofms-device/%i --store %S/ofms-device/%i/store",
            user="ofms-device",
        ),
        "Containerfile": _CONTAINER.replace("{version}", __version__),
    }


def write_units(folder: Path, program: Path) -> list[Path]:
    """Write the units to a new folder."""
    if not program.is_absolute():
        raise InvalidInput("program", program, "give the whole path of the command, such as /opt/ofms/bin/ofms")
    with new_folder(folder) as partial:
        for name, content in unit_files(program).items():
            write_whole(partial / name, content.encode())
    return [folder / name for name in unit_files(program)]


def _unit(
    path: str, about: str, description: str, command: str, *, user: str, relations: str = "", environment: str = ""
) -> str:
    return _UNIT.format(
        path=f"/etc/systemd/system/{path}",
        about=about,
        description=description,
        relations=relations,
        command=command,
        hardened=environment + _HARDENED.format(user=user),
    )
