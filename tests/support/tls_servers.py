"""Certificates for tests, and servers with TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from handfast.embedded.process import StartError
from handfast.testing import Server, TlsFiles, available

__all__ = ["make_files", "start_with_tls"]


def make_files(authority: trustme.CA, folder: Path, host: str) -> TlsFiles:
    """A certificate for the host, with its key and the certificate of the authority."""
    made = TlsFiles(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    certificate = authority.issue_cert(host)
    certificate.private_key_pem.write_to_path(made.key)
    certificate.cert_chain_pems[0].write_to_path(made.certificate)
    authority.cert_pem.write_to_path(made.authority)
    return made


def start_with_tls(made: TlsFiles) -> Server:
    """A started server of the first kind that was built with TLS."""
    for binary in available().values():
        server = Server(binary, tls=made)
        try:
            return server.start()
        except StartError as error:
            server.close()
            if "tls" not in str(error).lower():
                raise
    pytest.skip("no server here has TLS")
