"""An authority, a server's certificate and a client's, made for one run of the tests."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Files in one directory."""

    directory: Path

    def file(self, name: str) -> str:
        """Such as ``ca.crt`` or ``client.key``."""
        return str(self.directory / name)

    def server_options(self, port: int) -> tuple[str, ...]:
        """A server that speaks TLS only, and only to those whom the authority knows."""
        return (
            *("--port", "0", "--tls-port", str(port), "--tls-replication", "yes"),
            *("--tls-cert-file", self.file("server.crt")),
            *("--tls-key-file", self.file("server.key")),
            *("--tls-ca-cert-file", self.file("ca.crt"), "--tls-auth-clients", "yes"),
        )


def made_in(directory: Path) -> Certificates:
    """Make them all."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    for authority in ("ca", "other"):
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={authority} of the tests"),
            *("-keyout", f"{authority}.key", "-out", f"{authority}.crt"),
        )
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for holder in ("server", "client"):
        openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={holder}"),
            *("-keyout", f"{holder}.key", "-out", f"{holder}.csr"),
        )
        openssl(
            *("x509", "-req", "-in", f"{holder}.csr", "-days", "2", "-CAcreateserial"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-extfile", "names", "-out", f"{holder}.crt"),
        )
    return Certificates(directory)
